"""What moves in a search: both chains of delta, and eta (RobustSentEmbed Algorithm 1, METHODS 1)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Optional

import torch
from torch import Tensor

from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.ball import Sizes, active_tokens, sentence_sizes, wide
from fastadv.perturbation.sentence import mix, start_delta, step_both, step_fgsm, step_pgd
from fastadv.perturbation.token import start_eta, step_eta


@dataclass(frozen=True)
class Surroundings:
    """What stays as it is while a search moves."""

    config: PerturbationConfig
    batch: PackedBatch
    sizes: Sizes
    active: Optional[Tensor]
    """(T,) bool, the tokens that are perturbed; None where all are"""

    @classmethod
    def of(cls, config: PerturbationConfig, x: Tensor, batch: PackedBatch) -> "Surroundings":
        """Those of the embeddings ``x`` (T, E)."""
        active = active_tokens(batch, config)
        return cls(config, batch, sentence_sizes(x, batch, config, active), active)

    def of_active(self, grad: Tensor) -> Tensor:
        """The gradient (T, E) in the perturbation's type, 0 at tokens that are not perturbed."""
        grad = grad.to(wide(grad.dtype))
        return grad if self.active is None else torch.where(self.active[:, None], grad, 0)


@dataclass(frozen=True)
class Gradients:
    """What moves each part, (T, E) each. One tensor may stand in all three places."""

    pgd: Tensor
    fgsm: Tensor
    eta: Tensor

    @classmethod
    def shared(cls, grad: Tensor) -> "Gradients":
        return cls(grad, grad, grad)

    def of_chains(self) -> list[Tensor]:
        """Those of the chains, a shared one once."""
        return [self.pgd] if self.pgd is self.fgsm else [self.pgd, self.fgsm]


@dataclass(frozen=True)
class Chains:
    """Where a search stands. All tensors are constants, (T, E), in the perturbation's type."""

    around: Surroundings
    pgd: Tensor
    fgsm: Tensor
    eta: Optional[Tensor]
    """None where no token-level perturbation is searched"""

    @classmethod
    def start(cls, around: Surroundings, x: Tensor, eta: Optional[Tensor]) -> "Chains":
        """Both chains at one delta^0; eta at ``eta`` (T, E), None for 0, projected.

        Raises:
            ValueError: an ``eta`` where the config searches none.
        """
        config, batch, sizes, active = around.config, around.batch, around.sizes, around.active
        delta = start_delta(x, batch, config.sigma, sizes, config.norm, active, config.start)
        if config.use_eta:
            eta = torch.zeros_like(delta) if eta is None else eta.to(delta.dtype)
            eta = start_eta(eta, batch, sizes, config.norm, active)
        elif eta is not None:
            raise ValueError("eta was given, but perturbation.use_eta is false")
        return cls(around, delta, delta, eta)

    @cached_property
    def delta(self) -> Tensor:
        """delta_f, the mix of both chains (eq. 7)."""
        return mix(self.pgd, self.fgsm, self.around.config.rho)

    @property
    def shift(self) -> Tensor:
        """delta_f + eta: what the inner loss is taken at, less X."""
        return self.with_eta(self.delta)

    def with_eta(self, delta: Tensor) -> Tensor:
        return delta if self.eta is None else delta + self.eta

    def move(self, step: int, grads: Gradients) -> "Chains":
        """After inner step ``step``, counted from 1; a chain past its own count stands still (eq. 2-6)."""
        config, batch, sizes = self.around.config, self.around.batch, self.around.sizes
        pgd, fgsm, eta, norm = self.pgd, self.fgsm, self.eta, config.norm
        moves_pgd, moves_fgsm = step <= config.steps_of_pgd, step <= config.steps_of_fgsm
        if moves_pgd and moves_fgsm and grads.pgd is grads.fgsm:
            pgd, fgsm = step_both(pgd, fgsm, grads.pgd, batch, sizes, norm)
        else:
            pgd = step_pgd(pgd, grads.pgd, batch, sizes, norm) if moves_pgd else pgd
            fgsm = step_fgsm(fgsm, grads.fgsm, batch, sizes, norm) if moves_fgsm else fgsm
        if eta is not None:
            eta = step_eta(eta, grads.eta, batch, sizes, norm, config.eta_scaling)
        return Chains(self.around, pgd, fgsm, eta)


def perturbed(x: Tensor, shift: Tensor) -> Tensor:
    """x + shift, summed in the perturbation's type and rounded once to that of ``x`` (T, E)."""
    return (x + shift).to(x.dtype)
