"""Word sets from end to end: vectors read, fitted where that is asked for, sets written, and what came of it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

from tqdm import tqdm

from fastadv import __version__
from fastadv.evaluation.resources.counter_fitting import CounterFitting
from fastadv.evaluation.resources.word_sets_build import (
    WordSetSettings,
    build_word_sets,
    choose_words,
    fit_to_wordnet,
    overlap,
    sample_lines,
)
from fastadv.evaluation.resources.word_vectors import WordVectors
from fastadv.evaluation.resources.wordnet import Lexicon


def make_word_sets(
    vectors: str | Path,
    out: Path,
    wordnet: Any,
    settings: WordSetSettings,
    has_fitting: bool = False,
    vectors_out: Optional[Path] = None,
    compared: Optional[Mapping[str, Sequence[str]]] = None,
    progress: bool = False,
) -> Iterator[str]:
    """Makes the files, and gives lines to be shown as it goes.

    Args:
        vectors: as `WordVectors.load`.
        wordnet: NLTK's reader (`open_wordnet`).
        has_fitting: counter-fit the vectors to WordNet first.
        vectors_out: where the vectors go that the sets are neighbours in.
        compared: synonyms of somebody else.
    """
    read = WordVectors.load(vectors)
    words = choose_words(read, lambda vocabulary: Lexicon(wordnet, vocabulary), settings.max_words)
    chosen, lexicon = read.of(words), Lexicon(wordnet, words)
    yield f"{vectors}: {len(words):,} words of {len(read.words):,}, {chosen.vectors.shape[1]} numbers each"
    source: dict = {"vectors": str(vectors), "made_by": f"fastadv {__version__}", "antonyms": "WordNet 3.0"}
    if has_fitting:
        fitting = CounterFitting()
        source["counter_fitting"] = {**asdict(fitting), "to": "WordNet 3.0"}
        with tqdm(total=fitting.num_steps, desc="counter-fitting", unit="step", disable=not progress) as bar:

            def show(step: int, loss: float) -> None:
                bar.set_postfix_str(f"sum {loss:.0f}")
                bar.update()

            chosen = fit_to_wordnet(chosen, lexicon, settings, fitting, show)
    with tqdm(total=len(words), desc="neighbours", unit="word", disable=not progress) as bar:
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
