"""N gradient steps towards the worst perturbation (RobustSentEmbed Algorithm 1, METHODS 1).

The search knows embeddings, a loss of embeddings, and nothing of encoders or objectives, so it serves any training
loop::

    adversary = Adversary(PerturbationConfig(epsilon_relative=0.1, alpha=1.0, beta=0.4, gamma=0.7), model)
    found = adversary.search(x, batch, lambda points: loss_of(model.encode(points)).sum())
    adversarial_vectors = model.encode(x + found.delta)

``reuse: exact`` takes one gradient a step for delta and eta alike, with the parameters frozen, so that no weight
gradient is computed and no activation kept for one. ``reuse: none`` is the reference it is compared with: a full
backward through every parameter, once for delta and once for eta.

A search that starts at X itself may take its first gradient from the graph of the clean pass, where the caller has one
(``at_clean``): one forward less.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Callable, Optional

import torch
from torch import Tensor, nn

from fastadv.config import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv_kernels import segment_norm

from .ball import active_tokens, sentence_sizes, wide
from .sentence import mix, start_delta, step_both, step_fgsm, step_pgd
from .token import start_eta, step_eta

InnerLoss = Callable[[Tensor], Tensor]
"""points (T, E) → the loss summed over sentences, a scalar"""
CleanGradient = Callable[[], tuple[Tensor, Tensor]]
"""() → the gradient (T, E) of that loss at x itself, and the loss"""


class NonFiniteGradient(RuntimeError):
    """An inner gradient was NaN or infinite.

    Attributes:
        sentences: the rows of the batch it happened in.
    """

    def __init__(self, steps: Tensor):
        """``steps`` (M,): `Perturbation.nonfinite_step` of every row, on several ranks of the global batch."""
        self.sentences = steps.nonzero().flatten().tolist()
        first = int(steps[steps > 0].min())
        shown = ", ".join(map(str, self.sentences[:10])) + (", …" if len(self.sentences) > 10 else "")
        super().__init__(
            f"the inner gradient is not finite in {len(self.sentences)} of {len(steps)} sentences "
            f"(rows {shown}), first at inner step {first}"
        )


@dataclass(frozen=True)
class Perturbation:
    """What a search found. All tensors are constants (no graph)."""

    delta: Tensor
    """(T, E) delta_f, the mix of both chains"""
    eta: Optional[Tensor]
    """(T, E), or None where no token-level perturbation is searched"""
    delta_pgd: Tensor
    """(T, E) end of the PGD chain"""
    delta_fgsm: Tensor
    """(T, E) end of the FGSM chain"""
    gain: Tensor
    """scalar: inner loss a sentence where the last gradient was taken, less that where the first one was. So it is what
    all steps but the last have gained, and 0 where fewer than two gradients were taken"""
    nonfinite_step: Tensor
    """(B,) int64: the inner step (from 1) whose gradient was not finite in that sentence first, 0 for never"""
    epsilon_token: Optional[Tensor]
    """(B,) radius of eta, or None"""


class Adversary:
    """Searches perturbations as ``config`` says.

    Args:
        config: norms, radii, steps and reuse.
        modules: whatever owns the parameters that enter the inner loss. They are frozen while a search runs
            (``reuse: exact``) or take part in its full backward (``reuse: none``).
    """

    def __init__(self, config: PerturbationConfig, *modules: nn.Module):
        self.config = config.as_mixed()
        self._modules = modules

    @property
    def starts_at_clean(self) -> bool:
        """Whether the first gradient is taken at x itself: delta starts at 0 and there is no eta."""
        return self.config.sigma == 0 and not self.config.use_eta

    def search(
        self,
        x: Tensor,
        batch: PackedBatch,
        loss: InnerLoss,
        eta: Optional[Tensor] = None,
        at_clean: Optional[CleanGradient] = None,
    ) -> Perturbation:
        """Finds delta and eta that raise ``loss`` around ``x``.

        Args:
            x: (T, E) embeddings; taken as a constant.
            loss: sums over sentences; every sentence's part must depend on its own tokens only.
            eta: (T, E) start of the token-level perturbation, by default 0; without ``use_eta`` it must be None.
            at_clean: serves as the first gradient where the search `starts_at_clean`, unless ``reuse`` is none.

        Returns:
            The perturbation; non-finite gradients are recorded in it and leave their sentence's part as it was.
        """
        config, norm = self.config, self.config.norm
        x = x.detach()
        active = active_tokens(batch, config)
        sizes = sentence_sizes(x, batch, config, active)
        pgd = fgsm = start_delta(x, batch, config.sigma, sizes, norm, active)
        if config.use_eta:
            eta = torch.zeros_like(pgd) if eta is None else eta.to(pgd.dtype)
            eta = start_eta(eta, batch, sizes, norm, active)
        elif eta is not None:
            raise ValueError("eta was given, but perturbation.use_eta is false")
        nonfinite_step = torch.zeros(batch.num_sentences, dtype=torch.int64, device=x.device)
        losses: list[Tensor] = []
        with self._frozen() if config.reuse == "exact" else nullcontext():
            for step in range(1, config.num_inner_steps + 1):
                if step == 1 and at_clean is not None and self.starts_at_clean and config.reuse == "exact":
                    grad, value = at_clean()
                    # Both chains stand at x.
                    grads = (_of_active(grad, active),) * 3
                else:
                    grads, value = self._gradients(x, pgd, fgsm, eta, loss, active)
                losses.append(value)
                for grad in {id(grad): grad for grad in grads}.values():
                    is_bad = ~segment_norm(grad, batch.cu_seqlens, "linf").isfinite()
                    nonfinite_step = torch.where(is_bad & (nonfinite_step == 0), step, nonfinite_step)
                grad_pgd, grad_fgsm, grad_eta = grads
                moves_pgd, moves_fgsm = step <= config.steps_of_pgd, step <= config.steps_of_fgsm
                if moves_pgd and moves_fgsm and grad_pgd is grad_fgsm:
                    pgd, fgsm = step_both(pgd, fgsm, grad_pgd, batch, sizes, norm)
                else:
                    pgd = step_pgd(pgd, grad_pgd, batch, sizes, norm) if moves_pgd else pgd
                    fgsm = step_fgsm(fgsm, grad_fgsm, batch, sizes, norm) if moves_fgsm else fgsm
                if config.use_eta:
                    eta = step_eta(eta, grad_eta, batch, sizes, norm, config.eta_scaling)
        return Perturbation(
            delta=mix(pgd, fgsm, config.rho),
            eta=eta,
            delta_pgd=pgd,
            delta_fgsm=fgsm,
            gain=(losses[-1] - losses[0]) / batch.num_sentences if losses else x.new_zeros(()),
            nonfinite_step=nonfinite_step,
            epsilon_token=sizes.epsilon_token if config.use_eta else None,
        )

    def _gradients(self, x, pgd, fgsm, eta, loss, active) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """The gradients that move (PGD, FGSM, eta), and the loss at the point they were taken (rho-mixed)."""
        rho = self.config.rho
        if self.config.gradient == "shared" or rho in (0, 1):
            grad, value = self._gradient(x, mix(pgd, fgsm, rho), eta, loss, active)
            grads = (grad, grad, grad)
        else:
            grad_pgd, value_pgd = self._gradient(x, pgd, eta, loss, active)
            grad_fgsm, value_fgsm = self._gradient(x, fgsm, eta, loss, active)
            grads = (grad_pgd, grad_fgsm, mix(grad_pgd, grad_fgsm, rho))
            value = rho * value_pgd + (1 - rho) * value_fgsm
        if self.config.reuse == "none" and self.config.use_eta:
            # The reference takes eta's gradient by a pass of its own, at the same point.
            points = [mix(pgd, fgsm, rho)] if grads[0] is grads[1] else [pgd, fgsm]
            own = [self._gradient(x, point, eta, loss, active)[0] for point in points]
            grads = (grads[0], grads[1], own[0] if len(own) == 1 else mix(own[0], own[1], rho))
        return grads, value

    def _gradient(self, x, delta, eta, loss, active) -> tuple[Tensor, Tensor]:
        """d loss / d (delta + eta) at x + delta + eta, (T, E), 0 at tokens that are not perturbed; and the loss."""
        shift = delta if eta is None else delta + eta
        point = perturbed(x, shift).requires_grad_()
        with torch.enable_grad():
            value = loss(point)
            wanted = [point] if self.config.reuse == "exact" else [point, *self._parameters()]
            grad, *_ = torch.autograd.grad(value, wanted, allow_unused=len(wanted) > 1)
        return _of_active(grad, active), value.detach()

    def _parameters(self):
        return [p for module in self._modules for p in module.parameters() if p.requires_grad]

    @contextmanager
    def _frozen(self):
        """No parameter asks for a gradient while the search runs; graphs built before keep theirs."""
        parameters = self._parameters()
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)


def _of_active(grad: Tensor, active: Optional[Tensor]) -> Tensor:
    """The gradient in the perturbation's type, 0 at tokens that are not perturbed."""
    grad = grad.to(wide(grad.dtype))
    return grad if active is None else torch.where(active[:, None], grad, 0)


def perturbed(x: Tensor, shift: Tensor) -> Tensor:
    """x + shift, summed in the perturbation's type and rounded once to that of ``x`` (T, E)."""
    return (x + shift).to(x.dtype)
