"""What a block of code asks of the device: operations, and where in the program the host waits for it."""

import collections
import contextlib
import ctypes
import sys
import traceback
from pathlib import Path
from typing import Iterator

from tests.gpu.device.library import library

ROOT = Path(__file__).parents[3]
WAITS = ("sync", "h2d-wait", "h2d-wait-pinned")
"""Kinds for which the host stands still; h2d-pageable, h2d-async, d2h-async and h2d-index are told too"""

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
_watchers: list["Seen"] = []


def tell(kind: str, op: str) -> None:
    """What Python's part of the device sees itself."""
    for seen in _watchers:
        seen.note(kind, op)


class Seen:
    """What was seen in a block.

    Attributes:
        places: (kind, operation, place) → times. The place is the innermost line of the package, ``file:line function``
            relative to the repository, and after it that of DeepSpeed, where it came by it. Backward operations, on
            autograd's own threads, have none and say so.
        counts: operation → times; those of ``places`` are under "!kind operation" too. Full once the block is left.
    """

    def __init__(self):
        self.places: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.counts: dict[str, int] = {}

    def note(self, kind: str, op: str) -> None:
        self.places[kind, op, _place()] += 1

    def waits(self) -> dict[str, int]:
        """``operation at place`` → times the host waited there."""
        waits = collections.Counter()
        for (kind, op, place), number in self.places.items():
            if kind in WAITS:
                waits[f"{kind} {op} at {place}"] += number
        return dict(waits)

    def num_operations(self) -> int:
        return sum(number for name, number in self.counts.items() if not name.startswith("!"))


def _place() -> str:
    own = theirs = None
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = Path(frame.f_code.co_filename)
        if own is None and file.is_relative_to(ROOT / "fastadv"):
            own = f"{file.relative_to(ROOT)}:{line} {frame.f_code.co_name}"
        elif own is None and theirs is None and "deepspeed" in file.parts:
            theirs = f"deepspeed {file.name} {frame.f_code.co_name}"
    if own is None:
        return theirs or "no line of the package"
    return f"{own} through {theirs}" if theirs else own


@contextlib.contextmanager
def watching() -> Iterator[Seen]:
    """Counts from zero and notes places until the block is left. One block at a time."""
    if _watchers:
        raise RuntimeError("watching() inside watching()")
    seen = Seen()
    call = _CALL(lambda kind, op: seen.note(kind.decode(), op.decode()))
    library().reset_counts()
    _watchers.append(seen)
    library().set_watcher(call)
    try:
        yield seen
    finally:
        library().set_watcher(_CALL(0))
        _watchers.remove(seen)
        seen.counts = _counts()


def num_operations() -> int:
    """Operations since the last `watching`, or since the process began."""
    return sum(number for name, number in _counts().items() if not name.startswith("!"))


def _counts() -> dict[str, int]:
    buffer = ctypes.create_string_buffer(int(library().read_counts(None, 0)) + 1)
    library().read_counts(buffer, len(buffer))
    return {name: int(number) for name, number in (line.split("\t") for line in buffer.value.decode().splitlines())}
