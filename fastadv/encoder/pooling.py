"""Token states to one vector a sentence."""

import torch
from torch import Tensor

from fastadv.encoder.attention.layout import Padding, pad

POOLINGS = ("cls", "mean", "first_last")


def mean_pool(states: Tensor, lengths: Tensor, padding: Padding) -> Tensor:
    """The mean over all tokens, special ones included, as in sentence-transformers. (T, D) -> (B, D)

    Summed in float32 at least. A sum over the padded layout has a fixed order on every device; a scatter-add
    has not.
    """
    wide = states.to(torch.promote_types(states.dtype, torch.float32))
    return (pad(wide, padding).sum(1) / lengths.to(wide.dtype)[:, None]).to(states.dtype)
