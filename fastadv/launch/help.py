"""What ``fastadv train --help`` prints: every key of a configuration, by stage, with its type and default."""

import argparse

from fastadv.launch.load import OPTIONS, build_parser, objective_class

_INTRODUCTION = """\
Trains a sentence encoder. Values come from the defaults, over them from the file, over them from the
command line. A key of a section `train:` in the file is --train.KEY here; null, true and false are written
as in YAML. The same command goes on from the newest checkpoint in train.output_dir."""


def named_objective(argv: list[str]) -> str:
    """The objective among a command's arguments, whose options the help then shows."""
    for argument, following in zip(argv, [*argv[1:], ""]):
        if argument.startswith("--objective="):
            return argument.partition("=")[2]
        if argument == "--objective" and following not in ("-h", "--help", ""):
            return following
    return "robustsentembed"


def help_text(objective: str = "robustsentembed") -> str:
    """The help, with the options of the named objective.

    Raises:
        UserError: no such objective.
    """
    parser = build_parser(
        objective_class(objective),
        has_help=True,
        prog="fastadv train",
        usage="fastadv train [--config FILE] [--KEY VALUE ...] [--dry_run] [--print_config]",
        description=_INTRODUCTION,
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file with any of the keys below")
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="check all that can be checked without weights, print the plan and what it would cost, end; with it may "
        "be given --card h100 (docs/scaling.md has the names), --num_gpus 8, --link ib400, --mean_length 22 (tokens), "
        "--num_sentences 1000000, --utilisation 0.35",
    )
    parser.add_argument("--print_config", action="store_true", help="print the whole configuration as YAML, end")
    for action in parser._actions:
        if action.dest in parser.groups:
            # jsonargparse would read a file of its own for each section; ours are sections of one file.
            action.help = argparse.SUPPRESS
        # It would append to a list by `--key+`, too.
        action.option_strings = [word for word in action.option_strings if not word.endswith("+")]
    titles = {"Config": "objective: what is trained", OPTIONS: f"{OPTIONS}: those of {objective}"}
    for name, group in parser.groups.items():
        group.title = titles.get(name, f"{name}: {group.title}")
    return parser.format_help()
