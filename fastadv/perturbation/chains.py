"""The shipped search: two chains of delta, PGD's and FGSM's, and eta (RobustSentEmbed Algorithm 1, METHODS 1).

Both chains start at one point. PGD moves by alpha along the gradient over its norm (eq. 5), FGSM by beta along the
gradient's sign (eq. 6); both stay in the P-ball of each sentence. ``fastadv_kernels`` carries the steps out.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.perturbation.ball import Sizes, wide
from fastadv.perturbation.search import Gradients, Search, Surroundings
from fastadv_kernels import mix_chains, pair_step, project, sentence_step, sign_step, token_update


class Chains(NamedTuple):
    """Where the search stands, (T, E) each, in the perturbation's type."""

    pgd: Tensor
    fgsm: Tensor
    eta: Tensor | None
    """None where no token-level perturbation is searched"""


class MixedSearch(Search):
    """Both chains, mixed by rho, and eta; every shipped ``perturbation.method`` is a plan of it."""

    @property
    def starts_at_clean(self) -> bool:
        return self.plan.sigma == 0 and not self.plan.use_eta

    @property
    def uses_eta(self) -> bool:
        return self.plan.use_eta

    def start(self, x: Tensor, around: Surroundings, eta: Tensor | None) -> Chains:
        """Both chains at one delta^0; eta at ``eta`` (T, E), None for 0, projected.

        Raises:
            ValueError: an ``eta`` where the plan searches none.
        """
        plan, batch, sizes, active = self.plan, around.batch, around.sizes, around.active
        delta = start_delta(x, batch, plan.sigma, sizes, plan.norm, active, plan.start)
        if plan.use_eta:
            eta = torch.zeros_like(delta) if eta is None else eta.to(delta.dtype)
            eta = eta if active is None else torch.where(active[:, None], eta, 0)
            radii = None if sizes.epsilon_token is None else sizes.epsilon_token[batch.token_sentence]
            eta = project(eta, radii, plan.norm)
        elif eta is not None:
            raise ValueError("eta was given, but perturbation.use_eta is false")
        return Chains(delta, delta, eta)

    def points(self, state: Chains) -> list[Tensor]:
        if self.plan.takes_one_gradient:
            return [self.shift(state)]
        return [delta if state.eta is None else delta + state.eta for delta in (state.pgd, state.fgsm)]

    def mixed(self, values: list[Tensor]) -> Tensor:
        rho = self.plan.rho
        return values[0] if len(values) == 1 else rho * values[0] + (1 - rho) * values[1]

    def move(self, state: Chains, step: int, grads: Gradients, around: Surroundings) -> Chains:
        """A chain past its own number of steps stands still (eq. 2-6)."""
        plan, cu_seqlens, sizes, norm = self.plan, around.batch.cu_seqlens, around.sizes, self.plan.norm
        pgd, fgsm, eta = state
        for_pgd, for_fgsm = grads.delta[0], grads.delta[-1]
        moves_pgd, moves_fgsm = step <= plan.num_pgd_steps, step <= plan.num_fgsm_steps
        if moves_pgd and moves_fgsm and len(grads.delta) == 1:
            # One gradient, read once for both.
            pgd, fgsm = pair_step(pgd, fgsm, for_pgd, cu_seqlens, sizes.alpha, sizes.beta, sizes.epsilon, norm)
        else:
            if moves_pgd:
                pgd = sentence_step(pgd, for_pgd, cu_seqlens, sizes.alpha, sizes.epsilon, norm)
            if moves_fgsm:
                fgsm = sign_step(fgsm, for_fgsm, cu_seqlens, sizes.beta, sizes.epsilon, norm)
        if eta is not None:
            for_eta = grads.eta[0] if len(grads.eta) == 1 else mix_chains(*grads.eta, plan.rho)
            # u_i = eta_i + gamma * dir(g_i), eta_i <- Pi(n_i * u_i), n_i = ||u_i|| / max_j ||u_j|| (eq. 2-4).
            eta = token_update(eta, for_eta, cu_seqlens, sizes.gamma, sizes.epsilon_token, norm, plan.eta_scaling)
        return Chains(pgd, fgsm, eta)

    def kind_of_step(self, step: int) -> int:
        if type(self).move is not MixedSearch.move:
            # A subclass may move by the number of the step.
            return step
        # A step is known by which chains it moves.
        return min(bound for bound in (self.plan.num_pgd_steps, self.plan.num_fgsm_steps) if bound >= step)

    def delta(self, state: Chains) -> Tensor:
        """delta_f = rho * delta_pgd + (1 - rho) * delta_fgsm (eq. 7); a chain of weight 0 has no effect."""
        return mix_chains(state.pgd, state.fgsm, self.plan.rho)

    def eta(self, state: Chains) -> Tensor | None:
        return state.eta


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
