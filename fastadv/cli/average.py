"""``fastadv average``: parsing only. What it runs is `fastadv.encoder.weights.averaging`."""

import argparse

from fastadv.cli.flags import add_flags, read_settings
from fastadv.cli.parts import add_command
from fastadv.config.commands import AverageOptions
from fastadv.errors import UserError


def add_average(commands) -> None:
    """Adds the subcommand."""
    about = "average the parameters of two classifiers of one architecture, with one weight or a sweep of them"
    add_flags(add_command(commands, "average", _average, about), AverageOptions)


def _average(arguments: argparse.Namespace) -> None:
    from fastadv.encoder.weights.averaging import average_classifiers, average_folders, check_averageable

    options = read_settings(arguments, AverageOptions)
    if len(options.models) != 2:
        raise UserError(f"average: --model is given {len(options.models)} times, expected twice")
    first, second = options.models
    if arguments.dry_run:
        folders = average_folders(options.out, options.weights)
        check_averageable(first, second)
        print(f"would write the averages of {first} and {second} into {', '.join(map(str, folders))}")
        return
    for folder in average_classifiers(first, second, options.weights, options.out, True):
        print(folder)
