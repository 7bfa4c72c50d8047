"""What NLTK wants beside the files that packages hold: made from them, in NLTK's formats.

WordNet's ``lexnames`` and ``index.sense`` (Debian leaves both out), the perceptron tagger as JSON, and the mapping of
the Penn Treebank's tags to the twelve universal ones.
"""

import io
import json
import math
import pickle
from typing import Any, Dict, List, Mapping, Tuple

from fastadv.errors import UserError

# WordNet 3.0, lexnames(5WN): the lexicographer files in order of their numbers.
_LEXICOGRAPHER_FILES = """
adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition
noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person
noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state
noun.substance noun.time verb.body verb.change verb.cognition verb.communication verb.competition verb.consumption
verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social verb.stative
verb.weather adj.ppl
""".split()
_CATEGORY_NUMBERS = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}
_TYPE_NUMBERS = {"n": 1, "v": 2, "a": 3, "r": 4, "s": 5}
PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")

# Petrov, Das, McDonald (2012), "A universal part-of-speech tagset", their English map.
_UNIVERSAL_TAGS = {
    "VERB": "MD VB VBD VBG VBN VBP VBZ",
    "NOUN": "NN NNP NNPS NNS",
    "PRON": "PRP PRP$ WP WP$",
    "ADJ": "JJ JJR JJS",
    "ADV": "RB RBR RBS WRB",
    "ADP": "IN",
    "CONJ": "CC",
    "DET": "DT EX PDT WDT",
    "NUM": "CD",
    "PRT": "POS RP TO",
    "X": "FW LS SYM UH",
    ".": "# $ '' `` ( ) , . : -LRB- -RRB-",
}


def lexnames() -> bytes:
    """Lines of number, name and category number, tabs between (lexnames(5WN))."""
    rows = (
        f"{number:02d}\t{name}\t{_CATEGORY_NUMBERS[name.partition('.')[0]]}\n"
        for number, name in enumerate(_LEXICOGRAPHER_FILES)
    )
    return "".join(rows).encode()


def universal_tagset() -> bytes:
    """``en-ptb.map``: lines of a Penn Treebank tag and its universal one, a tab between."""
    tags = sorted((fine, coarse) for coarse, many in _UNIVERSAL_TAGS.items() for fine in many.split())
    return "".join(f"{fine}\t{coarse}\n" for fine, coarse in tags).encode()


def index_sense(files: Mapping[str, bytes]) -> bytes:
    """Lines of sense key, synset offset, sense number and tag count, in order (senseidx(5WN), wndb(5WN)).

    Args:
        files: the bytes of ``data.*`` and ``index.*`` of the four parts of speech, and of ``cntlist.rev``.

    Raises:
        UserError: a line is not as wndb(5WN) says.
    """
    rows = set()
    try:
        counts = {key: int(count) for key, _, count in _lines(files["cntlist.rev"])}
        for part in PARTS_OF_SPEECH:
            # A line: lemma, pos, synset_cnt, p_cnt, pointers, sense_cnt, tagsense_cnt, offsets.
            numbers = {
                (lemma, offset): number
                for lemma, pos, num_synsets, *more in _lines(files[f"index.{part}"])
                for number, offset in enumerate(more[-int(num_synsets) :], 1)
            }
            # A line: offset, lex_filenum, ss_type, count, words with lex_id, count, pointers, | gloss.
            synsets = {fields[0]: fields for fields in _lines(files[f"data.{part}"])}
            for offset, fields in synsets.items():
                _, file_number, kind, *_ = fields
                words, head = _words(fields), ":"
                if kind == "s":
                    # A satellite names the head of its cluster.
                    head_offset = fields[fields.index("&", 4 + 2 * len(words)) + 1]
                    head = "{}:{:02d}".format(*_words(synsets[head_offset])[0])
                for lemma, lex_id in words:
                    key = f"{lemma}%{_TYPE_NUMBERS[kind]}:{file_number}:{lex_id:02d}:{head}"
                    rows.add(f"{key} {offset} {numbers[lemma, offset]} {counts.get(key, 0)}\n")
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(
            f"WordNet's files are not as expected ({error!r}): they are damaged, or of another release"
        ) from error
    # NLTK searches the file by halving, in the order of characters. A synset may have one word in two cases.
    return "".join(sorted(rows)).encode()


def _words(fields: List[str]) -> List[Tuple[str, int]]:
    """Lower-case lemma and lex_id of each word of a synset; an adjective may carry its place: "galore(ip)"."""
    end = 4 + 2 * int(fields[3], 16)
    return [(fields[i].lower().partition("(")[0], int(fields[i + 1], 16)) for i in range(4, end, 2)]


def _lines(content: bytes) -> List[List[str]]:
    """The fields of each line before its gloss, without the licence, whose lines begin with two spaces."""
    lines = content.decode().split("\n")
    return [line.partition("|")[0].split() for line in lines if line and not line.startswith("  ")]


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, text and numbers; the only thing it will call is ``set``."""

    def find_class(self, module, name):
        if name == "set" and module in ("builtins", "__builtin__"):
            return set
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, only set is allowed")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("it asks for something outside itself")


def tagger_files(content: bytes) -> Dict[str, bytes]:
    """The perceptron tagger as NLTK's three JSON files, by name.

    Args:
        content: the pickle of (weights by feature and tag, tag by unambiguous word, tags), of which nothing but
            containers, text and numbers is accepted.

    Raises:
        UserError: it is something else.
    """
    try:
        loaded = _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:
        # A pickle that is not one can fail in any way.
        raise UserError(f"the tagger's pickle is refused ({error})") from error
    weights, tags_of_words, tags = _checked_tagger(loaded)
    parts = {"weights": weights, "tagdict": tags_of_words, "classes": sorted(tags)}
    return {
        f"averaged_perceptron_tagger_eng.{name}.json": json.dumps(part, sort_keys=True).encode()
        for name, part in parts.items()
    }


def _checked_tagger(loaded: Any) -> Tuple[dict, dict, set]:
    is_right = (
        isinstance(loaded, tuple)
        and [type(part) for part in loaded] == [dict, dict, set]
        and all(isinstance(tag, str) for tag in loaded[2])
        and all(isinstance(word, str) and tag in loaded[2] for word, tag in loaded[1].items())
        and all(
            isinstance(feature, str)
            and isinstance(scores, dict)
            and all(tag in loaded[2] and isinstance(x, (int, float)) and math.isfinite(x) for tag, x in scores.items())
            for feature, scores in loaded[0].items()
        )
    )
    if not is_right:
        raise UserError("the tagger's pickle is refused: it is not (weights, words, tags)")
    return loaded
