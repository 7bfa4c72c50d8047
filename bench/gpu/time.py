"""Times of every Triton op on this GPU beside eager torch and torch.compile, as shares of its limits. See gpu.sh.

The limits are measured here: the copy of as many bytes as the op must move, each counted once, and a bfloat16 matmul.
The caches are emptied before every run of anything, by the same benchmark for all.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import normalize

from bench.gpu.check import outputs
from bench.gpu.info_nce_calls import TEMPERATURE
from bench.gpu.kernel_calls import CALLS, Call, every_call
from bench.gpu.part import Part, first_line, unproven_ops

SHAPES = ((512, 32, 768), (64, 32, 768))
DTYPES = (torch.float32, torch.bfloat16)
DRY_SHAPES = ((2, 4, 40),)
LARGE = {"info_nce": (2048, 32, 1024), "info_nce_backward": (2048, 32, 1024)}
"""op -> a shape at which plain torch would not fit: 65,536 queries, in bfloat16"""


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


def row(clock: Clock, call: Call, compiles: bool, is_eager: bool = True) -> dict:
    """One call's times, in ms."""
    result = {
        "triton_ms": clock.ms(call.run),
        "eager_ms": clock.ms(lambda: call.reference(*call.arguments)) if is_eager else None,
        "compiled_ms": None,
    }
    if compiles:
        try:
            result["compiled_ms"] = clock.ms(torch_compiled(call))
        # What torch cannot compile takes nothing away from what was timed.
        except Exception as error:
            result["compile_error"] = first_line(error)
    result["limit"] = "bf16 matmul" if call.num_flops else "copy"
    result["share_of_limit"] = clock.share(call, result["triton_ms"])
    if call.num_bytes:
        result["gb_per_s"] = call.num_bytes / result["triton_ms"] / 1e6
    return result


def inf_cl_ms(clock: Clock, shape: tuple[int, ...]) -> float:
    """Forward and backward of inf-cl's loss on as many queries and keys."""
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
    part = Part("time", choices=["info_nce", "rest"])
    clock = Clock(part.device)
    large = 2**20 if part.dry else 2**31
    part.facts = {"copy_gb_per_s": large / clock.copy_ms(large) / 1e6, "matmul_tflop_per_s": clock.flops_per_s / 1e12}
    print(", ".join(f"{name} {value:.4g}" for name, value in part.facts.items()))
    print(f"{'op':32} {'B x L x E':12} {'dtype':9} {'triton ms':>9} {'eager ms':>9} {'compiled':>9}")
    asked = [op for op in CALLS if (op in LARGE) == (part.ops == "info_nce")]
    unproven = unproven_ops(part.folder, asked)
    if unproven:
        print(f"no time is taken of what bench.gpu.check has not found right: {', '.join(unproven)}")
        part.row(lambda: {"error": "not found right by bench.gpu.check"}, ops=unproven)
    asked = [op for op in asked if op not in unproven]

    def take(call: Call, name: dict, **options: bool) -> None:
        found = part.row(lambda: row(clock, call, **options), **name)
        print(f"{call.op} {call.label}: {found['error']}" if "error" in found else line(found))

    if not part.dry:
        # First, since it is what no other form can do.
        for op in [op for op in asked if op in LARGE]:
            for call, name in every_call([op], [LARGE[op]], [torch.bfloat16], part.device):
                take(call, name, compiles=False, is_eager=False)
        # It takes one key set, without hard negatives or ids.
        if "info_nce_backward" in asked and importlib.util.find_spec("inf_cl") is not None:
            shape = LARGE["info_nce_backward"]
            found = part.row(lambda: {"ms": inf_cl_ms(clock, shape)}, op="inf-cl", shape=shape, dtype="bfloat16")
            print(f"{'inf-cl, forward and backward':32} {'x'.join(map(str, shape)):12} bfloat16  {found.get('ms')} ms")
    shapes, dtypes = (DRY_SHAPES, DTYPES[:1]) if part.dry else (SHAPES, DTYPES)
    for call, name in every_call(asked, shapes, dtypes, part.device):
        if "no ball" in call.label or call.label.endswith(("before", "none")):
            continue
        if part.is_late():
            break
        # torch compiles at the first shape and dtype alone: it takes seconds each.
        is_first = name["shape"] == shapes[0] and name["dtype"] in str(dtypes[0])
        take(call, name, compiles=is_first and not part.dry and not part.is_late(0.6))
    part.end()


if __name__ == "__main__":
    main()
