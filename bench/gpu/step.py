"""Whole training steps at RoBERTa-large's size on this GPU: SimCSE, ``none``, ``exact``, eager and compiled (gpu.sh).

Random weights in bfloat16 with fused AdamW on them, B = 128 sentences of 22 of 32 tokens on average, N = 5. A step's
share of the limit is its FLOPs, counted in an eager step, over its time and over the rate of a bfloat16 matmul.
"""

import json
import time
from itertools import accumulate
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import RobertaConfig, RobertaModel

from bench.gpu.check import arguments_of
from bench.gpu.time import Clock
from bench.pages.scaling_table import LARGE
from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.encoder import Encoder
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective

TINY = RobertaConfig(
    vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, type_vocab_size=1
)
ROWS = (("simcse", "exact"), ("robustsentembed", "none"), ("robustsentembed", "exact"))
"""(objective, reuse)"""
NUM_BATCHES = 4
BUDGET_S = 100
"""After this long no further row is compiled."""


class _NoTokenizer:
    """What an encoder asks of a tokenizer when it is given ids."""

    def num_special_tokens_to_add(self) -> int:
        return 2


def batches(num_sentences: int, vocab_size: int, device: str) -> list[PackedBatch]:
    """Lengths between 12 and 32, 22 on average, random tokens."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(NUM_BATCHES):
        lengths = [12 + (7 * row + number) % 21 for row in range(num_sentences)]
        ids = torch.randint(5, vocab_size, (sum(lengths),), generator=generator).tolist()
        texts = [ids[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]
        special = [[place in (0, len(text) - 1) for place in range(len(text))] for text in texts]
        found.append(PackedBatch.from_token_lists(texts, special, position_offset=2).to(device))
    return found


def step_of(model: RobertaModel, objective: str, reuse: str, kind: str, device: str, dtype: torch.dtype) -> Step:
    encoder = Encoder(model, _NoTokenizer(), pooling="cls", max_length=32)
    head = resolve_objective(objective)(encoder.hidden_size).to(device, dtype)
    search = PerturbationConfig(reuse=reuse, epsilon_relative=0.1, alpha=0.3, beta=0.3, gamma=0.3)
    return Step(encoder, head, search, compile=kind, joint_views=None).train()


def main() -> None:
    options = arguments_of("gpu.step")
    device, config, size = ("cpu", TINY, 4) if options.dry else ("cuda", LARGE, 128)
    start, clock, dtype = time.perf_counter(), Clock(device), torch.bfloat16
    model = RobertaModel(config, add_pooling_layer=False).to(device, dtype)
    samples = batches(size, config.vocab_size, device)
    kinds = ["none", "default" if options.dry else "cudagraphs"]
    # The switch that lets torch.compile trace a gradient.
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        print(f"torch {torch.__version__} does not trace gradients: eager rows alone")
        kinds = kinds[:1]
    results = []
    for objective, reuse in ROWS:
        flops = 0.0
        for kind in kinds:
            is_late = time.perf_counter() - start > BUDGET_S
            if kind != "none" and (reuse == "none" or is_late):
                continue
            step = step_of(model, objective, reuse, kind, device, dtype)
            optimizer = torch.optim.AdamW(step.parameters(), lr=0.0, fused=True)

            def run(batch, step=step, optimizer=optimizer) -> None:
                optimizer.zero_grad(set_to_none=True)
                step(batch).backward()
                optimizer.step()
                step.commit()

            if kind == "none":
                with FlopCounterMode(display=False) as counter:
                    run(samples[0])
                flops = counter.get_total_flops()
            for batch in samples:
                run(batch)
            name = f"{objective} {reuse}"
            ms = median(clock.ms(lambda batch=batch: run(batch)) for batch in samples)
            share = flops / ms * 1e3 / clock.flops_per_s
            results.append({"row": name, "compile": kind, "ms": ms, "gflop": flops / 1e9, "share_of_matmul": share})
            print(
                f"{name:24} {kind:10} {ms:9.1f} ms {size / ms * 1e3:9.0f} sentences/s {share:6.0%} of the matmul rate"
            )
    if options.json:
        card = "none" if options.dry else torch.cuda.get_device_name()
        with open(f"{options.json}.steps", "w") as file:
            json.dump({"card": card, "torch": torch.__version__, "results": results}, file, indent=1)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
