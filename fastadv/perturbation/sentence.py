"""The sentence-level perturbation delta: its start, its steps, its mix (RobustSentEmbed eq. 5-7).

Two chains start at one point. PGD moves by alpha along the gradient over its norm, FGSM by beta along the gradient's
sign; both stay in the P-ball of each sentence. ``fastadv_kernels`` carries the steps out.
"""

from typing import Optional

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.perturbation.ball import Sizes, wide
from fastadv_kernels import mix_chains, pair_step, project, sentence_step, sign_step


def start_delta(
    x: Tensor,
    batch: PackedBatch,
    sigma: float,
    sizes: Sizes,
    norm: str,
    active: Optional[Tensor] = None,
    kind: str = "token",
) -> Tensor:
    """delta^0, projected: (T, E). Nothing is drawn where sigma is 0.

    Args:
        kind: token, U(-sigma, sigma) / sqrt(E); sentence, the same over sqrt(len * E), len all tokens of the sentence
            (Zhu et al. 2020, FreeLB); normal, N(0, sigma^2) (Jiang et al. 2020, SMART).
    """
    delta = torch.zeros(x.shape, dtype=wide(x.dtype), device=x.device)
    if sigma == 0:
        return delta
    if kind == "normal":
        delta.normal_(0, sigma)
    else:
        delta.uniform_(-1, 1).mul_(sigma / x.shape[1] ** 0.5)
    if kind == "sentence":
        delta = delta / batch.lengths.to(delta.dtype).sqrt()[batch.token_sentence, None]
    if active is not None:
        delta = torch.where(active[:, None], delta, 0)
    return project(delta, sizes.epsilon, norm, batch.cu_seqlens)


def step_pgd(delta: Tensor, grad: Tensor, batch: PackedBatch, sizes: Sizes, norm: str) -> Tensor:
    """delta <- Pi(delta + alpha * dir(g)) (eq. 5)."""
    return sentence_step(delta, grad, batch.cu_seqlens, sizes.alpha, sizes.epsilon, norm)


def step_fgsm(delta: Tensor, grad: Tensor, batch: PackedBatch, sizes: Sizes, norm: str) -> Tensor:
    """delta <- Pi(delta + beta * sign(g)) (eq. 6)."""
    return sign_step(delta, grad, batch.cu_seqlens, sizes.beta, sizes.epsilon, norm)


def step_both(
    delta_pgd: Tensor, delta_fgsm: Tensor, grad: Tensor, batch: PackedBatch, sizes: Sizes, norm: str
) -> tuple[Tensor, Tensor]:
    """`step_pgd` and `step_fgsm` along one gradient, which is read once for both."""
    return pair_step(delta_pgd, delta_fgsm, grad, batch.cu_seqlens, sizes.alpha, sizes.beta, sizes.epsilon, norm)


def mix(delta_pgd: Tensor, delta_fgsm: Tensor, rho: float) -> Tensor:
    """delta_f = rho * delta_pgd + (1 - rho) * delta_fgsm (eq. 7); a chain of weight 0 has no say."""
    return mix_chains(delta_pgd, delta_fgsm, rho)
