"""Weights in a narrower type for a while: float32 masters stay the parameters, copies of them compute.

Each weight is cast once, however many passes run on it; the cast is part of the graph, so the gradients of all passes
are summed in the narrow type, cast once, and arrive at the masters in float32.
"""

from contextlib import contextmanager
from typing import Callable

import torch
from torch import Tensor, nn


class CastWeights:
    """Copies in ``dtype`` of the parameters of ``module`` whose names satisfy ``is_cast``, made here, with a graph.

    A parameter that several modules share is cast once.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, is_cast: Callable[[str], bool]):
        self._places: list[tuple[nn.Module, str, Tensor]] = []
        copies: dict[int, Tensor] = {}
        for prefix, owner in module.named_modules():
            for name, parameter in owner._parameters.items():
                if parameter is None or not is_cast(f"{prefix}.{name}" if prefix else name):
                    continue
                if id(parameter) not in copies:
                    copies[id(parameter)] = parameter.to(dtype)
                self._places.append((owner, name, copies[id(parameter)]))

    @contextmanager
    def applied(self):
        """Inside the block modules find the copies in their parameters' places. May be entered many times."""
        replaced = [(owner, name, owner._parameters[name]) for owner, name, _ in self._places]
        try:
            for owner, name, copy in self._places:
                owner._parameters[name] = copy
            yield
        finally:
            for owner, name, parameter in replaced:
                owner._parameters[name] = parameter
