"""How fast the CPU forms of the ops are: ``python -m bench.ops --json ops.json``.

Per op and norm four callables run in turn, so that a slow minute of the machine meets all of them: the reference in
plain torch (eager), the same through ``torch.compile``, the C++ form (native), and a copy of the same arrays. Bytes are
counted once an array that is read or written; a form's share is its bytes a second over those of the copy, which is
measured in the same turns and allocates its results as the op does. An untimed copy before every timed call leaves the
caches alike for all, and results are dropped at once. The least time counts: what is above it on a shared machine is
the work of others.

A form whose error against float64 is not within twice the float32 reference's own plus one unit in the last place of
the largest value gets no time: the run stops.

The JSON has the layout of pytest-benchmark's (``machine_info``, ``benchmarks`` with ``stats`` in seconds and
``extra_info``); ``python -m bench.summary`` makes a table and a picture of it.
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

import torch
from torch import Tensor

import fastadv_kernels as kernels
from fastadv_kernels.backend import native_library

NORMS = ("linf", "l2", "l1")
_SECONDS_PER_FORM = 0.7
_MOST_ROUNDS = 500
_FEWEST_ROUNDS = 5


@dataclass
class Batch:
    """What the ops work on: ``tokens`` = B · L rows of ``size`` entries."""

    pgd: Tensor
    fgsm: Tensor
    grad: Tensor
    cu_seqlens: Tensor
    epsilon: dict[str, Tensor]
    epsilon_token: dict[str, Tensor]
    step: Tensor
    table: Tensor
    words: Tensor

    def wide(self) -> "Batch":
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("pgd", "fgsm", "grad", "table"):
            values[name] = values[name].double()
        return Batch(**values)


def make_batch(num_sentences: int, length: int, size: int) -> Batch:
    """Radii that about half of the points exceed, so that both ways through a projection are taken."""
    generator = torch.Generator().manual_seed(0)
    tokens = num_sentences * length
    points = [torch.randn(tokens, size, generator=generator) * 0.05 for _ in range(2)]
    grad = torch.randn(tokens, size, generator=generator) * torch.rand(tokens, 1, generator=generator)
    cu_seqlens = torch.arange(0, tokens + 1, length, dtype=torch.int32)
    spread = torch.linspace(0.5, 1.5, num_sentences)
    sentence, token = length * size, size
    return Batch(
        *points,
        grad,
        cu_seqlens,
        {"linf": 0.1 * spread, "l2": 0.05 * sentence**0.5 * spread, "l1": 0.04 * sentence * spread},
        {"linf": 0.1 * spread, "l2": 0.05 * token**0.5 * spread, "l1": 0.04 * token * spread},
        torch.full((num_sentences,), 0.02),
        torch.randn(30522, size, generator=generator),
        torch.randint(0, 2000, (tokens,), generator=generator),
    )


@dataclass
class Case:
    """One row of the table: an op, and how often it touches a (T, E) array if it touches each once."""

    op: str
    norm: Optional[str]
    num_arrays: int
    call: Callable[[Batch, str], object]
    """(batch, backend) → the op's result"""

    @property
    def name(self) -> str:
        return self.op if self.norm is None else f"{self.op} {self.norm}"


def cases() -> list[Case]:
    found = []
    for norm in NORMS:

        def update(b, backend, norm=norm):
            return kernels.token_update(
                b.pgd, b.grad, b.cu_seqlens, b.step, b.epsilon_token[norm], norm, backend=backend
            )

        def pgd(b, backend, norm=norm):
            return kernels.sentence_step(b.pgd, b.grad, b.cu_seqlens, b.step, b.epsilon[norm], norm, backend=backend)

        def fgsm(b, backend, norm=norm):
            return kernels.sign_step(b.pgd, b.grad, b.cu_seqlens, b.step, b.epsilon[norm], norm, backend=backend)

        def pair(b, backend, norm=norm):
            return kernels.pair_step(
                b.pgd, b.fgsm, b.grad, b.cu_seqlens, b.step, b.step, b.epsilon[norm], norm, backend=backend
            )

        def nearest(b, backend, norm=norm):
            return kernels.project(b.pgd, b.epsilon[norm], norm, b.cu_seqlens, backend=backend)

        found += [
            Case("token_update", norm, 3, update),
            Case("sentence_step", norm, 3, pgd),
            Case("sign_step", norm, 3, fgsm),
            Case("pair_step", norm, 5, pair),
            Case("project", norm, 2, nearest),
        ]

    def mean(b, backend):
        kernels.eta_table_write_mean(b.table, b.words, b.grad, backend=backend)
        return b.table

    found += [
        Case("mix_chains", None, 3, lambda b, backend: kernels.mix_chains(b.pgd, b.fgsm, 0.3, backend=backend)),
        Case("eta_table_read", None, 2, lambda b, backend: kernels.eta_table_read(b.table, b.words, backend=backend)),
        Case("eta_table_write_mean", None, 1, mean),
    ]
    return found


