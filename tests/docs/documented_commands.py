"""The command lines that the documentation prints, and the check of one without running it.

Each is read by the parser of the program it names, so that an unknown option, a wrong choice, a missing option, module,
target or config is an error. Files that a reader would bring are not looked for.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Iterator, NamedTuple
from unittest import mock

from fastadv.cli.attack import check_kind
from fastadv.cli.main import _build_parser
from fastadv.dry_run import PlanOptions
from fastadv.errors import UserError
from fastadv.launch.load import load_config
from fastadv.train import read_arguments

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
PROGRAMS = ("fastadv", "make", "deepspeed", "torchrun", "mpirun", "srun", "python")
_TRAIN = "fastadv/train.py"
# What the pages call a config of the reader's own.
_READERS_CONFIG = "my.yaml"


class Wrong(AssertionError):
    """A command line that its program would refuse."""


class Command(NamedTuple):
    """A command line and where it stands."""

    place: str
    text: str


def commands_of(path: Path) -> list[Command]:
    """Of a page's fenced and indented blocks and its inline ``make`` and ``python -m``; of a config's comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        text = "\n".join(line[1:] if line.startswith("#") else "" for line in text.splitlines())
        text = re.sub(r"^ {2,3}(?=\S)", "    ", text, flags=re.MULTILINE)
    text = re.sub(r"[ \t]*\\\n\s*", " ", text)
    lines, variables = [], {}
    for number, line in _code_lines(text):
        if found := re.fullmatch(r"(\w+)=\"([^\"]*)\"", line.strip()):
            variables[found[1]] = found[2]
        elif is_command(line):
            line = re.sub(r"\$(\w+)", lambda used: variables.get(used[1], used[0]), line)
            lines.append((number, line.strip().removeprefix("$ ")))
    for found in re.finditer(r"`((?:\w+=\S+ )*(?:make|python -m)\s[^`]+)`", text):
        lines.append((text[: found.start()].count("\n") + 1, " ".join(found[1].split())))
    return [Command(f"{path.relative_to(ROOT)}:{number}", line) for number, line in sorted(lines)]


def _code_lines(text: str) -> Iterator[tuple[int, str]]:
    fence = None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip("` ")
        elif fence in ("", "bash", "sh", "shell", "console") or (fence is None and line.startswith("    ")):
            yield number, line


def is_command(line: str) -> bool:
    return re.match(rf"\s*(?:\$ )?(?:\w+=\S+ )*(?:{'|'.join(PROGRAMS)}) ", line) is not None


def check(text: str) -> None:
    """Raises ``Wrong`` where the program would refuse the line; runs nothing of it.

    Args:
        text: a line of a shell. What stands in square brackets may be left out of it, and is checked with the rest.
    """
    words = shlex.split(re.sub(r"\[(--[^\]]*)\]", r"\1", text), comments=True)
    while "=" in words[0]:
        del words[0]
    program, *arguments = words
    said = io.StringIO()
    try:
        with _in_root(), contextlib.redirect_stderr(said):
            _CHECKS[program](arguments)
    except (UserError, SystemExit) as error:
        raise Wrong(f"{text}: {error} {said.getvalue()}") from error


@contextlib.contextmanager
def _in_root() -> Iterator[None]:
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


def _require(condition: object, what: str) -> None:
    if not condition:
        raise UserError(what)


def _check_fastadv(arguments: list[str]) -> None:
    if arguments[:1] == ["train"]:
        _check_train(arguments[1:])
        return
    given = _build_parser().parse_args(arguments)
    if arguments[0] == "attack":
        check_kind(given)


def _check_train(arguments: list[str]) -> None:
    places = [number for number, word in enumerate(arguments) if word == _READERS_CONFIG]
    for number in places:
        arguments[number] = "configs/quickstart.yaml"
    _, settings = read_arguments(arguments)
    if "dry_run" in settings:
        PlanOptions.parse(settings)


def _check_script(arguments: list[str]) -> None:
    _require(arguments[:1] == [_TRAIN], f"{arguments[:1]}: expected {_TRAIN}")
    _check_train(arguments[1:])


def _check_deepspeed(arguments: list[str]) -> None:
    from deepspeed.launcher.runner import parse_args

    given = parse_args(arguments)
    _check_script([given.user_script, *given.user_args])


def _check_torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(arguments)
    _check_script([given.training_script, *given.training_script_args])


def _check_started(arguments: list[str]) -> None:
    """Options of Slurm and of Open MPI are not looked at: neither is part of what is installed."""
    _require("python" in arguments, "expected python, started by srun or mpirun")
    _check_python(arguments[arguments.index("python") + 1 :])


def _check_python(arguments: list[str]) -> None:
    if arguments[:1] != ["-m"]:
        _check_script(arguments)
        return
    name, *arguments = arguments[1:]
    if name == "pytest":
        for word in arguments:
            _require(word.startswith("-") or Path(word).exists(), f"{word}: no such file")
        return
    if name in ("venv", "pip"):
        return
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    _require(found, f"{name}: no such module")
    source = Path(found.origin).read_text(encoding="utf-8")
    _require(
        re.search(r"parse_|arguments_of", source), f"{name}: its arguments cannot be checked, since it has no parser"
    )
    left = _parsed_by(importlib.import_module(name).main, name, arguments)
    if left:
        # What a study does not know goes to the runs it starts.
        _require(".parse_args(" not in source, f"{name}: unrecognised {' '.join(left)}")
        load_config(None, left)


class _Parsed(Exception):
    """Raised where a program would go on from its arguments."""


def _parsed_by(main, name: str, arguments: list[str]) -> list[str]:
    """What of the arguments the parser of a ``main`` does not know. ``main`` ends where it has parsed."""
    parse = argparse.ArgumentParser.parse_known_args

    def stop(parser, args=None, namespace=None):
        raise _Parsed(parse(parser, args, namespace)[1])

    with (
        mock.patch("argparse.ArgumentParser.parse_known_args", stop),
        mock.patch("sys.argv", [name, *arguments]),
    ):
        try:
            main()
        except _Parsed as parsed:
            return parsed.args[0]
    raise UserError(f"{name}: ended before it parsed its arguments")


def _check_make(arguments: list[str]) -> None:
    makefile = Path("Makefile").read_text(encoding="utf-8")
    for word in arguments:
        variable, is_set, _ = word.partition("=")
        _require(
            not is_set or re.search(rf"^{re.escape(variable)} [?:]?=", makefile, re.MULTILINE),
            f"make: the Makefile has no variable {variable}",
        )
    # Lines with $(MAKE) run all the same under -n; this shell does nothing.
    done = subprocess.run(["make", "-n", "SHELL=true", *arguments], capture_output=True, text=True)
    _require(done.returncode == 0, done.stderr)


_CHECKS = {
    "fastadv": _check_fastadv,
    "make": _check_make,
    "deepspeed": _check_deepspeed,
    "torchrun": _check_torchrun,
    "mpirun": _check_started,
    "srun": _check_started,
    "python": _check_python,
}
