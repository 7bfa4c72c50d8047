"""What ``fastadv train --help`` prints: every key of a configuration, by stage, with its type, bounds and default."""

import argparse
import inspect
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin

from docstring_parser import parse, parse_from_object

from fastadv.config.bounds import Name
from fastadv.config.schema import SECTIONS, Config, field_types
from fastadv.config.values import describe, show
from fastadv.launch.load import OPTIONS
from fastadv.objectives import resolve_objective

_INTRODUCTION = """\
Trains a sentence encoder. Values come from the defaults, over them from the files, each over those
before it, over them from the command line. A key of a section `train:` in a file is --train.KEY here;
null, true and false are written as in YAML. The same command goes on from the newest checkpoint in train.output_dir."""


def named_objective(argv: list[str]) -> str:
    """The objective among a command's arguments, whose options the help then shows."""
    for argument, following in zip(argv, [*argv[1:], ""]):
        if argument.startswith("--objective="):
            return argument.partition("=")[2]
        if argument == "--objective" and following not in ("-h", "--help", ""):
            return following
    return Config.objective


def help_text(objective: str = Config.objective) -> str:
    """The help, with the options of the named objective.

    Raises:
        UserError: no such objective.
    """
    kind, types = resolve_objective(objective), field_types()
    parser = argparse.ArgumentParser(
        prog="fastadv train",
        usage="fastadv train [--config FILE ...] [--KEY VALUE ...] [--dry_run] [--print_config]",
        description=_INTRODUCTION,
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file with any of the keys below; may be given again")
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="check all that can be checked without weights, print the plan and what it would cost, end; with it may "
        "be given --card h100 (docs/scaling.md has the names), --num_gpus 8, --link ib400, --mean_length 22 (tokens), "
        "--num_sentences 1000000, --utilisation 0.35",
    )
    parser.add_argument("--print_config", action="store_true", help="print the whole configuration as YAML, end")
    group = parser.add_argument_group("objective: what is trained")
    _add(group, "objective", types["objective"], Config.objective, _said_of(Config)["objective"])
    for section, stage in SECTIONS.items():
        group = parser.add_argument_group(f"{section}: {stage.__doc__.splitlines()[0].rstrip('.')}")
        about = _said_of(stage)
        for key in fields(stage):
            if f"{section}.{key.name}" in SECTIONS:
                continue
            default = key.default_factory() if key.default is MISSING else key.default
            _add(group, f"{section}.{key.name}", types[f"{section}.{key.name}"], default, about[key.name])
    group = parser.add_argument_group(f"{OPTIONS}: those of {objective}")
    about = {param.arg_name: param.description for owner in kind.__mro__ for param in parse(owner.__doc__ or "").params}
    from fastadv.objectives.options import constructor_options

    for name, option in constructor_options(kind).items():
        _add(group, f"{OPTIONS}.{name}", option.annotation, option.default, about.get(name) or "")
    return parser.format_help()


def _said_of(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass."""
    return {param.arg_name: param.description for param in parse_from_object(kind).params}


def _add(group: Any, key: str, hint: Any, default: Any, about: str) -> None:
    is_choice = get_origin(hint) is Literal
    kind = "" if is_choice else f"type: {describe(hint).replace(describe(Name), 'text')}; "
    shown = f"default: {default if isinstance(default, str) else show(default)}"
    if default is inspect.Parameter.empty:
        shown = "required"
    group.add_argument(
        f"--{key}",
        # Choices are shown alone: argparse would check what it is given here.
        metavar=f"{{{','.join(map(str, get_args(hint)))}}}" if is_choice else key.rpartition(".")[2].upper(),
        help=f"{about} ({kind}{shown})".replace("%", "%%"),
    )
