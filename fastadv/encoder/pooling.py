"""Token states to one vector a sentence."""

import torch
from torch import Tensor

from fastadv.encoder.attention.layout import Padding, first_rows, pad

POOLINGS = ("cls", "mean", "first_last")


def cls_pool(states: Tensor, padding: Padding) -> Tensor:
    """The first token's state. (T, D) -> (B, D)"""
    return first_rows(states, padding)


def mean_pool(states: Tensor, lengths: Tensor, padding: Padding) -> Tensor:
    """The mean over all tokens, special ones included, as in sentence-transformers. (T, D) -> (B, D)

    Summed in float32 at least. A sum over the padded layout has a fixed order on every device; a scatter-add
    has not.
    """
    wide = states.to(torch.promote_types(states.dtype, torch.float32))
    return (pad(wide, padding).sum(1) / lengths.to(wide.dtype)[:, None]).to(states.dtype)


def first_last_pool(first: Tensor, last: Tensor, lengths: Tensor, padding: Padding) -> Tensor:
    """The mean over tokens of the average of embedding output and last states (BERT-flow, SimCSE)."""
    return mean_pool((first + last) / 2, lengths, padding)
