"""Word sets from word vectors and WordNet: which words there are, their synonyms, their antonyms, and a comparison.

METHODS, as the papers have them: synonyms are the 100 nearest neighbours of cosine 0.8 and more, in a counter-fitted
space less its mean and its 8 largest components; antonyms are WordNet's. Sets whose members can stand in a word's place
are checked in texts instead (`word_sets_checked.py`).
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from fastadv import __version__
from fastadv.config.commands import WordSetSettings
from fastadv.data.sources.find import iterate_sentences
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.resources.counter_fitting import CounterFitting, counter_fit
from fastadv.evaluation.resources.word_sets_checked import checked_word_sets
from fastadv.evaluation.resources.word_vectors import WordVectors
from fastadv.evaluation.resources.wordnet import Lexicon, pair_rows
from fastadv.files.progress import Bar

# ASCII, at least two letters, apostrophes and hyphens inside: what `fastadv.data.variants.word_sets.words_of` finds of
# English.
_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*")
_SAMPLE = (
    *("good", "bad", "film", "story", "boring", "funny", "terrible", "happy"),
    *("man", "women", "children", "walking", "quickly", "increase", "said", "company"),
)


def choose_words(vectors: WordVectors, lexicon_of: Callable[[Sequence[str]], Lexicon], max_words: int) -> List[str]:
    """The first ``max_words`` words of the vectors that look like English words and that WordNet knows.

    Args:
        lexicon_of: makes the lexicon of a vocabulary.
    """
    words: List[str] = []
    looks = [word for word in vectors.words if len(word) > 1 and _WORD.fullmatch(word)]
    # Looking a word up takes a while, and most files of vectors end in 300,000 names and slips.
    for begin in range(0, len(looks), max_words):
        lexicon = lexicon_of(looks[begin : begin + max_words])
        words += [word for word in looks[begin : begin + max_words] if lexicon.knows(word)]
        if len(words) >= max_words:
            break
    if len(words) < 2:
        raise UserError(
            f"WordNet knows {len(words)} of the {len(vectors.words):,} words of the vectors, expected 2 at least"
        )
    return words[:max_words]


def fit_to_wordnet(
    vectors: WordVectors,
    lexicon: Lexicon,
    sets: WordSetSettings,
    fitting: CounterFitting,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> WordVectors:
    """The vectors, less what is common to all, counter-fitted to WordNet's synonyms and antonyms."""
    space = vectors.without_common_parts(sets.num_components)
    together = np.array(pair_rows(lexicon.synonym_pairs(), vectors.index)).reshape(-1, 2)
    cosines = np.einsum("pd,pd->p", space.directions[together[:, 0]], space.directions[together[:, 1]])
    antonyms = {tuple(sorted((word, other))) for word in vectors.words for other in lexicon.antonyms(word)}
    apart = np.array(pair_rows(antonyms, vectors.index)).reshape(-1, 2)
    return counter_fit(space, together[cosines >= sets.min_pair_cosine], apart, fitting, on_step)


def build_word_sets(
    vectors: WordVectors,
    lexicon: Lexicon,
    sets: WordSetSettings,
    source: Mapping[str, object],
    on_words: Callable[[int], None] = lambda count: None,
) -> WordSets:
    """Synonyms and antonyms of the vectors' words; a word's antonyms are never among its synonyms.

    Args:
        source: noted in the file, with the settings.
        on_words: is told how many words each step has brought.
    """
    space = vectors.without_common_parts(sets.num_components)
    antonyms = {word: lexicon.antonyms(word) for word in vectors.words}
    synonyms: Dict[str, List[str]] = {}
    for word, (near, _) in zip(space.words, space.neighbours(sets.num_neighbours, sets.min_cosine, on_words)):
        opposite = set(antonyms[word])
        found = [space.words[row] for row in near if space.words[row] not in opposite]
        if found:
            synonyms[word] = found
    return WordSets(
        synonyms,
        {word: found for word, found in antonyms.items() if found},
        {**source, "num_words": len(vectors.words), **asdict(sets)},
    )


class Overlap(NamedTuple):
    """How far sets agree with others, over the words that both have."""

    num_words: int
    precision: float
    """of our members that the others' vocabulary has, the share that is in the others' set"""
    recall: float
    """of the others' members that our vocabulary has, the share that is in ours"""
    ours_per_word: float
    theirs_per_word: float


def overlap(ours: Mapping[str, Sequence[str]], theirs: Mapping[str, Sequence[str]]) -> Overlap:
    """Compares sets by members. A vocabulary is all words of some sets, and no word counts as its own synonym."""
    our_words, their_words = (set(sets).union(*sets.values()) if sets else set() for sets in (ours, theirs))
    num_words = common = num_ours = num_theirs = 0
    for word in set(theirs) & our_words:
        mine = (set(ours.get(word, ())) & their_words) - {word}
        other = (set(theirs[word]) & our_words) - {word}
        num_words += 1
        common += len(mine & other)
        num_ours += len(mine)
        num_theirs += len(other)
    return Overlap(
        num_words,
        common / num_ours if num_ours else float("nan"),
        common / num_theirs if num_theirs else float("nan"),
        num_ours / num_words if num_words else float("nan"),
        num_theirs / num_words if num_words else float("nan"),
    )


