"""What a training step costs beside one of plain SimCSE: ``python -m bench.training_step --quick --json F``.

Rows (`bench.step_rows`) are whole steps: gradients wiped, forward, search, backward, clipping by norm, optimizer. All
rows of one encoder and batch size are built once in one process and take turns, in an order that is rotated, on the
same batches of real sentences (`bench.step_data`); dearer ones take part in every second or third turn. Time is this
process's CPU time, with the wall's beside it, and a row's ratio is the median over turns of its time over that of stock
SimCSE in fp32 in the same turn. FLOPs and the peak of live tensors are counted in steps that are not timed.

Nothing is timed before ``exact`` gives what ``none`` gives, in float64 to 1e-12, and each row a finite loss.

The JSON has the layout of pytest-benchmark's, ``stats`` being CPU seconds; ``python -m bench.summary`` makes a table, a
picture and a comparison with the targets of it. It is written after each group, and ``--resume`` goes on from there.
"""

import argparse
import json
import math
import os
import statistics as stats_of
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch

from bench.ops import machine_info, settle_allocator, statistics
from bench.step_cost import bytes_of, measure_costs
from bench.step_data import Sample, describe_lengths, draw_samples
from bench.step_gate import require_exact_is_none
from bench.step_models import write_base_encoder, write_masked_lm
from bench.step_rows import Models, Row, build_rows
from fastadv.encoder.source import find_model, load_tokenizer
from fastadv.engine.processes import init_distributed

_FEWEST_TURNS = 3
_MOST_TURNS = 60
# A row that costs so many stock steps takes part in every second turn, twice as many in every third.
_DEAR = 3.0


@dataclass(frozen=True)
class Group:
    """Rows that take turns."""

    encoder: str
    """minilm (6 layers) or base (12 layers, D = 768, random weights)"""
    batch_size: int
    steps: tuple[int, ...]
    extra_exact_steps: tuple[int, ...]
    share: float
    """of the time that all groups have"""

    @property
    def name(self) -> str:
        return f"{self.encoder} B={self.batch_size}"


QUICK = (Group("minilm", 16, (5,), (6,), 1.0),)
FULL = (
    Group("minilm", 16, (1, 2, 5, 10), (6,), 0.25),
    Group("minilm", 64, (1, 2, 5, 10), (6,), 0.5),
    Group("base", 16, (5,), (6,), 0.25),
)
BUDGET_S = {"quick": 8.5 * 60, "full": 80 * 60}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Clock:
    """CPU and wall seconds of one step, and its loss."""

    def __init__(self, row: Row, sample: Sample):
        wall, cpu = time.perf_counter(), time.process_time()
        self.loss = row.run(sample)
        self.cpu, self.wall = time.process_time() - cpu, time.perf_counter() - wall


def warm_up(row: Row, sample: Sample) -> tuple[float, dict[str, float]]:
    """CPU seconds of a first step, and what a second one costs beside them. RuntimeError where a loss is not finite."""
    # The first step makes the optimizer's state, which is not to be counted.
    clock = Clock(row, sample)
    losses = [clock.loss]
    parameters = row.parameters()
    costs = measure_costs(lambda: losses.append(row.run(sample)), parameters, row.held_bytes())
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"{row.name}: losses of {losses}; no time is taken of wrong results")
    say(f"  warm-up {row.name}: {clock.cpu:.2f} s, loss {clock.loss:.4f}")
    return clock.cpu, {**costs, "parameter_mib": bytes_of(parameters) / 2**20}


def plan_turns(seconds: dict[str, float], base: str, left_s: float) -> tuple[int, dict[str, int]]:
    """How many turns fit, and in every which turn each row takes part."""
    every = {name: 1 + min(3, int(s / (_DEAR * seconds[base]))) for name, s in seconds.items()}
    a_turn = sum(s / every[name] for name, s in seconds.items())
    turns = min(_MOST_TURNS, int(left_s / a_turn))
    return max(_FEWEST_TURNS * max(every.values()), turns), every


def take_turns(rows: list[Row], samples: list[Sample], num_turns: int, every: dict[str, int], end: float) -> dict:
    """Name → turn → (CPU seconds, wall seconds). Stops at ``end`` (perf_counter) once each row has its fewest."""
    times: dict[str, dict[int, tuple[float, float]]] = {row.name: {} for row in rows}
    began = said = time.perf_counter()
    for turn in range(num_turns):
        start = turn % len(rows)
        for row in rows[start:] + rows[:start]:
            if turn % every[row.name] == 0:
                clock = Clock(row, samples[turn % len(samples)])
                times[row.name][turn] = clock.cpu, clock.wall
        now = time.perf_counter()
        if now - said > 20 or turn == num_turns - 1:
            left = (now - began) / (turn + 1) * (num_turns - turn - 1)
            say(f"  turn {turn + 1} of {num_turns}, {left / 60:.1f} min left")
            said = now
        if now > end and all(len(found) >= _FEWEST_TURNS for found in times.values()):
            say(f"  stopped after {turn + 1} turns: the time is used up")
            break
    return times