def check(case: Case, batch: Batch) -> None:
    """Raises AssertionError where the native form's error is over the budget."""

    def results(batch, backend):
        result = case.call(batch, backend)
        return [r.clone() for r in (result if isinstance(result, tuple) else (result,))]

    plain, native = results(batch, "reference"), results(batch, "native")
    for a, b, exact in zip(plain, native, results(batch.wide(), "reference"), strict=True):
        allowed = 2 * (a.double() - exact).abs().max() + torch.finfo(torch.float32).eps * exact.abs().max()
        error = (b.double() - exact).abs().max()
        assert error <= allowed, f"{case.name}: error {error:.3g} over {allowed:.3g}; no time is taken of wrong results"


def copies(case: Case, batch: Batch) -> tuple[Callable[[], object], int]:
    """A copy among as many arrays as the op touches, into results of its own as the op's are; and its bytes."""
    has_two_results = case.op == "pair_step"
    sources = [batch.pgd, batch.grad, batch.fgsm][: max(1, case.num_arrays - 1 - has_two_results)]

    def run() -> list[Tensor]:
        results = [torch.empty_like(batch.pgd) for _ in range(1 + has_two_results)]
        for i, source in enumerate(sources):
            results[i % len(results)].copy_(source)
        return results

    return run, len(sources) * 2 * batch.pgd.numel() * 4


def settle_allocator() -> None:
    """Frees one block of 31 MiB, after which glibc keeps freed blocks of up to that size instead of unmapping them.

    Any training process has done so. Without it every call of an op with 12 MiB of results pays for fresh pages.
    """
    torch.empty(31 * 2**18).fill_(0)


def time_in_turn(functions: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each call. Every round calls each function once; a slow one stops when its second is used up."""
    for function in functions.values():
        for _ in range(3):
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(_MOST_ROUNDS):
        for name, function in functions.items():
            if round_ >= _FEWEST_ROUNDS and sum(times[name]) > _SECONDS_PER_FORM:
                continue
            functions["copy"]()
            start = time.perf_counter()
            result = function()
            times[name].append(time.perf_counter() - start)
            del result
    return times


def statistics(seconds: list[float]) -> dict:
    ordered = torch.tensor(seconds, dtype=torch.float64)
    low, middle, high = (float(q) for q in ordered.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)))
    return {"min": min(seconds), "median": middle, "q1": low, "q3": high, "iqr": high - low, "rounds": len(seconds)}


def measure(case: Case, batch: Batch, num_threads: int, compiles: bool) -> list[dict]:
    """A benchmark a form. More threads than one are the C++ form's question alone."""
    copy, copy_bytes = copies(case, batch)
    functions: dict[str, Callable[[], object]] = {
        "copy": copy,
        "native": lambda: case.call(batch, "native"),
    }
    if num_threads == 1:
        functions["eager"] = lambda: case.call(batch, "reference")
    if compiles:
        torch._dynamo.reset()
        compiled = torch.compile(lambda b: case.call(b, "reference"), fullgraph=True, dynamic=False)
        functions["compiled"] = lambda: compiled(batch)
    with torch.no_grad():
        times = time_in_turn(functions)
    rates = {}
    rows = []
    shape = f"B={len(batch.cu_seqlens) - 1} L={int(batch.cu_seqlens[1])} D={batch.pgd.shape[1]}"
    for name, seconds in times.items():
        stats = statistics(seconds)
        moved = copy_bytes if name == "copy" else case.num_arrays * batch.pgd.numel() * 4
        rates[name] = moved / stats["min"]
        rows.append(
            {
                "name": f"{case.name}[{name}-{num_threads}]",
                "group": case.name,
                "stats": stats,
                "extra_info": {
                    "op": case.op,
                    "norm": case.norm,
                    "backend": name,
                    "shape": shape,
                    "dtype": "float32",
                    "device": "cpu",
                    "threads": num_threads,
                    "bytes": moved,
                    "gb_per_s": rates[name] / 1e9,
                    "share_of_copy": rates[name] / rates["copy"],
                },
            }
        )
    return rows


def machine_info() -> dict:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return {
        "cpu": model,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where the measurements go")
    parser.add_argument("--only", nargs="*", default=None, help="ops to measure, by default all")
    parser.add_argument("--shape", type=int, nargs=3, default=[64, 32, 768], metavar=("B", "L", "D"))
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--no-compile", action="store_true", help="leaves torch.compile out, which takes minutes")
    arguments = parser.parse_args()
    if native_library is None:
        print("bench.ops: fastadv_kernels was installed without its C++ library", file=sys.stderr)
        return 1
    settle_allocator()
    batch = make_batch(*arguments.shape)
    rows: list[dict] = []
    for case in cases():
        if arguments.only is not None and case.op not in arguments.only:
            continue
        torch.set_num_threads(1)
        check(case, batch)
        for num_threads in arguments.threads:
            torch.set_num_threads(num_threads)
            for row in measure(case, batch, num_threads, not arguments.no_compile and num_threads == 1):
                rows.append(row)
                info, stats = row["extra_info"], row["stats"]
                print(
                    f"{case.name:24} {info['backend']:9} {num_threads} thread(s): least {stats['min'] * 1e3:8.3f} ms, "
                    f"median {stats['median'] * 1e3:8.3f}, {info['gb_per_s']:6.1f} GB/s, "
                    f"{info['share_of_copy']:4.0%} of copy",
                    flush=True,
                )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"machine_info": machine_info(), "benchmarks": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
