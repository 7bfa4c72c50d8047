"""One step of a sentence-level perturbation ``delta`` (T, E), and its projection on the sentence's ball.

    sentence_step (PGD):  delta <- Π(delta + step_size · dir(grad))       RobustSentEmbed eq. 5
    sign_step (FGSM):     delta <- Π(delta + step_size · sign(grad))      RobustSentEmbed eq. 6; sign(0) = 0
    pair_step:            both, each from its own delta, where they share a gradient
    mix_chains:           rho · delta_pgd + (1 - rho) · delta_fgsm        RobustSentEmbed eq. 7

dir and Π are per sentence (``direction.py``, ``project.py``). A sentence whose gradient holds a NaN or an
infinity keeps its delta bit for bit, and no other sentence notices.
"""

from typing import Callable, Optional

import torch
from torch import Tensor

from .backend import native_library, resolve
from .direction import direction_reference
from .library import define_op, run_op
from .native import address, packed_arguments, sizes
from .project import project_reference
from .segment import (
    at_least_float32,
    check_floating,
    check_norm,
    check_packed,
    largest_magnitude,
    per_token,
    size_vector,
)


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


def pair_step_reference(delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm):
    return (
        sentence_step_reference(delta_pgd, grad, cu_seqlens, alpha, epsilon, norm),
        sign_step_reference(delta_fgsm, grad, cu_seqlens, beta, epsilon, norm),
    )


def mix_chains_reference(delta_pgd: Tensor, delta_fgsm: Tensor, rho: float) -> Tensor:
    return rho * delta_pgd + (1 - rho) * delta_fgsm


def _run_native(op, delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm):
    """The results of the chains that are given, PGD's first."""
    chains = {"delta_pgd": delta_pgd, "delta_fgsm": delta_fgsm}
    deltas = {name: delta for name, delta in chains.items() if delta is not None}
    *rows, grad, cu_seqlens = packed_arguments(op, cu_seqlens, **deltas, grad=grad)
    num_sentences = cu_seqlens.shape[0] - 1
    (alpha, beta, radius), strides = sizes(op, num_sentences, alpha=alpha, beta=beta, epsilon=epsilon)
    given = dict(zip(deltas, rows, strict=True))
    outs = {name: torch.empty_like(row) for name, row in given.items()}
    native_library.sentence_step(
        address(given.get("delta_pgd")),
        address(given.get("delta_fgsm")),
        grad.data_ptr(),
        address(outs.get("delta_pgd")),
        address(outs.get("delta_fgsm")),
        cu_seqlens.data_ptr(),
        address(alpha),
        address(beta),
        address(radius),
        num_sentences=num_sentences,
        num_tokens=grad.shape[0],
        embedding_size=grad.shape[1],
        norm=norm,
        **strides,
    )
    return tuple(outs.values())


def _step_fake(delta, grad, cu_seqlens, step_size, epsilon, norm):
    return torch.empty_like(delta, memory_format=torch.contiguous_format)


def _sentence_step_native(delta, grad, cu_seqlens, step_size, epsilon, norm):
    return _run_native("sentence_step", delta, None, grad, cu_seqlens, step_size, None, epsilon, norm)[0]


def _sign_step_native(delta, grad, cu_seqlens, step_size, epsilon, norm):
    return _run_native("sign_step", None, delta, grad, cu_seqlens, None, step_size, epsilon, norm)[0]


def _pair_step_fake(delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm):
    return tuple(torch.empty_like(d, memory_format=torch.contiguous_format) for d in (delta_pgd, delta_fgsm))


def _pair_step_native(delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm):
    return _run_native("pair_step", delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm)


def _mix_chains_fake(delta_pgd, delta_fgsm, rho):
    return torch.empty_like(delta_pgd, memory_format=torch.contiguous_format)


def _mix_chains_native(delta_pgd, delta_fgsm, rho):
    delta_pgd, delta_fgsm = packed_arguments("mix_chains", None, delta_pgd=delta_pgd, delta_fgsm=delta_fgsm)
    out = torch.empty_like(delta_pgd)
    native_library.mix_chains(delta_pgd.data_ptr(), delta_fgsm.data_ptr(), out.data_ptr(), size=out.numel(), rho=rho)
    return out


