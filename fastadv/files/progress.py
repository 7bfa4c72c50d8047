"""How far long work is, on any stream: a bar on a terminal, a line now and then in a log, a notebook or a pipe."""

import sys
from typing import Any, TextIO

from tqdm import tqdm

SILENT_S = 20.0
"""off a terminal nothing is said of work that is over before"""
EVERY_S = 20.0
"""between two lines off a terminal; tqdm looks at the clock at every update"""
_LINE = "{desc}: {n_fmt} of {total_fmt}{unit}, {rate_fmt}, {remaining} left{postfix}"
_LINE_WITHOUT_TOTAL = "{desc}: {n_fmt}{unit}, {rate_fmt}, {elapsed} so far{postfix}"


class Bar(tqdm):
    """tqdm's bar on a terminal, drawn once a second; elsewhere a line of its own every 20 seconds.

    Arguments are tqdm's. The counts that it is given and its time left are then words: what is done, how far, at which
    rate and for how long still.
    """

    def __init__(self, *arguments: Any, file: TextIO | None = None, **options: Any):
        stream = sys.stderr if file is None else file
        if stream.isatty():
            options = {"mininterval": 1.0, **options}
        else:
            quiet = {"delay": SILENT_S, "mininterval": EVERY_S, "maxinterval": EVERY_S, "miniters": 1, "leave": True}
            options |= quiet
            has_total = options.get("total") is not None or (bool(arguments) and hasattr(arguments[0], "__len__"))
            options["bar_format"] = _LINE if has_total else _LINE_WITHOUT_TOTAL
            options["desc"] = options.get("desc") or "working"
            options["unit"] = f" {str(options.get('unit', 'step')).strip()}"
            stream = _Lines(stream)
        super().__init__(*arguments, file=stream, **options)


class _Lines:
    """A stream on which nothing can be drawn again: what tqdm draws over the last line becomes a line."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        text = text.strip("\r\n ")
        if text:
            self._stream.write(f"{text}\n")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False
