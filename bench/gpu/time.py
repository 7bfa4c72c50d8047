"""Times of every Triton op on this GPU beside eager torch and torch.compile, as shares of its limits. See gpu.sh.

The limits are measured here: the copy of as many bytes as the op must move, each counted once, and a bfloat16 matmul.
The caches are emptied before every run of anything, by the same benchmark for all.
"""

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from itertools import product

import torch
from torch.nn.functional import normalize

from bench.gpu.check import arguments_of, outputs
from bench.gpu.info_nce_calls import TEMPERATURE
from bench.gpu.kernel_calls import CALLS, Call, Shape

SHAPES = ((512, 32, 768), (64, 32, 768))
DTYPES = (torch.float32, torch.bfloat16)
DRY_SHAPES = ((2, 4, 40),)
LARGE = {"info_nce": (2048, 32, 1024), "info_nce_backward": (2048, 32, 1024)}
"""op -> a shape at which plain torch would not fit: 65,536 queries, in bfloat16"""
BUDGET_S = 240
"""After this long nothing further is compiled by torch; Triton's times are still taken."""


def gpu_ms(function: Callable) -> float:
    from triton.testing import do_bench

    return do_bench(function, warmup=10, rep=60, return_mode="median")


def cpu_ms(function: Callable) -> float:
    times = []
    for _ in range(2):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


class Clock:
    """Times on this device, and its limits."""

    def __init__(self, device: str):
        self.device = device
        self.ms = gpu_ms if device == "cuda" else cpu_ms
        self.copies: dict[int, float] = {}
        size = 8192 if device == "cuda" else 64
        a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        self.flops_per_s = 2 * size**3 / self.ms(lambda: a @ b) * 1e3

    def copy_ms(self, num_bytes: int) -> float:
        """A copy that reads half the bytes and writes half."""
        if num_bytes not in self.copies:
            source = torch.zeros(num_bytes // 2, dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            self.copies[num_bytes] = self.ms(lambda: target.copy_(source))
        return self.copies[num_bytes]

    def share(self, call: Call, ms: float) -> float:
        """Of the limit that binds the call."""
        if call.num_flops:
            return call.num_flops / ms * 1e3 / self.flops_per_s
        return self.copy_ms(call.num_bytes) / ms


def torch_compiled(call: Call) -> Callable:
    torch._dynamo.reset()
    compiled = torch.compile(call.reference, dynamic=False)
    outputs(compiled(*call.arguments))
    return lambda: compiled(*call.arguments)


def row(
    clock: Clock, call: Call, shape: tuple[int, ...], dtype: torch.dtype, compiles: bool, is_eager: bool = True
) -> dict:
    """One call's times, in ms."""
    result = {
        "op": call.op,
        "label": call.label,
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
        "triton_ms": clock.ms(call.run),
        "eager_ms": clock.ms(lambda: call.reference(*call.arguments)) if is_eager else None,
        "compiled_ms": clock.ms(torch_compiled(call)) if compiles else None,
    }
    result["limit"] = "bf16 matmul" if call.num_flops else "copy"
    result["share_of_limit"] = clock.share(call, result["triton_ms"])
    if call.num_bytes:
        result["gb_per_s"] = call.num_bytes / result["triton_ms"] / 1e6
    return result


def inf_cl_ms(clock: Clock, shape: tuple[int, ...]) -> float | None:
    """Forward and backward of inf-cl's loss on as many queries and keys; None where the package is not installed."""
    if importlib.util.find_spec("inf_cl") is None:
        return None
    from inf_cl import cal_flash_loss

    vectors = [torch.randn(shape[0] * shape[1], shape[2], device=clock.device, dtype=torch.bfloat16) for _ in range(2)]
    query, keys = (x.requires_grad_() for x in vectors)

    def step():
        loss = cal_flash_loss(normalize(query), normalize(keys), scale=1 / TEMPERATURE).mean()
        return torch.autograd.grad(loss, (query, keys))

    return clock.ms(step)


def line(result: dict) -> str:
    eager, compiled = ("-" if result[key] is None else f"{result[key]:.4f}" for key in ("eager_ms", "compiled_ms"))
    name = f"{result['op']} {result['label']}"
    shape = "x".join(map(str, result["shape"]))
    return (
        f"{name:32} {shape:12} {result['dtype']:9} {result['triton_ms']:9.4f} {eager:>9} {compiled:>9} "
        f"{result['share_of_limit']:6.0%} of {result['limit']}"
    )


def main() -> None:
    options = arguments_of("gpu.time")
    device = "cpu" if options.dry else "cuda"
    start = time.perf_counter()
    clock = Clock(device)
    large = 2**20 if options.dry else 2**31
    card = "none" if options.dry else torch.cuda.get_device_name()
    copy_gb_per_s = large / clock.copy_ms(large) / 1e6
    print(
        f"{card}, torch {torch.__version__}: copy {copy_gb_per_s:.0f} GB/s of {large // 2**20} MiB, "
        f"bf16 matmul {clock.flops_per_s / 1e12:.0f} TFLOP/s"
    )
    print(f"{'op':32} {'B x L x E':12} {'dtype':9} {'triton ms':>9} {'eager ms':>9} {'compiled':>9}")
    results = []
    shapes = DRY_SHAPES if options.dry else SHAPES
    for i, (shape, dtype) in enumerate(product(shapes, DTYPES[:1] if options.dry else DTYPES)):
        for calls in CALLS.values():
            for call in calls(Shape(*shape, dtype, device)):
                if "no ball" in call.label or call.label.endswith(("before", "none")):
                    continue
                # torch compiles at the first shape and dtype alone: it takes seconds each.
                in_time = time.perf_counter() - start < BUDGET_S
                results.append(row(clock, call, shape, dtype, i == 0 and in_time and not options.dry))
                print(line(results[-1]))
    for op, shape in {} if options.dry else LARGE.items():
        for call in CALLS[op](Shape(*shape, torch.bfloat16, device)):
            results.append(row(clock, call, shape, torch.bfloat16, compiles=False, is_eager=False))
            print(line(results[-1]))
        # It takes one key set, without hard negatives or ids.
        if op == "info_nce_backward" and (ms := inf_cl_ms(clock, shape)) is not None:
            print(f"{'inf-cl, forward and backward':32} {'x'.join(map(str, shape)):12} bfloat16  {ms:9.4f}")
            results.append({"op": "inf-cl", "shape": shape, "dtype": "bfloat16", "ms": ms})
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"card": card, "torch": torch.__version__, "results": results}, file, indent=1)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
