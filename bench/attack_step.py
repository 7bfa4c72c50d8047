"""How fast the search alone is: ``python -m bench.attack_step --json attack.json``.

Sentences are embedded once and the keys are constants; a call is N inner steps from a random start, with a ball that
half the points reach, on one batch of real sentences (`bench.steps.data`). Every way of reuse and norm runs on the
library's reference operations and on its C++ ones; all take turns in one process. The JSON has the layout of
pytest-benchmark's, ``stats`` being CPU seconds; ``python -m bench.summary`` makes a table of it.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

import torch
from torch import Tensor

from bench.ops import NORMS, settle_allocator
from bench.steps.data import MAX_LENGTH, Sample, describe_lengths, draw_samples
from bench.turns import Clock, plan_turns, say, take_turns, time_statistics, write_json
from fastadv.engine.build import build_encoder, build_step
from fastadv.engine.step.inner_loss import InnerLoss
from fastadv.errors import UserError
from fastadv.launch.load import load_config
from fastadv.perturbation import Adversary
from fastadv_kernels import set_backend

REUSE = ("none", "exact", "adaptive")
BACKENDS = ("reference", "native")
_SEARCH = ("epsilon_relative=0.1", "alpha=0.5", "beta=0.4", "gamma=0.7")


@dataclass
class Row:
    """One way to search, and the batches' constants."""

    reuse: str
    norm: str
    backend: str
    search: Callable[[int], Tensor]
    """number of a batch → the perturbation found"""

    @property
    def name(self) -> str:
        return f"{self.reuse} {self.norm} {self.backend}"

    def run(self, number: int) -> float:
        set_backend(self.backend)
        try:
            return self.search(number).abs().max().item()
        finally:
            set_backend("auto")


def build_rows(model: str, samples: list[Sample], num_steps: int, dtype: torch.dtype) -> list[Row]:
    """Ways of reuse that the configuration refuses are left out, with a word on stderr."""
    encoder = constants = None
    rows = []
    for reuse in REUSE:
        for norm in NORMS:
            options = [f"--perturbation.{option}" for option in (*_SEARCH, f"norm={norm}", f"reuse={reuse}")]
            # As the benchmark of whole steps has it: one gradient, and no eta.
            options += ["--perturbation.use_eta=false"] if reuse == "adaptive" else []
            num_gradients = 1 if reuse == "adaptive" else None
            try:
                config = load_config(
                    None, [*options, f"--perturbation.num_steps={num_steps}", f"--encoder.model={model}"]
                )
            except UserError as error:
                say(f"left out: {reuse} {norm}: {error}")
                continue
            if encoder is None:
                encoder = build_encoder(config).to(dtype).train()
                objective = build_step(config, encoder).objective.to(dtype).train()
                constants = [_constants(encoder, objective, sample) for sample in samples]
            adversary = Adversary(config.perturbation, encoder, objective)

            def search(number, adversary=adversary, num_gradients=num_gradients, constants=constants) -> Tensor:
                x, loss = constants[number]
                return adversary.search(x, samples[number].packed, loss, num_gradients=num_gradients).delta

            rows += [Row(reuse, norm, backend, search) for backend in BACKENDS]
    return rows


@torch.no_grad()
def _constants(encoder, objective, sample: Sample) -> tuple[Tensor, InnerLoss]:
    """X (T, E), and the loss against the keys of a second view."""
    from fastadv.engine.step.gather import GlobalBatch

    batch = sample.packed
    x = encoder.embed(batch)
    keys = objective.project(encoder.encode(encoder.embed(batch), batch))
    return x, InnerLoss(encoder, objective, batch, GlobalBatch(batch).gather_keys(keys, batch.sentence_ids), masks=None)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=None, help="where the measurements go")
    parser.add_argument("--model", default="demo:minilm")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5, help="N")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=240.0, help="seconds for all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    settle_allocator()
    began = time.perf_counter()
    from fastadv.encoder.weights.source import find_model, load_tokenizer

    samples = draw_samples(load_tokenizer(find_model(options.model)), options.batch_size)
    lengths = describe_lengths(samples)
    say(f"B={options.batch_size}: {lengths}")
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    rows = build_rows(options.model, samples, options.steps, dtype)
    seconds = {row.name: Clock(row, 0).cpu for row in rows}
    times = take_turns(rows, range(len(samples)), plan_turns(seconds), began + options.budget_s)
    benchmarks = []
    tokens = lengths["length_mean"] * options.batch_size
    for row in rows:
        stats, beside = time_statistics(times[row.name], times[rows[0].name])
        info = {
            "reuse": row.reuse,
            "norm": row.norm,
            "backend": row.backend,
            "dtype": options.dtype,
            "device": "cpu",
            "threads": options.threads,
            "num_steps": options.steps,
            "batch_size": options.batch_size,
            "shape": f"B={options.batch_size} L<={MAX_LENGTH} N={options.steps}",
            **beside,
            **lengths,
            "sentences_per_s": options.batch_size / stats["median"],
            "tokens_per_s": tokens / stats["median"],
        }
        group = f"attack_step {row.reuse} {row.norm}"
        benchmarks.append({"name": f"{group}[{row.backend}]", "group": group, "stats": stats, "extra_info": info})
        say(
            f"  {row.name:24} {stats['median']:.3f} s ({stats['q1']:.3f} to {stats['q3']:.3f}), "
            f"{info['sentences_per_s']:.1f} sentences/s, {info['tokens_per_s']:.0f} tokens/s"
        )
    if options.json is not None:
        settings = {name: getattr(options, name) for name in ("model", "batch_size", "steps", "dtype", "threads")}
        write_json(options.json, settings, benchmarks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