def record(row: Row, group: Group, times: dict, base: dict, costs: dict, common: dict) -> dict:
    """A benchmark as pytest-benchmark has it."""
    cpu, wall = ([times[turn][i] for turn in sorted(times)] for i in (0, 1))
    ratios = {}
    for i, name in enumerate(("cpu", "wall")):
        paired = [times[turn][i] / base[turn][i] for turn in times if turn in base]
        ratios[f"ratio_{name}"] = statistics(paired)
    median = stats_of.median(cpu)
    return {
        "name": f"{row.name} {group.name}",
        "group": f"training_step {group.name}",
        "stats": {**statistics(cpu), "data": cpu},
        "extra_info": {
            "row": row.label,
            "dtype": row.dtype,
            "via": row.via,
            "num_steps": row.num_steps,
            "encoder": group.encoder,
            "batch_size": group.batch_size,
            "clock": "process CPU time",
            "turns": sorted(times),
            "wall": statistics(wall),
            **ratios,
            **costs,
            "gflop_per_s": costs["flops"] / median / 1e9,
            **common,
        },
    }


def run_group(group: Group, models: Models, options, budget_s: float) -> list[dict]:
    began = time.perf_counter()
    samples = draw_samples(load_tokenizer(find_model(models.encoder)), group.batch_size)
    lengths = describe_lengths(samples)
    say(f"{group.name}: {lengths}, padded to 32")

    def wanted(label: str) -> bool:
        return options.only is None or any(name in label for name in options.only)

    rows = build_rows(
        models,
        group.batch_size,
        list(group.steps),
        list(group.extra_exact_steps),
        options.dtypes,
        samples,
        has_rtd=group.encoder != "base",
        wanted=wanted,
        note=say,
    )
    base = rows[0].name
    typical = min(samples, key=lambda s: abs(s.packed.num_tokens - lengths["length_mean"] * group.batch_size))
    seconds, costs = {}, {}
    for row in rows:
        seconds[row.name], costs[row.name] = warm_up(row, typical)
    say(f"  built, checked and counted in {time.perf_counter() - began:.0f} s")
    left_s = budget_s - (time.perf_counter() - began)
    num_turns, every = plan_turns(seconds, base, left_s)
    times = take_turns(rows, samples, num_turns, every, began + budget_s)
    common = {"threads": options.threads, "device": "cpu", "padded_length": 32, **lengths}
    found = [record(row, group, times[row.name], times[base], costs[row.name], common) for row in rows]
    for benchmark in found:
        say("  " + describe(benchmark))
    return found


def describe(benchmark: dict) -> str:
    info, seconds = benchmark["extra_info"], benchmark["stats"]
    ratio = info["ratio_cpu"]
    return (
        f"{benchmark['name']:44} {seconds['median']:7.3f} s ({seconds['q1']:.3f} to {seconds['q3']:.3f}, least "
        f"{seconds['min']:.3f}), {ratio['median']:6.3f} of stock ({ratio['q1']:.3f} to {ratio['q3']:.3f}), "
        f"{info['flops'] / 1e9:7.1f} GFLOP, {info['gflop_per_s']:6.1f} GFLOP/s, {info['working_mib']:6.0f} MiB"
    )


def write_json(path: Path, settings: dict, benchmarks: list[dict]) -> None:
    """Written aside and renamed, so that a killed run leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    found = {"machine_info": machine_info(), "settings": settings, "benchmarks": benchmarks}
    aside.write_text(json.dumps(found, indent=1), encoding="utf-8")
    os.replace(aside, path)


def read_done(path: Path, settings: dict) -> list[dict]:
    """The benchmarks of an interrupted run. SystemExit where they are of other settings."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("settings") != settings:
        raise SystemExit(f"bench.training_step: {path} was written with {found.get('settings')}, not {settings}")
    return found["benchmarks"]


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=None, help="where the measurements go")
    parser.add_argument("--quick", action="store_true", help="6 layers, B = 16, N = 5 alone, in at most 10 minutes")
    parser.add_argument("--only", nargs="+", default=None, help="rows whose names hold one of these; stock stays")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=None, help="seconds for all, in place of the usual")
    parser.add_argument("--resume", action="store_true", help="keep the groups that --json has already")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    groups = QUICK if options.quick else FULL
    budget_s = options.budget_s or BUDGET_S["quick" if options.quick else "full"]
    settings = {"quick": options.quick, "only": options.only, "dtypes": options.dtypes, "threads": options.threads}
    done = read_done(options.json, settings) if options.resume and options.json else []
    names_done = {benchmark["group"] for benchmark in done}
    began = time.perf_counter()
    settle_allocator()
    init_distributed()
    with tempfile.TemporaryDirectory() as folder:
        require_exact_is_none()
        for number, group in enumerate(groups):
            if f"training_step {group.name}" in names_done:
                say(f"{group.name}: done before")
                continue
            encoder = "demo:minilm" if group.encoder == "minilm" else write_base_encoder(Path(folder) / group.encoder)
            models = Models(group.encoder, encoder, write_masked_lm(encoder, Path(folder) / f"{group.encoder}-lm"))
            left_s = budget_s - (time.perf_counter() - began)
            share = group.share / sum(g.share for g in groups[number:])
            done += run_group(group, models, options, left_s * share)
            if options.json is not None:
                write_json(options.json, settings, done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
