"""``fastadv average``: parsing only. What it runs is `fastadv.encoder.weights.averaging`."""

import argparse
import sys

from fastadv.cli.parts import add_command
from fastadv.errors import UserError


def add_average(commands) -> None:
    """Adds the subcommand."""
    about = "average the parameters of two classifiers of one architecture, with one weight or a sweep of them"
    parser = add_command(commands, "average", _average, about)
    parser.add_argument(
        "--model", required=True, action="append", help="a folder of a trained classifier; give --model twice"
    )
    parser.add_argument(
        "--weight",
        required=True,
        nargs="+",
        type=float,
        metavar="WEIGHT",
        help="share of the first model, from 0 to 1; the second has the rest",
    )
    parser.add_argument("--out", required=True, help="a folder; each average is a model OUT/weight-WEIGHT")


def _average(arguments: argparse.Namespace) -> None:
    from fastadv.encoder.weights.averaging import average_classifiers, average_folders, check_averageable

    if len(arguments.model) != 2:
        raise UserError(f"average: --model is given {len(arguments.model)} times, expected twice")
    first, second = arguments.model
    if arguments.dry_run:
        folders = average_folders(arguments.out, arguments.weight)
        check_averageable(first, second)
        print(f"would write the averages of {first} and {second} into {', '.join(map(str, folders))}")
        return
    for folder in average_classifiers(first, second, arguments.weight, arguments.out, sys.stderr.isatty()):
        print(folder)
