"""Dropout of the packed path."""

import torch.nn.functional as F
from torch import Tensor

from fastadv_kernels import dropout, resolve


def drop(states: Tensor, probability: float) -> Tensor:
    """``states`` with each element 0 with ``probability``, else scaled up.

    By the fast form where there is one (on a CPU), else by torch's own; both draw from torch's generator.
    """
    if resolve("dropout", states) == "native":
        return dropout(states, probability)
    return F.dropout(states, probability, training=True)
