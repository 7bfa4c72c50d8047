"""N gradient steps towards the worst perturbation (RobustSentEmbed Algorithm 1, METHODS 1).

The loop knows embeddings, a loss of embeddings, and nothing of encoders or objectives, so it serves any training
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
from typing import Callable

import torch
from torch import Tensor, nn

from fastadv.config.schema import PerturbationConfig
from fastadv.config.search_plan import SearchPlan
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.chains import MixedSearch
from fastadv.perturbation.search import Gradients, Search, State, Surroundings, perturbed
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
    """(T, E) the sentence-level perturbation"""
    eta: Tensor | None
    """(T, E) the token-level perturbation, or None where none is searched"""
    state: State
    """where the search ended"""
    gain: Tensor
    """scalar: inner loss a sentence where the last gradient was taken, less that where the first one was. So it is what
    all steps but the last have gained, and 0 where fewer than two gradients were taken"""
    nonfinite_step: Tensor
    """(B,) int64: the inner step (from 1) whose gradient was not finite in that sentence first, 0 for never"""
    epsilon_token: Tensor | None
    """(B,) radius of eta, or None"""
    trace: Trace
    """what the search did"""

    @classmethod
    def of(cls, search: Search, end: State, trace: Trace) -> "Perturbation":
        """What ``search`` found, which ended at ``end``."""
        delta, eta = search.delta(end), search.eta(end)
        return cls(
            delta=delta,
            eta=eta,
            state=end,
            gain=trace.gain(delta),
            nonfinite_step=trace.nonfinite_step,
            epsilon_token=None if eta is None else trace.around.sizes.epsilon_token,
            trace=trace,
        )


class Adversary:
    """Searches perturbations.

    Args:
        config: norms, radii, steps and reuse, as configured or resolved.
        modules: whatever owns the parameters that enter the inner loss. They are frozen while a search runs
            or, under ``reuse: none``, take part in its full backward.
        search: how the perturbation moves; None: the shipped `MixedSearch`.
    """

    def __init__(self, config: PerturbationConfig | SearchPlan, *modules: nn.Module, search: Search | None = None):
        self.plan = config.resolve() if isinstance(config, PerturbationConfig) else config
        self.moves = MixedSearch(self.plan) if search is None else search
        self._modules = modules
        self._is_reference = self.plan.reuse == "none"

    def start(self, x: Tensor, batch: PackedBatch, eta: Tensor | None = None) -> tuple[Surroundings, State]:
        """What surrounds a search around ``x`` (T, E), and where it begins; ``eta`` as in `search`."""
        around = Surroundings.of(self.plan, x, batch)
        return around, self.moves.start(x, around, eta)

    def search(
        self,
        x: Tensor,
        batch: PackedBatch,
        loss: InnerLoss,
        eta: Tensor | None = None,
        at_clean: CleanGradient | None = None,
        num_gradients: int | None = None,
        keeps_gradients: bool = False,
    ) -> Perturbation:
        """Finds delta and eta that raise ``loss`` around ``x``.

        Args:
            x: (T, E) embeddings; taken as a constant.
            loss: sums over sentences; every sentence's part must depend on its own tokens only.
            eta: (T, E) start of the token-level perturbation, by default 0; without ``use_eta`` it must be None.
            at_clean: serves as the first gradient where the search starts at X itself, unless ``reuse`` is none.
            num_gradients: gradients taken; steps after so many reuse the last. None: one a step.
            keeps_gradients: keep the gradients of all steps in the result's trace.

        Returns:
            The perturbation; non-finite gradients are recorded in it and leave their sentence's part as it was.
        """
        x = x.detach()
        trace = Trace(*self.start(x, batch, eta), keeps_gradients)
        return Perturbation.of(self.moves, self._run(x, trace, loss, at_clean, num_gradients), trace)

    def _run(
        self, x: Tensor, trace: Trace, loss: InnerLoss, at_clean: CleanGradient | None, num_gradients: int | None
    ) -> State:
        """Where a search that begins as ``trace`` says ends; the trace keeps what it does. Arguments as in `search`."""
        around, state = trace.around, trace.start
        serves_first = at_clean is not None and self.moves.starts_at_clean and not self._is_reference
        with nullcontext() if self._is_reference else self._frozen():
            for step in range(1, self.moves.num_steps + 1):
                if num_gradients is None or step <= num_gradients:
                    if step == 1 and serves_first:
                        grad, value = at_clean()
                        # Every point is X itself.
                        grads = Gradients.shared(around.of_active(grad))
                    else:
                        grads, value = self._gradients(x, state, loss, around)
                    trace.add(step, grads, value)
                state = self._move(state, step, grads, around)
        return state

    def gradient(self, x: Tensor, batch: PackedBatch, loss: InnerLoss) -> Tensor:
        """(T, E) the gradient of ``loss`` at ``x`` itself, with the parameters frozen."""
        with self._frozen():
            return self._gradient(x.detach(), torch.zeros_like(x), loss, Surroundings.of(self.plan, x, batch))[0]

    def losses_at(self, x: Tensor, loss: InnerLoss, *states: State) -> list[Tensor]:
        """The inner loss at each of ``states``, summed over sentences."""
        with torch.no_grad():
            return [loss(perturbed(x.detach(), self.moves.shift(state))) for state in states]

    def _move(self, state: State, step: int, grads: Gradients, around: Surroundings) -> State:
        return self.moves.move(state, step, grads, around)

    def _gradients(self, x: Tensor, state: State, loss: InnerLoss, around: Surroundings) -> tuple[Gradients, Tensor]:
        """The gradients that move the state, and the loss where they were taken."""
        points = self.moves.points(state)
        grads, values = zip(*(self._gradient(x, point, loss, around) for point in points))
        taken = Gradients.shared(*grads)
        if self._is_reference and self.moves.eta(state) is not None:
            # The reference takes eta's gradient by a pass of its own, at the same point.
            taken = taken._replace(eta=tuple(self._gradient(x, point, loss, around)[0] for point in points))
        return taken, self.moves.mixed(list(values))

    def _gradient(self, x: Tensor, shift: Tensor, loss: InnerLoss, around: Surroundings) -> tuple[Tensor, Tensor]:
        """d loss / d shift at x + shift, (T, E), 0 at tokens that are not perturbed; and the loss."""
        point = perturbed(x, shift).requires_grad_()
        with torch.enable_grad():
            value = loss(point)
            wanted = [point, *self._parameters()] if self._is_reference else [point]
            grad, *_ = torch.autograd.grad(value, wanted, allow_unused=len(wanted) > 1)
        return around.of_active(grad), value.detach()

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
