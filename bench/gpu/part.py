"""What every part of gpu.sh has: options, a time limit, and a JSON file that is whole after every row."""

import argparse
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from fastadv.files.json_file import read_json, write_json


class Part:
    """Rows of results, each written when it is there: what is killed leaves what it has.

    Args:
        name: of the command, and of the JSON file.
        needs: packages besides torch and triton, without which the part ends with one line.
        choices: values of a further option ``--ops``, whose value is then the file's name.

    Attributes:
        dry: whether it runs on a CPU, at sizes that say nothing about speed.
        device: "cpu" or "cuda".
        folder: of the JSON files of all parts.
        facts: about the device, for the head of the file.
    """

    def __init__(self, name: str, needs: Sequence[str] = (), choices: Sequence[str] = ()):
        parser = argparse.ArgumentParser(prog=f"bench.gpu.{name}")
        parser.add_argument("--dry", action="store_true", help="on a CPU, in Triton's interpreter, at tiny sizes")
        parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the results (runs/gpu)")
        parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further row begins")
        if choices:
            parser.add_argument("--ops", choices=choices, default=choices[0])
        options = parser.parse_args()
        self.ops = getattr(options, "ops", None)
        self.dry, self.folder, self._limit_s = options.dry, options.out, options.seconds
        self.device = "cpu" if self.dry else "cuda"
        self._start, self._path = time.perf_counter(), self.folder / f"{self.ops or name}.json"
        self._results: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self._is_complete = True
        missing = [package for package in needs if importlib.util.find_spec(package) is None]
        if missing:
            sys.exit(f"bench.gpu.{name}: needs {', '.join(missing)}, not installed here")
        if not self.dry and not torch.cuda.is_available():
            sys.exit(f"bench.gpu.{name}: torch sees no GPU; --dry runs it on a CPU")
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def is_late(self, share: float = 1.0) -> bool:
        """Whether so much of the time is over; at the whole of it, what is left out is noted."""
        is_late = self.seconds > share * self._limit_s
        self._is_complete &= not (is_late and share == 1.0)
        return is_late

    def row(self, measure: Callable[[], dict[str, Any]], **what: Any) -> dict[str, Any]:
        """A row: ``what`` it is of, and what ``measure`` gives, or the ``error`` that it raised."""
        try:
            found = measure()
        except Exception as error:
            traceback.print_exc()
            found = {"error": first_line(error)}
        self._results.append({**what, **found})
        self.write()
        return self._results[-1]

    def write(self, is_complete: bool = False) -> None:
        """The file as it is now."""
        card = "none" if self.dry else torch.cuda.get_device_name()
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        head = {"card": card, **versions, **self.facts, "seconds": self.seconds, "is_complete": is_complete}
        write_json(self._path, {**head, "results": self._results})

    def end(self) -> None:
        """Ends the process: with status 1 where a row has an error or is wrong."""
        self.write(self._is_complete)
        failed = [row for row in self._results if "error" in row or row.get("is_right") is False]
        left_out = "" if self._is_complete else ", the rest left out for want of time"
        print(f"{len(self._results)} rows, {len(failed)} failed{left_out}, {self.seconds:.0f} s")
        sys.exit(bool(failed))


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def unproven_ops(folder: Path, ops: Sequence[str]) -> list[str]:
    """Those of ``ops`` that ``check.json`` does not say are right: a wrong kernel has no speed."""
    try:
        rows = read_json(folder / "check.json")["results"]
    except OSError:
        rows = []
    right, wrong = ({row["op"] for row in rows if row.get("is_right", False) is value} for value in (True, False))
    return [op for op in ops if op not in right or op in wrong]
