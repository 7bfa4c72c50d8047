"""What the subcommands of the command line share: their parser, and checks of models and places."""

import argparse
import os
import sys
from pathlib import Path
from typing import Callable, Optional

from fastadv.config.commands import Encoding
from fastadv.errors import UserError
from fastadv.files.disk import check_folder


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{self.prog.partition(' ')[2] or 'command line'}: {message}")


def add_command(commands, name: str, run: Callable, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.add_argument("--dry_run", action="store_true", help="check what was given, print the plan, and end")
    parser.set_defaults(run=run)
    return parser


def run_or_describe(run, arguments: argparse.Namespace) -> dict | None:
    """``run.run()``, or with ``--dry_run`` a check and a line of what it would do, and None."""
    if arguments.dry_run:
        run.check()
        print(run.describe())
        return None
    return run.run(progress=True)


def check_json(path: Optional[str]) -> Optional[Path]:
    """The file of ``--out``; None where none is wanted."""
    if path is None:
        return None
    out = Path(path).expanduser()
    if out.suffix != ".json" or out.is_dir():
        raise UserError(f"--out {path!r}: expected a file that ends in .json")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out {path!r}: expected a file in a folder that exists and can be written")
    return out


def check_out_folder(name: Optional[str]) -> Optional[Path]:
    """A folder that is there or can be made; None where none is wanted."""
    if name is None:
        return None
    out = Path(name).expanduser()
    check_folder(out, f"--out {name!r}")
    return out


def into(out: Optional[Path]) -> str:
    """The end of a plan: where the results would go."""
    return "" if out is None else f"; into {out}"


def where(record: dict) -> str:
    """On which device the models of a record computed."""
    return f"on {record['models'][0]['device']}"


def say_warnings(warnings) -> None:
    for warning in warnings:
        print(f"fastadv: warning: {warning}", file=sys.stderr)


def check_encoder(model: str, options: Encoding) -> None:
    """Refuses a model or a device that is not there, or cannot be opened as asked, before any weight is read."""
    from fastadv.distributed.devices import named_device
    from fastadv.encoder.weights.source import find_model

    named_device(options.device)
    find_model(model).check_encoding(options)


def load_encoder(model: str, options: Encoding):
    from fastadv.encoder import Encoder

    return Encoder.from_pretrained(model, **options.of_encoder)


def encoder_words(model: str, options: Encoding) -> str:
    own = "the model's own"
    prompt = own if options.prompt is None else repr(options.prompt)
    prompt = prompt if options.prompt_name is None else f"the model's {options.prompt_name!r}"
    return f"{model} (pooling: {options.pooling or own}, max_length: {options.max_length or own}, prompt: {prompt})"
