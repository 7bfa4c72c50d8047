"""The direction of a gradient.

    dir(g) = g / ||g||_P,  and 0 where g is 0

over a sentence's tokens (with ``cu_seqlens``, RobustSentEmbed eq. 5) or over one token (without, eq. 2). The
gradient is divided by its largest magnitude m first, by 1 where m is 0: no constant enters a denominator,
1e-30 and 1e30 are in range, and gradients that differ by a power of two have bit-equal directions.
"""

from typing import Optional

import torch
from torch import Tensor

from .backend import reference_alone, resolve
from .segment import (
    at_least_float32,
    check_norm,
    largest_magnitude,
    root_sum_square,
    scale_down,
    segment_sum,
    spread,
)

reference_alone("direction")


def direction_reference(grad: Tensor, norm: str, cu_seqlens: Optional[Tensor] = None) -> Tensor:
    grad = at_least_float32(grad)
    if norm == "linf":
        magnitude = largest_magnitude(grad, cu_seqlens)
        return torch.where(magnitude != 0, scale_down(grad, magnitude), 0)
    # dir(g) does not depend on the scale, so m is a constant to autograd.
    magnitude = largest_magnitude(grad.detach(), cu_seqlens)
    scaled = scale_down(grad, magnitude)
    if norm == "l2":
        size = root_sum_square(scaled, cu_seqlens)
    else:
        size = scaled.abs().sum(dim=1)
        size = size if cu_seqlens is None else segment_sum(size, cu_seqlens)
        size = torch.where(size != 0, size, 1)
    size = size.unsqueeze(1) if cu_seqlens is None else spread(size, cu_seqlens, grad.shape[0])
    return torch.where(magnitude != 0, scaled / size, 0)


def direction(grad: Tensor, norm: str, cu_seqlens: Optional[Tensor] = None, *, backend: Optional[str] = None) -> Tensor:
    """``grad`` (T, E) scaled to P-norm 1 per sentence, or per token without ``cu_seqlens``.

    (T, E), float32 at least. A zero gradient has direction zero and derivative zero.

    Raises ValueError for an unknown norm.
    """
    check_norm(norm)
    resolve("direction", grad, backend)
    return direction_reference(grad, norm, cu_seqlens)
