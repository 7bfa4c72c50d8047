"""InfoNCE on the CPU: forward and backward beside plain torch, and the memory it takes beside its inputs.

    python -m bench.info_nce                  # times at N = M = 4096, D = 768, and memory at 32768
    python -m bench.info_nce --rows 2048 --rounds 5 --memory-rows 0

Materialised is what one writes in plain torch for one key set: normalize, a product, cross_entropy. All variants run
in one process in turn, after their results were found to agree with float64's; nothing is timed where they do not.
"""

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fastadv_kernels import info_nce

TEMPERATURE = 0.05
ALLOWED_ERROR = 1e-4
"""relative, of a gradient's norm; float32 rounds a logit of 20 by 1e-6"""


def materialised(query: Tensor, keys: Tensor, reduction: str) -> Tensor:
    logits = normalize(query) @ normalize(keys).T / TEMPERATURE
    return cross_entropy(logits, torch.arange(len(query)), reduction=reduction)


def of_backend(query: Tensor, keys: Tensor, reduction: str, backend: str) -> Tensor:
    return info_nce(query, keys, temperature=TEMPERATURE, reduction=reduction, backend=backend)


def gradients(loss_of, query: Tensor, keys: Tensor, reduction: str, weight: Tensor) -> list[Tensor]:
    query, keys = query.detach().requires_grad_(), keys.detach().requires_grad_()
    loss = loss_of(query, keys, reduction)
    total = loss if reduction == "mean" else (loss * weight.to(loss.dtype)).sum()
    return list(torch.autograd.grad(total, (query, keys)))


def check(variants: dict, size: int) -> None:
    """Raises RuntimeError where a variant's gradients are not float64's."""
    torch.manual_seed(1)
    query, keys, weight = torch.randn(700, size), torch.randn(700, size), torch.rand(700)
    for reduction in ("mean", "none"):
        exact = gradients(
            partial(of_backend, backend="reference"), query.double(), keys.double(), reduction, weight.double()
        )
        for name, loss_of in variants.items():
            for grad, expected in zip(gradients(loss_of, query, keys, reduction, weight), exact):
                error = ((grad - expected).norm() / expected.norm()).item()
                if not error <= ALLOWED_ERROR:
                    raise RuntimeError(f"{name}, {reduction}: a gradient is off by {error:.1e}; nothing was timed")


def measure(num_rows: int, size: int, rounds: int) -> list[dict]:
    """One row a variant and reduction."""
    variants = {
        "materialised": materialised,
        "reference": partial(of_backend, backend="reference"),
        "native": partial(of_backend, backend="native"),
    }
    check(variants, size)
    torch.manual_seed(0)
    query, keys, weight = torch.randn(num_rows, size), torch.randn(num_rows, size), torch.rand(num_rows)
    cases = [(reduction, name) for reduction in ("mean", "none") for name in variants]
    times_ms, cpu_ms = {case: [] for case in cases}, {case: [] for case in cases}
    for round_number in range(rounds + 1):
        for reduction, name in cases:
            start, start_cpu = time.perf_counter(), time.process_time()
            gradients(variants[name], query, keys, reduction, weight)
            # The first round finds cold caches and memory that was never touched.
            if round_number > 0:
                times_ms[reduction, name].append((time.perf_counter() - start) * 1e3)
                cpu_ms[reduction, name].append((time.process_time() - start_cpu) * 1e3)
    rows = []
    for reduction, name in cases:
        ours, base = times_ms[reduction, name], times_ms[reduction, "materialised"]
        # Three products, four where the logits are computed anew.
        num_products = 4 if (reduction, name) == ("none", "native") else 3
        rows.append(
            {
                "op": "info_nce forward and backward",
                "form": name,
                "reduction": reduction,
                "rows": num_rows,
                "size": size,
                "median_ms": statistics.median(ours),
                "least_ms": min(ours),
                "to_materialised": statistics.median(a / b for a, b in zip(ours, base)),
                "least_to_least": min(ours) / min(base),
                "cpu_to_cpu": min(cpu_ms[reduction, name]) / min(cpu_ms[reduction, "materialised"]),
                "gflop_per_s": num_products * 2e-6 * num_rows**2 * size / statistics.median(ours),
            }
        )
    return rows


def peak_bytes() -> int:
    """The largest resident set so far. Not getrusage's, which a process takes over from the one that started it."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def measure_memory(num_rows: int, size: int, reduction: str) -> None:
    """Prints what a step takes at most beside inputs and gradients, in MiB. For a process of its own."""
    torch.manual_seed(0)
    query, keys = torch.randn(num_rows, size), torch.randn(num_rows, size)
    weight = torch.ones(num_rows)
    # What torch allocates once, for its threads and its products.
    gradients(partial(of_backend, backend="native"), query[:600], keys[:600], reduction, weight[:600])
    before = peak_bytes()
    start = time.perf_counter()
    gradients(partial(of_backend, backend="native"), query, keys, reduction, weight)
    beside = peak_bytes() - before - query.nbytes - keys.nbytes
    print(json.dumps({"beside_mib": beside / 2**20, "seconds": time.perf_counter() - start}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096, help="N = M of the times")
    parser.add_argument("--memory-rows", type=int, default=32768, help="N = M of the memory; 0 leaves it out")
    parser.add_argument("--size", type=int, default=768, help="D")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory-of", choices=("mean", "none"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        measure_memory(options.memory_rows, options.size, options.memory_of)
        return
    print(
        f"torch {torch.__version__}, {platform.processor() or platform.machine()}, {options.threads} threads, float32"
    )
    for row in measure(options.rows, options.size, options.rounds):
        print(
            "{op}, {form}, {reduction}, N = M = {rows}, D = {size}: median {median_ms:.0f} ms, "
            "least {least_ms:.0f} ms, {to_materialised:.2f} of materialised (least to least {least_to_least:.2f}, "
            "CPU time {cpu_to_cpu:.2f}), {gflop_per_s:.0f} GFLOP/s".format(**row)
        )
    for reduction in ("mean", "none") if options.memory_rows else ():
        command = [sys.executable, "-m", "bench.info_nce", "--memory-of", reduction, "--size", str(options.size)]
        command += ["--memory-rows", str(options.memory_rows), "--threads", str(options.threads)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"info_nce forward and backward, native, {reduction}, N = M = {options.memory_rows}, D = {options.size}: "
            f"{found['beside_mib']:.0f} MiB beside inputs and gradients, {found['seconds']:.1f} s"
        )


if __name__ == "__main__":
    main()
