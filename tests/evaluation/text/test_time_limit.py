"""A limit on the time of work that asks nobody: it is interrupted, and nothing rings afterwards."""

import signal
import threading
import time

import pytest

from fastadv.evaluation.text.time_limit import can_interrupt, time_limit


class TooLate(BaseException):
    pass


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_work_is_interrupted():
    with pytest.raises(TooLate):
        with time_limit(0.05, TooLate):
            spin(60)


def test_work_that_takes_what_comes_for_its_own_mistake_is_interrupted():
    with pytest.raises(TooLate):
        with time_limit(0.05, TooLate):
            while True:
                try:
                    spin(60)
                except Exception:
                    pass


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_work_in_time_is_left_alone(seconds):
    with time_limit(seconds, TooLate):
        found = 1 + 1
    assert found == 2


def test_nothing_rings_afterwards():
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(60.0, TooLate):
        pass
    with pytest.raises(ZeroDivisionError):
        with time_limit(60.0, TooLate):
            raise ZeroDivisionError
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_another_thread_is_not_interrupted():
    said = []

    def work():
        said.append(can_interrupt())
        with time_limit(0.01, TooLate):
            spin(0.05)
        said.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [False, "done"] and can_interrupt()
