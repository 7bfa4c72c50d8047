"""Several variants timed in one process in turns, so that a slow minute of the machine meets all of them."""

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Protocol, Sequence

from bench.ops import machine_info, statistics

FEWEST_TURNS = 2
_MOST_TURNS = 60
# A row that costs so many times the first takes part in every second turn, twice as many in every third, and so on.
_DEAR = 3.0
_LEAST_OFTEN = 5
# All ratios have the first row's time in them, so it is taken several times a turn.
_FIRST_ROW_RUNS = 3

Times = dict[int, tuple[float, float]]
"""turn → (CPU seconds, wall seconds)"""


class Timed(Protocol):
    name: str

    def run(self, sample) -> float: ...


class Clock:
    """CPU and wall seconds of one call, and what it gave."""

    def __init__(self, row: Timed, sample):
        wall, cpu = time.perf_counter(), time.process_time()
        self.value = row.run(sample)
        self.cpu, self.wall = time.process_time() - cpu, time.perf_counter() - wall


def say(text: str) -> None:
    """To stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def plan_turns(seconds: dict[str, float]) -> dict[str, int]:
    """In every which turn each row takes part.

    Args:
        seconds: of one call of each row, the one the others are compared with first.
    """
    first = next(iter(seconds.values()))
    return {name: min(_LEAST_OFTEN, 1 + int(s / (_DEAR * first))) for name, s in seconds.items()}


def take_turns(
    rows: Sequence[Timed], samples: Sequence, every: dict[str, int], end: float, most: int = _MOST_TURNS
) -> dict[str, Times]:
    """Name → `Times`. It stops before the turn that would go beyond ``end`` (perf_counter), but not before each row has
    its fewest turns, and after ``most``.

    The first row takes part in all turns, three times spread over each, of which the median counts. Who begins moves on
    by one each turn, and every second turn runs backwards, so that nobody always follows the same neighbour.
    """
    times: dict[str, Times] = {row.name: {} for row in rows}
    began = said = time.perf_counter()
    for turn in range(most):
        now = time.perf_counter()
        is_enough = all(len(found) >= FEWEST_TURNS for found in times.values())
        if is_enough and now + (now - began) / turn > end:
            break
        if now - said > 20:
            say(f"  {turn} turn(s), {max(0.0, end - now) / 60:.1f} min left{'' if is_enough else ', or a little more'}")
            said = now
        first, *others = rows
        start = turn % max(1, len(others))
        order = [row for row in [*others[start:], *others[:start]] if turn % every[row.name] == 0]
        order = order if turn % 2 == 0 else order[::-1]
        for i in reversed(range(_FIRST_ROW_RUNS)):
            order.insert(len(order) * i // (_FIRST_ROW_RUNS - 1), first)
        clocks: dict[str, list[Clock]] = {}
        for row in order:
            clocks.setdefault(row.name, []).append(Clock(row, samples[turn % len(samples)]))
        for name, found in clocks.items():
            times[name][turn] = median(c.cpu for c in found), median(c.wall for c in found)
    return times


def time_statistics(times: Times, base: Times) -> tuple[dict, dict]:
    """(``stats`` of CPU seconds with the single ones as ``data``, what goes into ``extra_info`` beside them).

    A ratio is taken turn by turn, of two steps on the same batch within the same minute.
    """
    cpu, wall = ([times[turn][i] for turn in sorted(times)] for i in (0, 1))
    ratios = {
        f"ratio_{name}": statistics([times[turn][i] / base[turn][i] for turn in times if turn in base])
        for i, name in enumerate(("cpu", "wall"))
    }
    stats = {**statistics(cpu), "data": cpu}
    return stats, {"clock": "process CPU time", "turns": sorted(times), "wall": statistics(wall), **ratios}


def write_json(path: Path, settings: dict, benchmarks: list[dict]) -> None:
    """Written aside and renamed, so that a killed run leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    found = {"machine_info": machine_info(), "settings": settings, "benchmarks": benchmarks}
    aside.write_text(json.dumps(found, indent=1), encoding="utf-8")
    os.replace(aside, path)


def read_done(path: Path, settings: dict) -> list[dict]:
    """The benchmarks of an interrupted run, none where there is no file.

    Raises:
        SystemExit: they are of other settings.
    """
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("settings") != settings:
        raise SystemExit(f"{path}: written with settings {found.get('settings')}; expected {settings} to go on from it")
    return found["benchmarks"]
