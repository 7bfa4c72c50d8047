"""Whole training steps at RoBERTa-large's size on this GPU: ``exact``, SimCSE, ``none``, eager and compiled (gpu.sh).

Random weights in bfloat16 with fused AdamW on them, B = 128 sentences of 22 of 32 tokens on average, N = 5. A step's
share of the limit is its FLOPs, counted in an eager step, over its time and over the rate of a bfloat16 matmul.
"""

import gc
from functools import partial
from statistics import median
from typing import Any

import torch

from bench.gpu.kernel_calls import CALLS
from bench.gpu.part import Part, unproven_ops
from bench.gpu.time import Clock
from fastadv_kernels import set_backend

ROWS = (("robustsentembed", "exact"), ("simcse", "exact"), ("robustsentembed", "none"))
"""(objective, reuse), the most telling first"""


def main() -> None:
    part = Part("step", needs=("transformers", "pyarrow", "pydantic", "yaml", "tqdm"))
    # Once it is known that it can be imported.
    from bench.gpu import whole_steps

    # On a CPU in float32: what half precision is padded by there, no GPU is.
    dtype, size = (torch.float32, 4) if part.dry else (torch.bfloat16, 128)
    clock = Clock(part.device)
    unproven = unproven_ops(part.folder, list(CALLS))
    if unproven:
        print(f"plain torch runs in place of Triton: bench.gpu.check has not found right {', '.join(unproven)}")
        set_backend("reference")
    part.facts = {"kernels": "reference" if unproven else "auto", "matmul_tflop_per_s": clock.flops_per_s / 1e12}
    model = whole_steps.model_of(part.dry, part.device, dtype)
    samples = whole_steps.batches(size, model.config.vocab_size, part.device)
    # The switch that lets torch.compile trace a gradient.
    can_compile = hasattr(torch._dynamo.config, "trace_autograd_ops")
    if not can_compile:
        print(f"torch {torch.__version__} does not trace gradients: eager rows alone")
    flops: dict[str, float] = {}

    def measure(objective: str, reuse: str, kind: str) -> dict[str, Any]:
        name = f"{objective} {reuse}"
        run = whole_steps.Run(whole_steps.step_of(model, objective, reuse, kind, part.device, dtype))
        if kind == "none":
            flops[name] = run.flops(samples[0])
        for batch in samples:
            run(batch)
        found: dict[str, Any] = {}
        if not part.dry:
            torch.cuda.reset_peak_memory_stats()
        found["ms"] = median(clock.ms(partial(run, batch)) for batch in samples)
        if not part.dry:
            found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if name in flops:
            found["gflop"] = flops[name] / 1e9
            found["share_of_matmul"] = flops[name] / found["ms"] * 1e3 / clock.flops_per_s
        return found

    for objective, reuse in ROWS:
        for kind in ("none", "default" if part.dry else "cudagraphs"):
            if kind != "none" and (reuse == "none" or not can_compile):
                continue
            # Compiling a row takes a minute or more.
            if part.is_late() or (kind != "none" and part.is_late(0.5)):
                continue
            found = part.row(partial(measure, objective, reuse, kind), row=f"{objective} {reuse}", compile=kind)
            # What a row that failed holds must not be missing in the next.
            gc.collect()
            if not part.dry:
                torch.cuda.empty_cache()
            if "error" not in found:
                rate = f"{size / found['ms'] * 1e3:9.0f} sentences/s"
                share = f"{found.get('share_of_matmul', float('nan')):6.0%} of the matmul rate"
                print(f"{objective:16}{reuse:8}{kind:11}{found['ms']:9.1f} ms {rate} {share}")
    part.end()


if __name__ == "__main__":
    main()
