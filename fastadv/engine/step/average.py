"""The average of a model over optimizer steps: encoder and classification head, for an objective that learns from it.

It stands outside of what DeepSpeed wraps, so that it is neither cut up, reduced nor cast, and has no gradient and no
dropout. Every rank holds all of it and moves it by the same numbers: the weights after a step, in full precision.
"""

import copy
from contextlib import nullcontext
from typing import Callable

import torch
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.distributed.zero import whole_parameter

PREFIX = "average_model."
"""of its tensors' names in a checkpoint"""


class AverageModel:
    """theta~ <- decay * theta~ + (1 - decay) * theta after each optimizer step; it starts at theta.

    Args:
        encoder, head: what it is the average of, before DeepSpeed has changed them; of the type that theta~ has.
        decay: number of the step, from 1 → decay.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, decay: Callable[[int], float]):
        # The tokenizer holds no weights and need not be there twice.
        tokenizer = getattr(encoder, "tokenizer", None)
        self._encoder = copy.deepcopy(encoder, {id(tokenizer): tokenizer}).eval().requires_grad_(False)
        self._head = copy.deepcopy(head).eval().requires_grad_(False)
        self._decay, self._num_updates = decay, 0
        self._kept: dict[str, nn.Parameter] = {}
        self._sources: dict[str, nn.Parameter] = {}
        for part, source, kept in (("encoder", encoder, self._encoder), ("head", head, self._head)):
            own = dict(kept.named_parameters())
            for name, parameter in source.named_parameters():
                # What is not trained is what it was.
                if parameter.requires_grad:
                    self._kept[f"{PREFIX}{part}.{name}"] = own[name]
                    self._sources[f"{PREFIX}{part}.{name}"] = parameter

    @torch.no_grad()
    def logits(self, batch: PackedBatch, dtype: torch.dtype) -> Tensor:
        """(B, C) of the average model in eval mode, computed in ``dtype`` like those that they are compared with."""
        encoder = self._encoder
        own = next(encoder.parameters()).dtype
        with nullcontext() if dtype == own else encoder.computing_in(dtype):
            pooled = encoder.encode(encoder.embed(batch, dropout=False), batch, dropout=False)
        return self._head(pooled)

    @torch.no_grad()
    def update(self) -> None:
        """After an optimizer step. All ranks call it: at ZeRO stage 3 parameters are gathered, one at a time."""
        self._num_updates += 1
        weight = 1 - self._decay(self._num_updates)
        for name, kept in self._kept.items():
            kept.lerp_(whole_parameter(self._sources[name]).to(kept.dtype), weight)

    def state_dict(self) -> dict[str, Tensor]:
        weights = {name: kept.detach() for name, kept in self._kept.items()}
        return {**weights, f"{PREFIX}num_updates": torch.tensor(self._num_updates)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, kept in self._kept.items():
            kept.copy_(state[name])
        self._num_updates = int(state[f"{PREFIX}num_updates"])
