"""Weights in a narrower type for a while: float32 masters stay the parameters, copies of them compute.

Each weight is cast once, however many passes run on it; the cast is part of the graph, so the gradients of all passes
are summed in the narrow type, cast once, and arrive at the masters in float32.
"""

from contextlib import contextmanager
from typing import Callable

import torch
from torch import Tensor, nn


@contextmanager
def cast_weights(module: nn.Module, dtype: torch.dtype, is_cast: Callable[[str], bool]):
    """Inside the block the parameters of ``module`` whose names satisfy ``is_cast`` are copies in ``dtype``.

    Modules are called as ever and find them in their parameters' places. A parameter that several modules share is
    cast once.
    """
    masters: list[tuple[nn.Module, str, nn.Parameter]] = []
    copies: dict[int, Tensor] = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and is_cast(f"{prefix}.{name}" if prefix else name):
                masters.append((owner, name, parameter))
    try:
        for owner, name, parameter in masters:
            if id(parameter) not in copies:
                copies[id(parameter)] = parameter.to(dtype)
            owner._parameters[name] = copies[id(parameter)]
        yield
    finally:
        for owner, name, parameter in masters:
            owner._parameters[name] = parameter
