"""What a search is: pure functions of one state, which `Adversary` runs and the compiled loop pads, traces and cuts.

To try another search, subclass `Search`, or `MixedSearch` and the functions that differ, keep the class in a package of
your own, and pass ``--perturbation.search my_package.my_module:MySearch``.
"""

from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from fastadv.config.search_plan import SearchPlan
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.ball import Sizes, active_tokens, sentence_sizes, wide

State = tuple
"""Where a search stands: a named tuple of constants, each (T, E), (T,), (B,), a scalar tensor, or None.

A new field needs nothing else: all fields are padded, compiled and cut together, by their number of rows."""


@dataclass(frozen=True)
class Surroundings:
    """What stays as it is while a search moves."""

    plan: SearchPlan
    batch: PackedBatch
    sizes: Sizes
    active: Tensor | None
    """(T,) bool, the tokens that are perturbed; None where all are"""

    @classmethod
    def of(cls, plan: SearchPlan, x: Tensor, batch: PackedBatch) -> "Surroundings":
        """The surroundings of a search around the embeddings ``x`` (T, E)."""
        active = active_tokens(batch, plan)
        return cls(plan, batch, sentence_sizes(x, batch, plan, active), active)

    def of_active(self, grad: Tensor) -> Tensor:
        """The gradient (T, E) in the perturbation's type, 0 at tokens that are not perturbed."""
        grad = grad.to(wide(grad.dtype))
        return grad if self.active is None else torch.where(self.active[:, None], grad, 0)


class Gradients(NamedTuple):
    """The gradients of one inner step, (T, E) each, one for each of the search's `points`."""

    delta: tuple[Tensor, ...]
    """what moves delta"""
    eta: tuple[Tensor, ...]
    """what moves eta: the same tensors, but under ``reuse: none``, which takes them by passes of their own"""

    @classmethod
    def shared(cls, *grads: Tensor) -> "Gradients":
        """The same gradients for delta and eta."""
        return cls(grads, grads)


class Search:
    """A search over embeddings X (T, E): it starts, says where its gradient is taken, and moves.

    All methods are pure functions of their arguments, run without a graph, and may be traced by torch.compile: a row
    of a batch must not change another row's result, and nothing may be asked of the device.

    Args:
        plan: every setting of ``perturbation``.
    """

    def __init__(self, plan: SearchPlan):
        self.plan = plan

    @property
    def num_steps(self) -> int:
        """N, the inner steps."""
        return self.plan.num_steps

    @property
    def starts_at_clean(self) -> bool:
        """Whether the first gradient is taken at X itself, so that the clean pass's graph can serve it."""
        return False

    @property
    def uses_eta(self) -> bool:
        """Whether a token-level perturbation is searched, which a table carries from batch to batch."""
        return False

    def start(self, x: Tensor, around: Surroundings, eta: Tensor | None) -> State:
        """Where a search around ``x`` (T, E) begins; ``eta`` (T, E) is what the eta table holds, or None."""
        raise NotImplementedError

    def points(self, state: State) -> list[Tensor]:
        """Shifts (T, E) from X at which the gradients of a step are taken; always the same number."""
        return [self.shift(state)]

    def mixed(self, values: list[Tensor]) -> Tensor:
        """The one number, or tensor, that those of all `points` stand for."""
        (value,) = values
        return value

    def move(self, state: State, step: int, grads: Gradients, around: Surroundings) -> State:
        """The state after inner step ``step``, counted from 1."""
        raise NotImplementedError

    def kind_of_step(self, step: int) -> int:
        """The first step that moves exactly as step ``step`` does: steps of one kind share a compiled graph."""
        return step

    def delta(self, state: State) -> Tensor:
        """(T, E) delta, which the adversarial view z_adv = f(X + delta) is taken at."""
        raise NotImplementedError

    def eta(self, state: State) -> Tensor | None:
        """(T, E) the token-level perturbation, or None where none is searched."""
        return None

    def shift(self, state: State) -> Tensor:
        """(T, E) delta + eta: where the inner loss is taken, less X."""
        delta, eta = self.delta(state), self.eta(state)
        return delta if eta is None else delta + eta

    def commit(self) -> None:
        """Called after an optimizer step, for what a search keeps from batch to batch."""

    def discard(self) -> None:
        """Called after a skipped batch, which must leave no trace in what a search keeps."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of what lives from batch to batch, by name."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state_dict` gave; ``state`` has other owners' tensors as well."""


def perturbed(x: Tensor, shift: Tensor) -> Tensor:
    """x + shift, summed in the perturbation's type and rounded once to that of ``x`` (T, E)."""
    return (x + shift).to(x.dtype)


def map_rows(function: Callable[[Tensor], Tensor], part: Any) -> Any:
    """``part``, nested tuples as states and gradients are, with ``function`` of each tensor in its place."""
    if isinstance(part, Tensor):
        return function(part)
    if not isinstance(part, tuple):
        return part
    values = [map_rows(function, value) for value in part]
    return type(part)(*values) if hasattr(part, "_fields") else tuple(values)
