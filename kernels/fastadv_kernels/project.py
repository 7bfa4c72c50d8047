"""Projection on a ball: Π of METHODS.md 1.

    linf: clamp to [-epsilon, epsilon]
    l2:   x · epsilon / ||x||₂ where ||x||₂ > epsilon, else x bit for bit
    l1:   the nearest point of the ball: sign(x) · max(|x| - θ, 0), θ such that the magnitudes sum to epsilon,
          in float64: the reference by sorting (Duchi et al., "Efficient projections onto the l1-ball", ICML 2008,
          figure 1), C++ by dropping the entries below a rising θ until none is left to drop (Michelot, "A finite
          algorithm for finding the projection of a point onto the canonical simplex of R^n", JOTA 50, 1986)

The ball is the sentence's with ``cu_seqlens``, each row's without. The laws (inside the ball, idempotent)
hold to a few units in the last place of x's dtype.
"""

from typing import Optional

import torch
from torch import Tensor

from .backend import native_library, resolve
from .library import define_op, run_op
from .native import address, packed_arguments, sizes
from .segment import (
    at_least_float32,
    check_cu_seqlens,
    check_floating,
    check_norm,
    check_size,
    largest_magnitude,
    per_token,
    root_sum_square,
    scale_down,
    sentence_of_token,
    size_vector,
    spread,
)


def project_l1_rows(x: Tensor, epsilon: Tensor) -> Tensor:
    """Each row of ``x`` (R, n) on the l1-ball of its radius, ``epsilon`` (R, 1) float64."""
    magnitude = x.double().abs()
    ordered = magnitude.sort(dim=1, descending=True).values
    # All is counted down from the largest entry, which ends at `level` = largest - θ. θ itself is close to a
    # largest entry that lies far outside the ball, and the rounding of their difference would show.
    largest = ordered[:, 0].unsqueeze(1)
    below = largest - ordered
    total_below = below.cumsum(dim=1)
    count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=torch.float64)
    # A radius of 0 keeps no entry by this count; the level of the first alone is 0, and so is everything.
    num_kept = (below * count - total_below < epsilon).sum(dim=1, keepdim=True).clamp(min=1)
    level = (epsilon + total_below.gather(1, num_kept - 1)) / num_kept
    shrunk = (level - (largest - magnitude)).clamp(min=0)
    is_outside = magnitude.sum(dim=1, keepdim=True) > epsilon
    return torch.where(is_outside, x.double().sign() * shrunk, x.double()).to(x.dtype)


def project_l1_sentences(x: Tensor, epsilon: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Lays each sentence in one row, filled with zeros, which change neither the sums nor θ."""
    lengths = cu_seqlens.diff().long()
    sentence = sentence_of_token(cu_seqlens, x.shape[0])
    position = torch.arange(x.shape[0], device=x.device) - cu_seqlens.long()[sentence]
    padded = x.new_zeros(lengths.shape[0], int(lengths.max()), x.shape[1])
    padded = padded.index_put((sentence, position), x)
    projected = project_l1_rows(padded.flatten(1), epsilon).view_as(padded)
    return projected[sentence, position]


def project_reference(
    x: Tensor, epsilon: Optional[float | Tensor], norm: str, cu_seqlens: Optional[Tensor] = None
) -> Tensor:
    if epsilon is None or x.shape[0] == 0:
        return x
    if norm == "l1":
        num_balls = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        radii = torch.as_tensor(epsilon, dtype=torch.float64, device=x.device).reshape(-1).expand(num_balls)
        if cu_seqlens is None:
            return project_l1_rows(x, radii.unsqueeze(1))
        return project_l1_sentences(x, radii.unsqueeze(1), cu_seqlens)
    wide = at_least_float32(x)
    if cu_seqlens is not None:
        epsilon = per_token(epsilon, cu_seqlens, x.shape[0], wide.dtype)
    elif isinstance(epsilon, Tensor):
        epsilon = epsilon.to(wide.dtype).reshape(-1, 1)
    if norm == "linf":
        return wide.clamp(-epsilon, epsilon).to(x.dtype)
    magnitude = largest_magnitude(wide.detach(), cu_seqlens)
    scaled = scale_down(wide, magnitude)
    root = root_sum_square(scaled, cu_seqlens)
    root = root.unsqueeze(1) if cu_seqlens is None else spread(root, cu_seqlens, x.shape[0])
    return torch.where(magnitude * root > epsilon, scaled * (epsilon / root), wide).to(x.dtype)


def _project_fake(x, epsilon, norm, cu_seqlens):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _project_native(x, epsilon, norm, cu_seqlens):
    x, *offsets = packed_arguments("project", cu_seqlens, x=x)
    num_balls = offsets[0].shape[0] - 1 if offsets else x.shape[0]
    (radius,), strides = sizes("project", num_balls, epsilon=epsilon)
    out = torch.empty_like(x)
    native_library.project(
        x.data_ptr(),
        out.data_ptr(),
        address(offsets[0] if offsets else None),
        radius.data_ptr(),
        num_balls=num_balls,
        num_tokens=x.shape[0],
        embedding_size=x.shape[1],
        norm=norm,
        **strides,
    )
    return out


define_op(
    "project(Tensor x, Tensor epsilon, str norm, Tensor? cu_seqlens) -> Tensor",
    _project_fake,
    _project_native,
    "project_triton:launch",
)


def project(
    x: Tensor,
    epsilon: Optional[float | Tensor],
    norm: str,
    cu_seqlens: Optional[Tensor] = None,
    *,
    backend: Optional[str] = None,
) -> Tensor:
    """The nearest point to ``x`` (T, E) in the P-ball of radius ``epsilon``: (T, E), in x's dtype.

    Args:
        epsilon: None (no ball: x itself), a number, or one radius a ball: (B,), without ``cu_seqlens`` (T,).
            A radius of 0 gives zeros.
        cu_seqlens: (B + 1,) int32 for a ball per sentence; None for a ball per row.

    Raises:
        ValueError: an unknown norm, or types, shapes or devices that do not fit.
        BackendError: the named backend cannot run.
    """
    check_norm(norm)
    check_floating("project", "x", x)
    if cu_seqlens is not None:
        check_cu_seqlens("project", cu_seqlens, x.device)
    check_size("project", "epsilon", epsilon, x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1, x.device)
    chosen = resolve("project", x, backend, norm)
    if chosen != "reference" and epsilon is not None:
        return run_op("project", chosen, x, size_vector(epsilon, x.device), norm, cu_seqlens)
    return project_reference(x, epsilon, norm, cu_seqlens)