_STEP = "(Tensor delta, Tensor grad, Tensor cu_seqlens, Tensor step_size, Tensor? epsilon, str norm) -> Tensor"
_PAIR = (
    "(Tensor delta_pgd, Tensor delta_fgsm, Tensor grad, Tensor cu_seqlens, Tensor alpha, Tensor beta, "
    "Tensor? epsilon, str norm) -> (Tensor, Tensor)"
)
define_op(f"sentence_step{_STEP}", _step_fake, _sentence_step_native, "sentence_step_triton:launch")
define_op(f"sign_step{_STEP}", _step_fake, _sign_step_native, "sentence_step_triton:launch_sign")
define_op(f"pair_step{_PAIR}", _pair_step_fake, _pair_step_native, "sentence_step_triton:launch_pair")
define_op(
    "mix_chains(Tensor delta_pgd, Tensor delta_fgsm, float rho) -> Tensor",
    _mix_chains_fake,
    _mix_chains_native,
    "sentence_step_triton:launch_mix",
)


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
        ValueError: an unknown norm, or types, shapes or devices that do not fit.
        BackendError: the named backend cannot run.
    """
    check_norm(norm)
    check_packed("sentence_step", {"delta": delta}, grad, cu_seqlens, step_size=step_size, epsilon=epsilon)
    chosen = resolve("sentence_step", (delta, grad), backend, norm)
    if chosen != "reference":
        step, radius = size_vector(step_size, delta.device), size_vector(epsilon, delta.device)
        return run_op("sentence_step", chosen, delta, grad, cu_seqlens, step, radius, norm)
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
    check_packed("sign_step", {"delta": delta}, grad, cu_seqlens, step_size=step_size, epsilon=epsilon)
    chosen = resolve("sign_step", (delta, grad), backend, norm)
    if chosen != "reference":
        step, radius = size_vector(step_size, delta.device), size_vector(epsilon, delta.device)
        return run_op("sign_step", chosen, delta, grad, cu_seqlens, step, radius, norm)
    return sign_step_reference(delta, grad, cu_seqlens, step_size, epsilon, norm)


def pair_step(
    delta_pgd: Tensor,
    delta_fgsm: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    alpha: float | Tensor,
    beta: float | Tensor,
    epsilon: Optional[float | Tensor],
    norm: str,
    *,
    backend: Optional[str] = None,
) -> tuple[Tensor, Tensor]:
    """``sentence_step`` of delta_pgd by alpha and ``sign_step`` of delta_fgsm by beta, along one gradient.

    Returns:
        Both new perturbations, (T, E), each in its own dtype. Arguments and errors as in ``sentence_step``.
    """
    check_norm(norm)
    deltas = {"delta_pgd": delta_pgd, "delta_fgsm": delta_fgsm}
    check_packed("pair_step", deltas, grad, cu_seqlens, alpha=alpha, beta=beta, epsilon=epsilon)
    chosen = resolve("pair_step", (delta_pgd, delta_fgsm, grad), backend, norm)
    if chosen != "reference":
        vectors = (size_vector(size, grad.device) for size in (alpha, beta, epsilon))
        return run_op("pair_step", chosen, delta_pgd, delta_fgsm, grad, cu_seqlens, *vectors, norm)
    return pair_step_reference(delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm)


def mix_chains(delta_pgd: Tensor, delta_fgsm: Tensor, rho: float, *, backend: Optional[str] = None) -> Tensor:
    """``rho * delta_pgd + (1 - rho) * delta_fgsm``, (T, E); a chain of weight 0 has no say, be it NaN.

    With rho 1 or 0 the result is the other chain itself, not a copy.

    Raises:
        ValueError: types, shapes or devices that do not fit.
        BackendError: the named backend cannot run.
    """
    check_floating("mix_chains", "delta_pgd", delta_pgd)
    check_floating("mix_chains", "delta_fgsm", delta_fgsm)
    if delta_pgd.shape != delta_fgsm.shape or delta_pgd.device != delta_fgsm.device:
        given = " and ".join(f"{tuple(d.shape)} on {d.device}" for d in (delta_pgd, delta_fgsm))
        raise ValueError(f"mix_chains: delta_pgd and delta_fgsm are {given}; allowed: one shape and device for both")
    chosen = resolve("mix_chains", (delta_pgd, delta_fgsm), backend)
    if rho == 1:
        return delta_pgd
    if rho == 0:
        return delta_fgsm
    if chosen != "reference":
        return run_op("mix_chains", chosen, delta_pgd, delta_fgsm, float(rho))
    return mix_chains_reference(delta_pgd, delta_fgsm, rho)
