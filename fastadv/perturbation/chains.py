"""The shipped search: two chains of delta, PGD's and FGSM's, and eta (RobustSentEmbed Algorithm 1, METHODS 1)."""

from typing import NamedTuple

import torch
from torch import Tensor

from fastadv.perturbation.search import Gradients, Search, Surroundings
from fastadv.perturbation.sentence import mix, start_delta, step_both, step_fgsm, step_pgd
from fastadv.perturbation.token import start_eta, step_eta


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
            eta = start_eta(eta, batch, sizes, plan.norm, active)
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
        plan, batch, sizes, norm = self.plan, around.batch, around.sizes, self.plan.norm
        pgd, fgsm, eta = state
        for_pgd, for_fgsm = grads.delta[0], grads.delta[-1]
        moves_pgd, moves_fgsm = step <= plan.num_pgd_steps, step <= plan.num_fgsm_steps
        if moves_pgd and moves_fgsm and len(grads.delta) == 1:
            pgd, fgsm = step_both(pgd, fgsm, for_pgd, batch, sizes, norm)
        else:
            pgd = step_pgd(pgd, for_pgd, batch, sizes, norm) if moves_pgd else pgd
            fgsm = step_fgsm(fgsm, for_fgsm, batch, sizes, norm) if moves_fgsm else fgsm
        if eta is not None:
            for_eta = grads.eta[0] if len(grads.eta) == 1 else mix(*grads.eta, plan.rho)
            eta = step_eta(eta, for_eta, batch, sizes, norm, plan.eta_scaling)
        return Chains(pgd, fgsm, eta)

    def kind_of_step(self, step: int) -> int:
        if type(self).move is not MixedSearch.move:
            # A subclass may move by the number of the step.
            return step
        # A step is known by which chains it moves.
        return min(bound for bound in (self.plan.num_pgd_steps, self.plan.num_fgsm_steps) if bound >= step)

    def delta(self, state: Chains) -> Tensor:
        """delta_f, the mix of both chains (eq. 7)."""
        return mix(state.pgd, state.fgsm, self.plan.rho)

    def eta(self, state: Chains) -> Tensor | None:
        return state.eta
