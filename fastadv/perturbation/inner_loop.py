"""N gradient steps towards the worst perturbation (RobustSentEmbed Algorithm 1, METHODS 1).

The search knows embeddings, a loss of embeddings, and nothing of encoders or objectives, so it serves any training
loop::

    adversary = Adversary(PerturbationConfig(epsilon_relative=0.1, alpha=1.0, beta=0.4, gamma=0.7), model)
    found = adversary.search(x, batch, lambda points: loss_of(model.encode(points)).sum())
    adversarial_vectors = model.encode(x + found.delta)

``reuse: exact`` takes one gradient a step for delta and eta alike, with the parameters frozen, so that no weight
gradient is computed and no activation kept for one. ``reuse: none`` is the reference it is compared with: a full
backward through every parameter, once for delta and once for eta. ``adaptive`` (``adaptive.py``) is ``exact`` with
fewer gradients than steps; ``free`` (``freelb.py``) needs no search of its own.

A search that starts at X itself may take its first gradient from the graph of the clean pass, where the caller has one
(``at_clean``): one forward less.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Callable, Optional

import torch
from torch import Tensor, nn

from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.chains import Chains, Gradients, Surroundings, perturbed
from fastadv.perturbation.sentence import mix
from fastadv.perturbation.trace import Trace

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
    trace: Trace
    """what the search did"""

    @classmethod
    def of(cls, end: Chains, trace: Trace) -> "Perturbation":
        """Where a search ended."""
        sizes, use_eta = end.around.sizes, end.around.config.use_eta
        return cls(
            delta=end.delta,
            eta=end.eta,
            delta_pgd=end.pgd,
            delta_fgsm=end.fgsm,
            gain=trace.gain,
            nonfinite_step=trace.nonfinite_step,
            epsilon_token=sizes.epsilon_token if use_eta else None,
            trace=trace,
        )


class Adversary:
    """Searches perturbations as ``config`` says.

    Args:
        config: norms, radii, steps and reuse.
        modules: whatever owns the parameters that enter the inner loss. They are frozen while a search runs
            or, under ``reuse: none``, take part in its full backward.
    """

    def __init__(self, config: PerturbationConfig, *modules: nn.Module):
        self.config = config.as_mixed()
        self._modules = modules
        self._is_reference = config.reuse == "none"

    @property
    def starts_at_clean(self) -> bool:
        """Whether the first gradient is taken at x itself: delta starts at 0 and there is no eta."""
        return self.config.sigma == 0 and not self.config.use_eta

    def start(self, x: Tensor, batch: PackedBatch, eta: Optional[Tensor] = None) -> Chains:
        """Where a search around ``x`` (T, E) begins; ``eta`` as in `search`."""
        return Chains.start(Surroundings.of(self.config, x, batch), x, eta)

    def search(
        self,
        x: Tensor,
        batch: PackedBatch,
        loss: InnerLoss,
        eta: Optional[Tensor] = None,
        at_clean: Optional[CleanGradient] = None,
        num_gradients: Optional[int] = None,
        keeps_gradients: bool = False,
    ) -> Perturbation:
        """Finds delta and eta that raise ``loss`` around ``x``.

        Args:
            x: (T, E) embeddings; taken as a constant.
            loss: sums over sentences; every sentence's part must depend on its own tokens only.
            eta: (T, E) start of the token-level perturbation, by default 0; without ``use_eta`` it must be None.
            at_clean: serves as the first gradient where the search `starts_at_clean`, unless ``reuse`` is none.
            num_gradients: gradients taken; steps after so many reuse the last. None: one a step.
            keeps_gradients: keep them all in the result's trace.

        Returns:
            The perturbation; non-finite gradients are recorded in it and leave their sentence's part as it was.
        """
        x = x.detach()
        chains = self.start(x, batch, eta)
        return Perturbation.of(*self._run(x, chains, loss, at_clean, num_gradients, keeps_gradients))

    def _run(
        self,
        x: Tensor,
        chains: Chains,
        loss: InnerLoss,
        at_clean: Optional[CleanGradient],
        num_gradients: Optional[int],
        keeps_gradients: bool,
    ) -> tuple[Chains, Trace]:
        """Where a search that starts at ``chains`` ends, and what it did; arguments as in `search`."""
        trace = Trace(chains, keeps_gradients)
        with nullcontext() if self._is_reference else self._frozen():
            for step in range(1, self.config.num_inner_steps + 1):
                if num_gradients is None or step <= num_gradients:
                    if step == 1 and at_clean is not None and self.starts_at_clean and not self._is_reference:
                        grad, value = at_clean()
                        # Both chains stand at x.
                        grads = Gradients.shared(chains.around.of_active(grad))
                    else:
                        grads, value = self._gradients(x, chains, loss)
                    trace.add(step, grads, value)
                chains = self._move(chains, step, grads)
        return chains, trace

    def losses_at(self, x: Tensor, loss: InnerLoss, *points: Chains) -> list[Tensor]:
        """The inner loss at each of ``points``, summed over sentences."""
        with torch.no_grad():
            return [loss(perturbed(x.detach(), point.shift)) for point in points]

    def _move(self, chains: Chains, step: int, grads: Gradients) -> Chains:
        return chains.move(step, grads)

    def _gradients(self, x: Tensor, chains: Chains, loss: InnerLoss) -> tuple[Gradients, Tensor]:
        """The gradients that move the chains, and the loss at the point they were taken (rho-mixed)."""
        rho = self.config.rho
        if self.config.gradient == "shared" or rho in (0, 1):
            points = [chains.delta]
        else:
            points = [chains.pgd, chains.fgsm]
        taken = [self._gradient(x, chains, point, loss) for point in points]
        if len(taken) == 1:
            (grad, value), *_ = taken
            grads = Gradients.shared(grad)
        else:
            (grad_pgd, value_pgd), (grad_fgsm, value_fgsm) = taken
            grads = Gradients(grad_pgd, grad_fgsm, mix(grad_pgd, grad_fgsm, rho))
            value = rho * value_pgd + (1 - rho) * value_fgsm
        if self._is_reference and self.config.use_eta:
            # The reference takes eta's gradient by a pass of its own, at the same point.
            own = [self._gradient(x, chains, point, loss)[0] for point in points]
            grads = Gradients(grads.pgd, grads.fgsm, own[0] if len(own) == 1 else mix(own[0], own[1], rho))
        return grads, value

    def _gradient(self, x: Tensor, chains: Chains, delta: Tensor, loss: InnerLoss) -> tuple[Tensor, Tensor]:
        """d loss / d (delta + eta) at x + delta + eta, (T, E), 0 at tokens that are not perturbed; and the loss."""
        point = perturbed(x, chains.with_eta(delta)).requires_grad_()
        with torch.enable_grad():
            value = loss(point)
            wanted = [point, *self._parameters()] if self._is_reference else [point]
            grad, *_ = torch.autograd.grad(value, wanted, allow_unused=len(wanted) > 1)
        return chains.around.of_active(grad), value.detach()

    def _parameters(self):
        return [p for module in self._modules for p in module.parameters() if p.requires_grad]

    @contextmanager
    def _frozen(self):
        """No parameter asks for a gradient while the search runs; graphs built before keep theirs."""
        leaves, replaced = [], []
        for owner in {m for module in self._modules for m in module.modules()}:
            for name, parameter in owner._parameters.items():
                if parameter is None or not parameter.requires_grad:
                    continue
                if parameter.is_leaf:
                    leaves.append(parameter.requires_grad_(False))
                else:
                    # A weight cast for this step is part of a graph, and cannot leave it.
                    replaced.append((owner, name, parameter))
        for owner, name, parameter in replaced:
            owner._parameters[name] = parameter.detach()
        try:
            yield
        finally:
            for parameter in leaves:
                parameter.requires_grad_(True)
            for owner, name, parameter in replaced:
                owner._parameters[name] = parameter
