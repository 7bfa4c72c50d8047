"""What the library logs, on the terminal of a command."""

import logging
import sys
from contextlib import contextmanager
from typing import Iterator


class _Terminal(logging.StreamHandler):
    """Writes to what ``sys.stdout`` or ``sys.stderr`` is at the time; between two calls of ``main`` it may change."""

    def __init__(self, name: str):
        self._stream_name = name
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return getattr(sys, self._stream_name)


def send_log_to_terminal() -> None:
    """Remarks of the library go to stdout, warnings to stderr."""
    log = logging.getLogger("fastadv")
    if log.handlers:
        return
    remarks = _Terminal("stdout")
    remarks.addFilter(lambda record: record.levelno < logging.WARNING)
    for handler in (remarks, _warnings()):
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class _Kept(logging.Handler):
    """Remarks in their order, each once."""

    def __init__(self):
        super().__init__()
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            self.lines.setdefault(record.getMessage())


@contextmanager
def remarks_after(name: str) -> Iterator[None]:
    """Within the block warnings of a logger go to stderr at once; its remarks go to stdout after the block, behind what
    it printed. Where it ends by an error they are dropped: a mistake is one line.
    """
    log, remarks = logging.getLogger(name), _Kept()
    before = list(log.handlers), log.level, log.propagate
    log.handlers[:], log.propagate = [remarks, _warnings()], False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers[:], log.propagate = before[0], before[2]
        log.setLevel(before[1])
    for line in remarks.lines:
        print(line)


def _warnings() -> logging.Handler:
    handler = _Terminal("stderr")
    handler.setLevel(logging.WARNING)
    return handler