def read_plain_sets(path: str | Path) -> Mapping[str, Sequence[str]]:
    """Sets to compare with: JSON of word → list of words, as others publish them, in lower case.

    Raises:
        UserError: missing, or something else.
    """
    try:
        content = json.loads(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise UserError(f"--compare {str(path)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"--compare {str(path)!r}: not JSON in UTF-8 ({error})") from error
    try:
        return WordSets(content, {}).synonyms
    except UserError as error:
        raise UserError(f"--compare {str(path)!r}: {error}") from error


def sample_lines(sets: WordSets, words: Optional[Sequence[str]] = None, max_members: int = 8) -> List[str]:
    """Some words' sets, a line each, to be looked at: numbers alone say little of synonyms."""
    lines = []
    for word in words or _SAMPLE:
        parts = [", ".join(of.get(word, ())[:max_members]) or "none" for of in (sets.synonyms, sets.antonyms)]
        lines.append(f"{word}: {parts[0]} | not: {parts[1]}")
    return lines


def make_word_sets(
    vectors: str | Path,
    out: Path,
    wordnet: Any,
    settings: WordSetSettings,
    has_fitting: bool = False,
    vectors_out: Optional[Path] = None,
    compared: Optional[Mapping[str, Sequence[str]]] = None,
    progress: bool = False,
    texts: Optional[str] = None,
    encoder: str = "demo:minilm",
    attack_data: Path = Path(),
) -> Iterator[str]:
    """Makes the files, and gives lines to be shown as it goes.

    Args:
        vectors: as `WordVectors.load`.
        wordnet: NLTK's reader (`open_wordnet`).
        has_fitting: counter-fit the vectors to WordNet first.
        vectors_out: where the vectors go that the sets are neighbours in.
        compared: synonyms of somebody else.
        texts: where sets of WordNet's synonyms and antonyms are checked (`CheckedSets`), instead of neighbours.
        encoder: a model that compares sentences of ``texts``; "none": sentences are not compared.
        attack_data: the folder that ``wordnet`` was opened in.
    """
    from fastadv.encoder import Encoder

    read = WordVectors.load(vectors)
    words = choose_words(read, lambda vocabulary: Lexicon(wordnet, vocabulary), settings.max_words)
    chosen, lexicon = read.of(words), Lexicon(wordnet, words)
    plain = chosen
    yield f"{vectors}: {len(words):,} words of {len(read.words):,}, {chosen.vectors.shape[1]} numbers each"
    source: dict = {"vectors": str(vectors), "made_by": f"fastadv {__version__}", "antonyms": "WordNet 3.0"}
    if has_fitting:
        fitting = CounterFitting()
        source["counter_fitting"] = {**asdict(fitting), "to": "WordNet 3.0"}
        with Bar(total=fitting.num_steps, desc="counter-fitting", unit="step", disable=not progress) as bar:

            def show(step: int, loss: float) -> None:
                bar.set_postfix_str(f"sum {loss:.0f}")
                bar.update()

            chosen = fit_to_wordnet(chosen, lexicon, settings, fitting, show)
    if texts is not None:
        judge = None if encoder == "none" else Encoder.from_pretrained(encoder)
        space = plain.without_common_parts(settings.num_components)
        sets = checked_word_sets(list(iterate_sentences(texts)), judge, space, wordnet, attack_data, progress)
        # Counter-fitted vectors are only written out: these sets are of the plain ones.
        source.pop("counter_fitting", None)
        sets.source = {**source, **sets.source, "texts": texts, "encoder": encoder}
    else:
        with Bar(total=len(words), desc="neighbours", unit="word", disable=not progress) as bar:
            sets = build_word_sets(chosen, lexicon, settings, source, bar.update)
    sets.save(out)
    total = sum(map(len, sets.synonyms.values()))
    yield (
        f"{out}: {len(sets.synonyms):,} words with synonyms ({total / max(1, len(sets.synonyms)):.1f} each), "
        f"{len(sets.antonyms):,} with antonyms"
    )
    if vectors_out is not None:
        chosen.without_common_parts(settings.num_components).save(vectors_out)
        yield f"{vectors_out}: the vectors, less what is common to all"
    yield from (f"  {line}" for line in sample_lines(sets))
    if compared is not None:
        found = overlap(sets.synonyms, compared)
        yield (
            f"beside the sets given, over {found.num_words:,} words: precision {found.precision:.3f}, "
            f"recall {found.recall:.3f}, {found.ours_per_word:.1f} a word against {found.theirs_per_word:.1f}"
        )
