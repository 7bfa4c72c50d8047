"""One step of a sentence-level perturbation ``delta`` (T, E), and its projection on the sentence's ball.

    sentence_step (PGD):  delta <- Π(delta + step_size · dir(grad))       RobustSentEmbed eq. 5
    sign_step (FGSM):     delta <- Π(delta + step_size · sign(grad))      RobustSentEmbed eq. 6; sign(0) = 0

dir and Π are per sentence (``direction.py``, ``project.py``). A sentence whose gradient holds a NaN or an
infinity keeps its delta bit for bit, and no other sentence notices.
"""

from typing import Callable, Optional

import torch
from torch import Tensor

from .backend import resolve
from .direction import direction_reference
from .project import project_reference
from .segment import at_least_float32, check_norm, check_packed, largest_magnitude, per_token


def finite_sentences(grad: Tensor, cu_seqlens: Tensor) -> Tensor:
    """(T, 1) bool: the gradient of this token's whole sentence is finite."""
    return torch.isfinite(largest_magnitude(grad.detach(), cu_seqlens))


def step_reference(
    delta: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    step_size: float | Tensor,
    epsilon: Optional[float | Tensor],
    norm: str,
    ascent: Callable[[Tensor], Tensor],
) -> Tensor:
    finite = finite_sentences(grad, cu_seqlens)
    # The bad values leave before any arithmetic: afterwards they could still reach others as 0 · NaN.
    wide = at_least_float32(torch.where(finite, grad, 0))
    size = per_token(step_size, cu_seqlens, delta.shape[0], wide.dtype)
    moved = project_reference(at_least_float32(delta) + size * ascent(wide), epsilon, norm, cu_seqlens)
    return torch.where(finite, moved.to(delta.dtype), delta)


def sentence_step_reference(delta, grad, cu_seqlens, step_size, epsilon, norm):
    def ascent(wide: Tensor) -> Tensor:
        return direction_reference(wide, norm, cu_seqlens)

    return step_reference(delta, grad, cu_seqlens, step_size, epsilon, norm, ascent)


def sign_step_reference(delta, grad, cu_seqlens, step_size, epsilon, norm):
    return step_reference(delta, grad, cu_seqlens, step_size, epsilon, norm, torch.sign)


def sentence_step(
    delta: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    step_size: float | Tensor,
    epsilon: Optional[float | Tensor],
    norm: str,
    *,
    backend: Optional[str] = None,
) -> Tensor:
    """One PGD step: Π(delta + step_size · dir(grad)) per sentence. (T, E), in delta's dtype.

    Args:
        delta: (T, E) perturbation; grad: (T, E) derivative of the inner loss by it.
        step_size: alpha, a number or one a sentence (B,).
        epsilon: None (no ball), a number, or one a sentence (B,).

    Raises:
        ValueError: an unknown norm, or shapes that do not fit.
    """
    check_norm(norm)
    check_packed(delta, grad, cu_seqlens, step_size, epsilon)
    resolve("sentence_step", delta, backend)
    return sentence_step_reference(delta, grad, cu_seqlens, step_size, epsilon, norm)


def sign_step(
    delta: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    step_size: float | Tensor,
    epsilon: Optional[float | Tensor],
    norm: str,
    *,
    backend: Optional[str] = None,
) -> Tensor:
    """One FGSM step: Π(delta + step_size · sign(grad)) per sentence. (T, E), in delta's dtype.

    ``norm`` is that of the ball alone; step_size is beta. Arguments and errors as in ``sentence_step``.
    """
    check_norm(norm)
    check_packed(delta, grad, cu_seqlens, step_size, epsilon)
    resolve("sign_step", delta, backend)
    return sign_step_reference(delta, grad, cu_seqlens, step_size, epsilon, norm)
