"""Dropout: how likely it is in a model, and how the packed path applies it."""

import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.errors import UserError
from fastadv_kernels import dropout, resolve


def drop(states: Tensor, probability: float) -> Tensor:
    """``states`` with each element 0 with ``probability``, else scaled up.

    By the fast form where there is one (on a CPU), else by torch's own; both draw from torch's generator.
    """
    if resolve("dropout", states) == "native":
        return dropout(states, probability)
    return F.dropout(states, probability, training=True)


def set_dropout(hf_model: nn.Module, probability: float) -> None:
    """Sets every dropout probability of a model, in its modules and in the configuration saved with it."""
    if not 0 <= probability < 1:
        raise UserError(f"dropout {probability} is not a probability in [0, 1)")
    for module in hf_model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name, value in vars(module).items():
            # Attention kept as a function holds its probability as a plain number.
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, probability)
    for name, value in vars(hf_model.config).items():
        # A classifier's own probability is no part of the encoder.
        if "dropout" in name and "classif" not in name and isinstance(value, float):
            setattr(hf_model.config, name, probability)
