"""The training steps that bench.gpu.step times: random weights, random tokens, no file and no network."""

from itertools import accumulate

import torch
from transformers import RobertaConfig, RobertaModel

from bench.pages.model_sizes import LARGE
from bench.steps.cost import StepCounter
from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.encoder import Encoder
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective

TINY = RobertaConfig(
    vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, type_vocab_size=1
)
NUM_BATCHES = 4


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


def model_of(dry: bool, device: str, dtype: torch.dtype) -> RobertaModel:
    """RoBERTa-large, or a tiny one."""
    return RobertaModel(TINY if dry else LARGE, add_pooling_layer=False).to(device, dtype)


def step_of(model: RobertaModel, objective: str, reuse: str, kind: str, device: str, dtype: torch.dtype) -> Step:
    encoder = Encoder(model, _NoTokenizer(), pooling="cls", max_length=32)
    head = resolve_objective(objective)(encoder.hidden_size).to(device, dtype)
    search = PerturbationConfig(reuse=reuse, epsilon_relative=0.1, alpha=0.3, beta=0.3, gamma=0.3)
    return Step(encoder, head, search, compile=kind, joint_views=None).train()


class Run:
    """One step after another on a step of its own, with fused AdamW, whose rate of 0 keeps the weights for the next."""

    def __init__(self, step: Step):
        self._step = step
        self._optimizer = torch.optim.AdamW(step.parameters(), lr=0.0, fused=True)

    def __call__(self, batch: PackedBatch) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._step(batch).backward()
        self._optimizer.step()
        self._step.commit()

    def flops(self, batch: PackedBatch) -> float:
        """Of one step. Torch's own counter does not stand the inner loop's gradients."""
        with StepCounter() as counter:
            self(batch)
        return counter.flops
