"""What Ctrl-C and SIGTERM do to a run: the step ends, a checkpoint is written, and the run with it."""

import signal
import threading
from contextlib import contextmanager
from typing import Callable, Iterator


class Interrupted(KeyboardInterrupt):
    """A signal ended the run where it could be gone on from. ``signal_number`` says which."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number


@contextmanager
def ending_steps(ask_to_stop: Callable[[int], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call ``ask_to_stop`` with their number; a second Ctrl-C ends the run at once.

    A second SIGTERM does not: DeepSpeed's launcher, told of the same Ctrl-C, sends one after it.
    """
    first = []

    def stop(number, frame):
        if first and number == first[0] == signal.SIGINT:
            raise KeyboardInterrupt
        first.append(number)
        ask_to_stop(first[0])

    with _handling(stop, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def ending_at_once(message: str) -> Iterator[None]:
    """SIGTERM raises `Interrupted`: for what a run does before its first step and after its last checkpoint."""

    def stop(number, frame):
        raise Interrupted(message, number)

    with _handling(stop, signal.SIGTERM):
        yield


@contextmanager
def _handling(handler, *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            # None: a handler that was not set from Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if old is None else old)
