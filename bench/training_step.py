"""What a training step costs beside one of plain SimCSE: ``python -m bench.training_step --quick --json F``.

Rows (`bench.steps.rows`) are whole steps: gradients wiped, forward, search, backward, clipping by norm, optimizer. All
rows of one encoder and batch size are built once in one process and take turns, in an order that is rotated, on the
same batches of real sentences (`bench.steps.data`); dearer ones take part in every second to fifth turn. Time is this
process's CPU time, with the wall's beside it, and a row's ratio is the median over turns of its time over that of stock
SimCSE in fp32 in the same turn. FLOPs and the peak of live tensors are counted in steps that are not timed.

Nothing is timed before ``exact`` gives what ``none`` gives, in float64 to 1e-12, and each row a finite loss.

The JSON has the layout of pytest-benchmark's, ``stats`` being CPU seconds; ``python -m bench.summary`` makes a table, a
picture and a comparison with the targets of it. It is written after each group, and ``--resume`` goes on from there.
"""

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch

from bench.ops import settle_allocator
from bench.steps.cost import bytes_of, measure_costs
from bench.steps.data import MAX_LENGTH, Sample, describe_lengths, draw_samples
from bench.steps.gate import require_exact_is_none
from bench.steps.models import write_base_encoder, write_masked_lm
from bench.steps.rows import Models, Row, build_rows
from bench.turns import Times, plan_turns, read_done, say, take_turns, time_statistics, write_json
from fastadv.distributed.processes import init_distributed
from fastadv.encoder.weights.source import find_model, load_tokenizer


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


QUICK = (Group("minilm", 16, (5,), (10,), 1.0),)
FULL = (
    Group("minilm", 16, (1, 2, 5, 10), (), 0.22),
    Group("minilm", 64, (1, 2, 5, 10), (), 0.4),
    Group("base", 16, (5,), (10,), 0.38),
)
BUDGET_S = {"quick": 8.5 * 60, "full": 80 * 60}


def warm_up(row: Row, sample: Sample, is_first: bool) -> tuple[float, dict]:
    """CPU seconds of a step, roughly, and what it costs beside them.

    Args:
        is_first: whether no row has stepped the optimizer yet: then a first step makes its state, which is not to be
            counted as live tensors of a step.

    Raises:
        RuntimeError: a loss is not finite.
    """
    losses, first_metrics = [], {}
    if is_first or row.is_first_apart:
        losses.append(row.run(sample))
        first_metrics = row.metrics()
    parameters = row.parameters()
    start = time.process_time()
    costs = measure_costs(lambda: losses.append(row.run(sample)), parameters, row.held_bytes())
    seconds = time.process_time() - start
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"{row.name}: losses of {losses}; no time is taken of wrong results")
    say(f"  warm-up {row.name}: {seconds:.2f} s, loss {losses[-1]:.4f}")
    return seconds, {**costs, "parameter_mib": bytes_of(parameters) / 2**20, "first_metrics": first_metrics}


def record(row: Row, group: Group, times: Times, base: Times, costs: dict, common: dict) -> dict:
    """A benchmark as pytest-benchmark has it."""
    stats, beside = time_statistics(times, base)
    info = {
        "row": row.label,
        "dtype": row.dtype,
        "via": row.via,
        "num_steps": row.num_steps,
        "encoder": group.encoder,
        "batch_size": group.batch_size,
        **beside,
        **costs,
        "gflop_per_s": costs["flops"] / stats["median"] / 1e9,
        "metrics": row.metrics(),
        **common,
    }
    return {
        "name": f"{row.name} {group.name}",
        "group": f"training_step {group.name}",
        "stats": stats,
        "extra_info": info,
    }


def run_group(group: Group, models: Models, options, budget_s: float) -> list[dict]:
    began = time.perf_counter()
    samples = draw_samples(load_tokenizer(find_model(models.encoder)), group.batch_size)
    lengths = describe_lengths(samples)
    say(f"{group.name}: {lengths}, padded to {MAX_LENGTH}")

    def wanted(label: str) -> bool:
        return options.only is None or any(name in label for name in options.only)

    rows = build_rows(
        models,
        group.batch_size,
        list(group.steps),
        list(group.extra_exact_steps),
        options.dtypes,
        samples,
        has_rtd=bool(models.generator),
        wanted=wanted,
        note=say,
    )
    typical = min(samples, key=lambda s: abs(s.packed.num_tokens - lengths["length_mean"] * group.batch_size))
    seconds, costs = {}, {}
    for number, row in enumerate(rows):
        is_first = all(row.optimizer is not other.optimizer for other in rows[:number])
        seconds[row.name], costs[row.name] = warm_up(row, typical, is_first)
    say(f"  built, checked and counted in {time.perf_counter() - began:.0f} s")
    times = take_turns(rows, samples, plan_turns(seconds), began + budget_s)
    common = {"threads": options.threads, "device": "cpu", "padded_length": MAX_LENGTH, **lengths}
    found = [record(row, group, times[row.name], times[rows[0].name], costs[row.name], common) for row in rows]
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


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=None, help="where the measurements go")
    parser.add_argument("--quick", action="store_true", help="6 layers, B = 16, N = 5 alone, in at most 10 minutes")
    parser.add_argument("--groups", nargs="+", default=None, help="groups of the whole grid to run, as 'base B=16'")
    parser.add_argument("--only", nargs="+", default=None, help="rows whose names hold one of these; stock stays")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default="demo:minilm", help="a folder in place of the 6-layer encoder")
    parser.add_argument("--budget-s", type=float, default=None, help="seconds for all, in place of the usual")
    parser.add_argument("--resume", action="store_true", help="keep the groups that --json has already")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    groups = QUICK if options.quick else FULL
    if options.groups is not None:
        unknown = set(options.groups).difference(group.name for group in groups)
        if unknown:
            parser.error(f"--groups {', '.join(unknown)}: expected some of {', '.join(group.name for group in groups)}")
        groups = tuple(group for group in groups if group.name in options.groups)
    budget_s = options.budget_s or BUDGET_S["quick" if options.quick else "full"]
    settings = {
        "quick": options.quick,
        "only": options.only,
        "dtypes": options.dtypes,
        "threads": options.threads,
        "model": options.model,
    }
    done = read_done(options.json, settings) if options.resume and options.json else []
    names_done = {benchmark["group"] for benchmark in done}
    began = time.perf_counter()
    settle_allocator()
    init_distributed()
    with tempfile.TemporaryDirectory() as folder:
        require_exact_is_none(options.model)
        for number, group in enumerate(groups):
            if f"training_step {group.name}" in names_done:
                say(f"{group.name}: done before")
                continue
            encoder = options.model if group.encoder == "minilm" else write_base_encoder(Path(folder) / group.encoder)
            # Replaced token detection doubles the weights and the optimizer: too much at base size.
            has_rtd = group.encoder != "base"
            generator = write_masked_lm(encoder, Path(folder) / f"{group.encoder}-lm") if has_rtd else ""
            models = Models(group.encoder, encoder, generator)
            left_s = budget_s - (time.perf_counter() - began)
            share = group.share / sum(g.share for g in groups[number:])
            done += run_group(group, models, options, left_s * share)
            if options.json is not None:
                write_json(options.json, settings, done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
