"""What signals do to a run: some end it after its step with a checkpoint, one has a checkpoint written and no more.

Ctrl-C (SIGINT), SIGTERM, SIGHUP and SIGUSR1 end a run, SIGUSR2 does not.
"""

import errno
import os
import signal
import threading
from contextlib import contextmanager
from typing import Callable, Iterator, Sequence


def _numbers(*names: str) -> tuple[int, ...]:
    # Windows, where nothing is trained but this file is imported, has two of them.
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


ORDERLY = _numbers("SIGTERM", "SIGHUP", "SIGUSR1")
"""Signals whose sender wants the run to end: schedulers, and a terminal that is closed. Nothing has failed then."""
_SAVING, _HANG_UP = _numbers("SIGUSR2"), _numbers("SIGHUP")


class Interrupted(KeyboardInterrupt):
    """A signal ended the run where it could be gone on from. ``signal_number`` says which."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number


@contextmanager
def ending_steps(ask_to_stop: Callable[[int], None]) -> Iterator[None]:
    """Ctrl-C and the signals of ``ORDERLY`` call ``ask_to_stop`` with their number; a second Ctrl-C ends at once.

    A second SIGTERM does not: DeepSpeed's launcher, told of the same Ctrl-C, sends one after it.
    """
    first = []

    def stop(number, frame):
        if first and number == first[0] == signal.SIGINT:
            raise KeyboardInterrupt
        first.append(number)
        ask_to_stop(first[0])

    with _handling(stop, signal.SIGINT, *ORDERLY):
        yield


@contextmanager
def ending_at_once(message: str) -> Iterator[None]:
    """``ORDERLY`` raises `Interrupted`: for what a run does before its first step and after its last checkpoint."""

    def stop(number, frame):
        raise Interrupted(message, number)

    with _handling(stop, *ORDERLY):
        yield


@contextmanager
def saving_on_request(ask_to_save: Callable[[], None]) -> Iterator[None]:
    """SIGUSR2 calls ``ask_to_save``."""
    with _handling(lambda number, frame: ask_to_save(), *_SAVING):
        yield


@contextmanager
def _handling(handler, *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number, frame):
        if number in _HANG_UP:
            leave_lost_terminal()
        handler(number, frame)

    # nohup has a closed terminal ignored, which is the user's wish.
    kept = [n for n in _HANG_UP if signal.getsignal(n) == signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers if number not in kept}
    try:
        yield
    finally:
        for number, old in before.items():
            # None: a handler that was not set from Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if old is None else old)


def leave_lost_terminal(descriptors: Sequence[int] = (1, 2)) -> None:
    """Has stdout and stderr lead nowhere where their terminal was closed: a run must not end by what it says."""
    for descriptor in descriptors:
        try:
            # A closed terminal refuses no bytes, too. To a pipe or a file they do nothing.
            os.write(descriptor, b"")
        except OSError as error:
            if error.errno == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
