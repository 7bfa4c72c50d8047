"""Every moment is one phase's, and on a GPU nobody waits for the answer before it is asked for."""

import pytest
import torch

from fastadv.files.clock import Clock, no_clock


@pytest.fixture
def now():
    """A time that passes when the test says so: ``now[0] += seconds``."""
    return [100.0]


@pytest.fixture
def clock(now):
    return Clock(torch.device("cpu"), lambda: now[0])


def work(clock, now):
    """1 s outside, 2 s in ``forward`` around 4 s in ``search``, 8 s outside, 16 s in ``search`` once more."""
    now[0] += 1
    with clock("forward"):
        now[0] += 0.5
        with clock("search"):
            now[0] += 4
        now[0] += 1.5
    now[0] += 8
    with pytest.raises(KeyError), clock("search"):
        now[0] += 16
        raise KeyError


EXPECTED = {"other": 9, "forward": 2, "search": 20}


def test_the_innermost_phase_counts(clock, now):
    work(clock, now)
    assert clock.take() == EXPECTED
    now[0] += 3
    assert clock.take() == {"other": 3}


def test_waiting_for_items_is_a_phase_and_their_use_is_not(clock, now):
    def slow():
        for item in "ab":
            now[0] += 5
            yield item
        now[0] += 7

    seen = []
    for item in clock.each("data", slow()):
        seen.append(item)
        now[0] += 1
    assert seen == ["a", "b"] and clock.take() == {"other": 2, "data": 17}


def test_no_clock_is_a_context():
    with no_clock("forward"):
        pass


class StandInEvent:
    """What `Clock` uses of torch.cuda.Event: times in ms; reached once somebody has waited or the test says so."""

    made, waits, are_reached = 0, 0, False

    def __init__(self, enable_timing):
        assert enable_timing
        StandInEvent.made += 1

    def record(self):
        self.time_ms = StandInEvent.now[0] * 1000

    def synchronize(self):
        StandInEvent.waits += 1
        StandInEvent.are_reached = True

    def query(self):
        return StandInEvent.are_reached

    def elapsed_time(self, end):
        assert StandInEvent.are_reached, "asked before it was there"
        return end.time_ms - self.time_ms


@pytest.fixture
def events(monkeypatch, now):
    monkeypatch.setattr(torch.cuda, "Event", StandInEvent)
    StandInEvent.now, StandInEvent.made, StandInEvent.waits, StandInEvent.are_reached = now, 0, 0, False
    return StandInEvent


def test_events_are_waited_for_at_take_alone(events, now):
    clock = Clock(torch.device("cuda"))
    work(clock, now)
    assert events.waits == 0
    assert clock.take() == EXPECTED and events.waits == 1


def test_events_that_were_reached_are_let_go(events, now):
    clock = Clock(torch.device("cuda"))
    for step in range(2000):
        with clock("forward"):
            now[0] += 1
        now[0] += 2
        # The GPU falls behind for a while, and catches up.
        events.are_reached = step % 100 == 0
    assert events.waits == 0 and len(clock._open) < 1000
    assert clock.take() == {"forward": 2000, "other": 4000}
