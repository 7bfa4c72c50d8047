"""Where the time of a run goes: seconds by phase, without making a GPU wait."""

import time
from collections import defaultdict, deque
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Callable, Iterable, Iterator

import torch

TimesPhases = Callable[[str], AbstractContextManager]
"""phase -> a context whose time counts as that phase's: a `Clock`, or `no_clock`"""

OTHER = "other"
"""the phase outside all phases"""

# Stretches whose end the GPU may not have reached yet; beyond so many, those that it has are counted.
_MOST_OPEN = 512


def no_clock(phase: str) -> AbstractContextManager:
    """Times nothing."""
    return nullcontext()


class Clock:
    """Counts every moment since the last ``take`` as one phase's, that of the innermost ``with clock(phase)``.

    On a CPU it reads the time. On a GPU it records CUDA events on the current stream and reads them at ``take`` alone,
    which waits for the last of them: a phase's seconds are then those in which the GPU was there, waiting included.

    Args:
        seconds: the time on a CPU.
    """

    def __init__(self, device: torch.device, seconds: Callable[[], float] = time.perf_counter):
        self._has_events, self._seconds_now = device.type == "cuda", seconds
        self._phase = OTHER
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: deque[tuple[str, Any, Any]] = deque()
        self._last = self._now()

    @contextmanager
    def __call__(self, phase: str):
        outer = self._phase
        self._close_stretch()
        self._phase = phase
        try:
            yield
        finally:
            self._close_stretch()
            self._phase = outer

    def each(self, phase: str, items: Iterable) -> Iterator:
        """The items; the wait for each is ``phase``'s, what is done with it is not."""
        iterator = iter(items)
        while True:
            with self(phase):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call or the start."""
        self._close_stretch()
        if self._open:
            self._last.synchronize()
            self._count_reached()
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

    def _now(self):
        if not self._has_events:
            return self._seconds_now()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _close_stretch(self) -> None:
        """What has passed since the last mark was all of the current phase."""
        start, self._last = self._last, self._now()
        if not self._has_events:
            self._seconds[self._phase] += self._last - start
            return
        self._open.append((self._phase, start, self._last))
        if len(self._open) > _MOST_OPEN:
            self._count_reached()

    def _count_reached(self) -> None:
        while self._open and self._open[0][2].query():
            phase, start, end = self._open.popleft()
            self._seconds[phase] += start.elapsed_time(end) / 1000
