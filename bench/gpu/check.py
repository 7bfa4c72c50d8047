"""Every Triton kernel on this GPU against its reference in float64. See gpu.sh."""

import argparse
import sys
import time
from typing import Any

import torch
from torch import Tensor

from bench.gpu.kernel_calls import CALLS, Call, Shape

SHAPES = ((64, 32, 768), (7, 61, 1000), (300, 5, 384))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DRY_SHAPES = ((3, 4, 40),)


def arguments_of(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"bench.{command}")
    parser.add_argument("--dry", action="store_true", help="on a CPU, in Triton's interpreter, at tiny sizes")
    parser.add_argument("--json", help="file that takes the times")
    return parser.parse_args()


def in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def outputs(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def excess(call: Call) -> float:
    """The error as a multiple of what is allowed: twice that of the reference in the same dtype, and a floor.

    The floor is a unit in the last place of the largest result, or in float32 what a sum of many terms loses. A
    result that is not finite counts as infinitely wrong.
    """
    exact = outputs(call.reference(*(in_float64(a) for a in call.arguments)))
    plain = outputs(call.reference(*call.arguments))
    worst = 0.0
    # Last, since it may work in place.
    for ours, theirs, gold in zip(outputs(call.run()), plain, exact, strict=True):
        if ours.shape != gold.shape or not torch.isfinite(ours).all():
            return float("inf")
        unit = max(torch.finfo(ours.dtype).eps, 4 * torch.finfo(torch.float32).eps)
        allowed = 2 * (theirs.double() - gold).abs().max() + unit * gold.abs().max()
        worst = max(worst, ((ours.double() - gold).abs().max() / allowed).item())
    return worst


def main() -> None:
    options = arguments_of("gpu.check")
    device = "cpu" if options.dry else "cuda"
    # The interpreter does not round to bfloat16 as a GPU does.
    dtypes = DTYPES[:1] if options.dry else DTYPES
    start, num_calls, failures = time.perf_counter(), 0, []
    for op, calls in CALLS.items():
        worst = 0.0
        for shape in DRY_SHAPES if options.dry else SHAPES:
            for dtype in dtypes:
                for call in calls(Shape(*shape, dtype, device)):
                    multiple = excess(call)
                    num_calls += 1
                    worst = max(worst, multiple)
                    if not multiple <= 1:
                        failures.append(f"{op} [{call.label}] {shape} {dtype}: {multiple:.3g} times the allowed error")
        print(f"{op:22} largest error {worst:.2f} of the allowed")
    for line in failures:
        print(line)
    print(f"{num_calls} calls, {len(failures)} wrong, {time.perf_counter() - start:.0f} s")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
