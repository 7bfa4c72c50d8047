"""What NLTK wants beside the files that packages hold: made from them, in NLTK's formats.

WordNet's ``lexnames`` and ``index.sense`` (Debian leaves both out), the perceptron tagger as JSON, and the mapping of
the Penn Treebank's tags to the twelve universal ones.
"""

import io
import json
import math
import pickle
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

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


class _Synset(NamedTuple):
    kind: str
    file_number: int
    words: Tuple[Tuple[str, int], ...]
    """lower-case lemma and lex_id of each"""
    head: int
    """offset of the cluster's head in data.adj, for a satellite"""


def index_sense(files: Mapping[str, bytes]) -> bytes:
    """Lines of sense key, synset offset, sense number and tag count, in order (senseidx(5WN), wndb(5WN)).

    Args:
        files: the bytes of ``data.*`` and ``index.*`` of the four parts of speech, and of ``cntlist.rev``.

    Raises:
        UserError: a line is not as wndb(5WN) says.
    """
    try:
        counts = _tag_counts(files["cntlist.rev"].decode())
        rows = []
        for part in PARTS_OF_SPEECH:
            synsets = _synsets(files[f"data.{part}"].decode())
            numbers = _sense_numbers(files[f"index.{part}"].decode())
            for offset, synset in synsets.items():
                for lemma, lex_id in synset.words:
                    key = _sense_key(lemma, lex_id, synset, synsets)
                    rows.append(f"{key} {offset:08d} {numbers[lemma, offset]} {counts.get(key, 0)}\n")
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(
            f"WordNet's files are not as expected ({error!r}): they are damaged, or of another release"
        ) from error
    # NLTK searches the file by halving, in the order of characters. A synset may have one word in two cases.
    return "".join(sorted(set(rows))).encode()


def _sense_key(lemma: str, lex_id: int, synset: _Synset, synsets: Mapping[int, _Synset]) -> str:
    head = ":"
    if synset.kind == "s":
        head_lemma, head_id = synsets[synset.head].words[0]
        head = f"{head_lemma}:{head_id:02d}"
    return f"{lemma}%{_TYPE_NUMBERS[synset.kind]}:{synset.file_number:02d}:{lex_id:02d}:{head}"


def _synsets(data: str) -> Dict[int, _Synset]:
    """Synsets by offset. A line: offset, lex_filenum, ss_type, count, words with lex_id, count, pointers, | gloss."""
    synsets = {}
    for line in _lines(data):
        fields = line.split("|", 1)[0].split()
        num_words = int(fields[3], 16)
        words = tuple(
            # An adjective may carry a marker of its place: "galore(ip)".
            (fields[4 + 2 * i].lower().partition("(")[0], int(fields[5 + 2 * i], 16))
            for i in range(num_words)
        )
        pointers = fields[5 + 2 * num_words :]
        kind, head = fields[2], -1
        if kind == "s":
            at = pointers.index("&")
            head = int(pointers[at + 1])
        synsets[int(fields[0])] = _Synset(kind, int(fields[1]), words, head)
    return synsets


def _sense_numbers(index: str) -> Dict[Tuple[str, int], int]:
    """By lemma and offset. A line: lemma, pos, synset_cnt, p_cnt, pointers, sense_cnt, tagsense_cnt, offsets."""
    numbers = {}
    for line in _lines(index):
        fields = line.split()
        offsets: List[str] = fields[-int(fields[2]) :]
        numbers.update({(fields[0], int(offset)): number for number, offset in enumerate(offsets, 1)})
    return numbers


def _tag_counts(rows: str) -> Dict[str, int]:
    return {key: int(count) for key, _, count in (line.split() for line in rows.splitlines())}


def _lines(text: str) -> List[str]:
    """Without the licence, whose lines begin with two spaces."""
    return [line for line in text.split("\n") if line and not line.startswith("  ")]


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
