"""What the library logs, on the terminal of a command."""

import logging
import os
import sys


class _Terminal(logging.StreamHandler):
    """Writes to what ``sys.stdout`` or ``sys.stderr`` is at the time; between two calls of ``main`` it may change."""

    def __init__(self, name: str):
        self._stream_name = name
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return getattr(sys, self._stream_name)


def send_log_to_terminal(name: str = "fastadv") -> None:
    """Remarks of a logger and those below it go to stdout, warnings to stderr, by the first rank alone."""
    if int(os.environ.get("RANK", "0")) != 0:
        return
    log = logging.getLogger(name)
    if log.handlers:
        return
    remarks, warnings = _Terminal("stdout"), _Terminal("stderr")
    remarks.addFilter(lambda record: record.levelno < logging.WARNING)
    warnings.setLevel(logging.WARNING)
    for handler in (remarks, warnings):
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
