"""Sentences before and after words are replaced by word sets, to be read: do they read as English, and say the same?

Synonyms are drawn as ``perturbation.text`` with ``edits: [synonyms]`` draws them, 10 to 30 % of the words and at least
one; sentences in which none of the drawn words has a synonym are left out. Antonyms are drawn as the flip ``antonym``.

    python -m bench.word_sets_sample --word_sets word_sets.json --seed 0
"""

import argparse
import sys
from typing import Iterator, Optional, Sequence

import numpy as np

from fastadv.cli.flags import whole_number
from fastadv.config.flag import LARGEST_SEED
from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.sources.find import iterate_sentences
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError


def changed_sentences(
    texts: Sequence[str], word_sets: WordSets, edit: str, seed: int, word_share: tuple[float, float] = (0.1, 0.3)
) -> Iterator[tuple[str, str]]:
    """Sentences in a drawn order, each with its first proposal, where that is another text.

    Args:
        edit: ``synonyms`` or ``antonym``.
    """
    proposer = Proposer(make_edits([edit], "edit", word_sets), 1, word_share, seed=seed, side=edit)
    for row in np.random.default_rng(seed).permutation(len(texts)).tolist():
        (proposal,) = proposer.of(row, (texts[row],), epoch=0)
        if proposal is not None:
            yield texts[row], proposal[0]


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Sentences before and after words are replaced by word sets.")
    parser.add_argument("--word_sets", required=True, help="a file of fastadv word-sets")
    parser.add_argument("--data", default="demo:imdb-dev", help="sentences (default: demo:imdb-dev)")
    parser.add_argument("--seed", type=whole_number(0, LARGEST_SEED), default=0, help="of all draws (default: 0)")
    parser.add_argument("--num_sentences", type=whole_number(1), default=50, help="with synonyms (default: 50)")
    parser.add_argument("--num_antonyms", type=whole_number(0), default=30, help="with an antonym (default: 30)")
    arguments = parser.parse_args(argv)
    try:
        word_sets = WordSets.load(arguments.word_sets)
        texts = list(iterate_sentences(arguments.data))
    except UserError as error:
        print(f"word_sets_sample: {error}", file=sys.stderr)
        return 2
    for edit, count in (("synonyms", arguments.num_sentences), ("antonym", arguments.num_antonyms)):
        print(f"{edit}:")
        changed = changed_sentences(texts, word_sets, edit, arguments.seed)
        for number, (before, after) in zip(range(1, count + 1), changed):
            print(f"{number:3} {before}\n    {after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
