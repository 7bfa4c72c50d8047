"""A limit on the time of a piece of work that asks nobody whether it may go on."""

import signal
import threading
from contextlib import contextmanager
from typing import Iterator, Optional, Type

_AGAIN_S = 0.05
"""the alarm rings until it is heard: one that rings inside a ``finally`` of others' code may get lost"""


@contextmanager
def time_limit(seconds: Optional[float], error: Type[BaseException]) -> Iterator[None]:
    """Raises ``error`` in the block once ``seconds`` are over. None: no limit.

    By an alarm, which only a process's first thread has, and Windows has not: elsewhere the block runs to its end.
    """
    if seconds is None or not can_interrupt():
        yield
        return
    is_inside = True

    def ring(number, frame) -> None:
        if is_inside:
            raise error

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6), _AGAIN_S)
        yield
        is_inside = False
    finally:
        is_inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def can_interrupt() -> bool:
    """Whether `time_limit` can stop what this thread does."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
