"""Weights in a narrower type for a while: float32 masters stay the parameters, copies of them compute.

Each weight is cast once, however many passes run on it; the cast is part of the graph, so the gradients of all passes
are summed in the narrow type, cast once, and arrive at the masters in float32.
"""

from contextlib import contextmanager
from typing import Callable, Sequence

import torch
from torch import Tensor, nn

_AT_ONCE = 32
"""Weights that are cast together: two layers of the BERT family. A GPU casts them in one launch. Their gradients wait
for each other, so that all at once would hold every narrow gradient until the backward's end."""


class CastWeights:
    """Copies in ``dtype`` of the parameters of ``module`` whose names satisfy ``is_cast``, made here, with a graph.

    A parameter that several modules share is cast once.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, is_cast: Callable[[str], bool]):
        found = [
            (owner, name, parameter)
            for prefix, owner in module.named_modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None and is_cast(f"{prefix}.{name}" if prefix else name)
        ]
        weights = {id(parameter): parameter for *_, parameter in found}
        copies = dict(zip(weights, _cast_in_groups(list(weights.values()), dtype)))
        self._places = [(owner, name, copies[id(parameter)]) for owner, name, parameter in found]

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


def _cast_in_groups(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    groups = (weights[begin : begin + _AT_ONCE] for begin in range(0, len(weights), _AT_ONCE))
    return [copy for group in groups for copy in _Cast.apply(dtype, *group)]


class _Cast(torch.autograd.Function):
    """(dtype, weights) -> copies in ``dtype``, with as few launches as the device allows, and so back."""

    @staticmethod
    def forward(ctx, dtype, *weights):
        ctx.set_materialize_grads(False)
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(_copied(weights, [dtype] * len(weights)))

    @staticmethod
    def backward(ctx, *grads):
        given = [place for place, grad in enumerate(grads) if grad is not None]
        wide = _copied([grads[place] for place in given], [ctx.dtypes[place] for place in given])
        found = dict(zip(given, wide))
        return None, *(found.get(place) for place in range(len(grads)))


def _copied(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes)]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
