"""The encoder as it was before training: its vectors are what ``weight_keep`` holds the trained ones to."""

import copy

import torch
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch


def copy_of(encoder: nn.Module) -> nn.Module:
    """A copy with weights of its own. The tokenizer holds none and need not be there twice."""
    tokenizer = getattr(encoder, "tokenizer", None)
    return copy.deepcopy(encoder, {id(tokenizer): tokenizer})


class OriginalEncoder:
    """batch → h (B, D) of its sentences by a frozen copy of an encoder, without dropout and without a graph.

    It is no module, so that DeepSpeed does not find it and checkpoints do not hold it: a run that goes on makes it
    again from the weights that training began with.

    Args:
        encoder: copied as it is now.
        dtype: what the copy computes in; None: the encoder's own.
    """

    def __init__(self, encoder: nn.Module, dtype: torch.dtype | None = None):
        self._encoder = copy_of(encoder).eval().requires_grad_(False).to(dtype=dtype)

    @torch.no_grad()
    def __call__(self, batch: PackedBatch) -> Tensor:
        # Where the batch is: the copy is made before the step is moved.
        encoder = self._encoder.to(batch.input_ids.device)
        return encoder.encode(encoder.embed(batch, dropout=False), batch, dropout=False)
