"""What the subcommands of the command line share: their parser, the options of an encoder, and checks."""

import argparse
import os
import sys
from pathlib import Path
from typing import Callable, Optional

from fastadv.cli.flags import whole_number
from fastadv.config.flag import LARGEST_SEED
from fastadv.errors import UserError

_CACHE_DIR = "~/.cache/fastadv"


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{self.prog.partition(' ')[2] or 'command line'}: {message}")


def add_command(commands, name: str, run: Callable, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.add_argument("--dry_run", action="store_true", help="check what was given, print the plan, and end")
    parser.set_defaults(run=run)
    return parser


def add_encoder_options(
    parser: argparse.ArgumentParser,
    max_length: Optional[int],
    pooling: Optional[str],
    is_one: bool = True,
    about: str = "a folder, a Hub name, or demo:minilm",
) -> None:
    """``--model``, ``--pooling``, ``--max_length`` and ``--batch_size``; ``is_one`` False: ``--model`` once a model."""
    own = "the model's own"
    if is_one:
        parser.add_argument("--model", required=True, help=about)
    else:
        parser.add_argument("--model", required=True, action="append", help=f"{about}; once for each model")
    parser.add_argument(
        "--pooling",
        choices=("cls", "mean", "first_last"),
        default=pooling,
        help=f"how token states become one vector (default: {pooling or own})",
    )
    parser.add_argument(
        "--max_length",
        type=whole_number(3),
        default=max_length,
        help=f"tokens a sentence is cut to, special tokens included (default: {max_length or own})",
    )
    parser.add_argument("--batch_size", type=whole_number(1), default=64, help="sentences a forward pass (default: 64)")


def add_max_length(parser: argparse.ArgumentParser) -> None:
    """``--max_length`` of classifiers."""
    parser.add_argument("--max_length", type=whole_number(3), help="tokens a text is cut to (default: the model's own)")


def add_seed(parser: argparse.ArgumentParser, about: str, default: int = 0) -> None:
    """``--seed``, of ``about``."""
    number = whole_number(0, LARGEST_SEED)
    parser.add_argument("--seed", type=number, default=default, help=f"of {about} (default: {default})")


def run_or_describe(run, arguments: argparse.Namespace) -> dict | None:
    """``run.run()``, or with ``--dry_run`` a check and a line of what it would do, and None."""
    if arguments.dry_run:
        run.check()
        print(run.describe())
        return None
    return run.run(progress=sys.stderr.isatty())


def add_cache_dir(parser, what: str) -> None:
    """``--cache_dir``, of ``what``."""
    parser.add_argument(
        "--cache_dir", default=_CACHE_DIR, help=f"where {what} are kept for the next run (default: {_CACHE_DIR})"
    )


def check_json(path: str) -> Path:
    out = Path(path).expanduser()
    if out.suffix != ".json" or out.is_dir():
        raise UserError(f"--out {path!r}: expected a file that ends in .json")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out {path!r}: expected a file in a folder that exists and can be written")
    return out


def check_out_folder(name: str) -> Path:
    """A folder that is there or can be made."""
    out = Path(name).expanduser()
    nearest = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise UserError(f"--out {name!r}: {nearest} is no folder that can be written to")
    return out


def check_model(arguments, model: Optional[str] = None) -> None:
    """Refuses a model that is not there, too short, or not pooled as named or known, before any weight is read.

    Args:
        model: one of several; None: the one of ``--model``.
    """
    from fastadv.encoder.weights.source import find_model

    source = find_model(arguments.model if model is None else model)
    source.check_max_length(arguments.max_length)
    source.choose_pooling(arguments.pooling)


def load_encoder(arguments, model: Optional[str] = None):
    from fastadv.encoder import Encoder

    name = arguments.model if model is None else model
    return Encoder.from_pretrained(name, pooling=arguments.pooling, max_length=arguments.max_length)


def encoder_words(arguments, model: Optional[str] = None) -> str:
    own, name = "the model's own", arguments.model if model is None else model
    return f"{name} (pooling: {arguments.pooling or own}, max_length: {arguments.max_length or own})"
