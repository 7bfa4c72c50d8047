"""The token-level perturbation's step (RobustSentEmbed eq. 2-4 and Algorithm 1, METHODS.md 1).

    u_i = eta_i + step_size · dir(g_i)            dir over the token's own entries
    n_i = ||v_i||_P / max_j ||v_j||_P             j over the tokens of the sentence; 1 where the max is 0
    eta_i <- Π(n_i · u_i)                         Π on the token's own ball

with v = u for scaling "after", v = eta for "before" (eq. 2 as printed), and n_i = 1 for "none". A sentence
whose gradient holds a NaN or an infinity keeps its eta bit for bit, and no other sentence notices.
"""

from typing import Optional

import torch
from torch import Tensor

from .backend import native_library, resolve
from .direction import direction_reference
from .library import define_op, run_op
from .native import address, packed_arguments, sizes
from .project import project_reference
from .segment import (
    at_least_float32,
    check_norm,
    check_packed,
    per_token,
    row_norm_reference,
    segment_max,
    size_vector,
    spread,
)
from .sentence_step import finite_sentences

SCALINGS = ("after", "before", "none")


def relative_size(v: Tensor, cu_seqlens: Tensor, norm: str) -> Tensor:
    """n_i of each token: (T, 1)."""
    size = row_norm_reference(v, norm)
    largest = spread(segment_max(size, cu_seqlens), cu_seqlens, v.shape[0])
    return torch.where(largest != 0, size.unsqueeze(1) / torch.where(largest != 0, largest, 1), 1)


def token_update_reference(eta, grad, cu_seqlens, step_size, epsilon, norm, scaling):
    num_tokens = eta.shape[0]
    finite = finite_sentences(grad, cu_seqlens)
    # The bad values leave before any arithmetic: afterwards they could still reach others as 0 · NaN.
    ascent = direction_reference(torch.where(finite, grad, 0), norm)
    old = at_least_float32(eta)
    moved = old + per_token(step_size, cu_seqlens, num_tokens, ascent.dtype) * ascent
    if scaling != "none":
        moved = relative_size(moved if scaling == "after" else old, cu_seqlens, norm) * moved
    if epsilon is not None:
        moved = project_reference(moved, per_token(epsilon, cu_seqlens, num_tokens, moved.dtype), norm)
    return torch.where(finite, moved.to(eta.dtype), eta)


def _token_update_fake(eta, grad, cu_seqlens, step_size, epsilon, norm, scaling):
    return torch.empty_like(eta, memory_format=torch.contiguous_format)


def _token_update_native(eta, grad, cu_seqlens, step_size, epsilon, norm, scaling):
    eta, grad, cu_seqlens = packed_arguments("token_update", cu_seqlens, eta=eta, grad=grad)
    num_sentences = cu_seqlens.shape[0] - 1
    (step, radius), strides = sizes("token_update", num_sentences, step_size=step_size, epsilon=epsilon)
    out = torch.empty_like(eta)
    native_library.token_update(
        eta.data_ptr(),
        grad.data_ptr(),
        out.data_ptr(),
        cu_seqlens.data_ptr(),
        step.data_ptr(),
        address(radius),
        num_sentences=num_sentences,
        num_tokens=eta.shape[0],
        embedding_size=eta.shape[1],
        step_stride=strides["step_size_stride"],
        epsilon_stride=strides["epsilon_stride"],
        norm=norm,
        scaling=scaling,
    )
    return out


define_op(
    "token_update(Tensor eta, Tensor grad, Tensor cu_seqlens, Tensor step_size, Tensor? epsilon, "
    "str norm, str scaling) -> Tensor",
    _token_update_fake,
    _token_update_native,
    "token_update_triton:launch",
)


def token_update(
    eta: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    step_size: float | Tensor,
    epsilon: Optional[float | Tensor],
    norm: str,
    scaling: str = "after",
    *,
    backend: Optional[str] = None,
) -> Tensor:
    """One step of eta, per token and scaled within its sentence. (T, E), in eta's dtype.

    Args:
        eta: (T, E) perturbation; grad: (T, E) derivative of the inner loss by it.
        step_size: gamma, a number or one a sentence (B,).
        epsilon: radius of every token's ball: None (no ball), a number, or one a sentence (B,).
        scaling: "after", "before" or "none".

    Raises:
        ValueError: an unknown norm or scaling, or types, shapes or devices that do not fit.
        BackendError: the named backend cannot run.
    """
    check_norm(norm)
    if scaling not in SCALINGS:
        raise ValueError(f"scaling is {scaling!r}; allowed: {', '.join(SCALINGS)}")
    check_packed("token_update", {"eta": eta}, grad, cu_seqlens, step_size=step_size, epsilon=epsilon)
    chosen = resolve("token_update", (eta, grad), backend, norm)
    if chosen != "reference":
        step, radius = size_vector(step_size, eta.device), size_vector(epsilon, eta.device)
        return run_op("token_update", chosen, eta, grad, cu_seqlens, step, radius, norm, scaling)
    return token_update_reference(eta, grad, cu_seqlens, step_size, epsilon, norm, scaling)
