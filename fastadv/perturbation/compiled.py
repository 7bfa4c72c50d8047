"""The search on batches of a few fixed sizes, its inner step compiled (``engine.compile``).

Two functions are compiled, each as one whole graph: the gradients at the points of the search's state, and the state's
move along them. Everything around them stays as it is: the start is drawn on the batch itself, and the result holds
the batch's own rows alone. Fillers start at 0, have gradients of exactly 0 and stay there.

``cudagraphs`` has inductor record CUDA graphs of both. Their results lie in memory that the next replay writes to,
hence the copies. It was not run on a GPU.
"""

from dataclasses import replace
from typing import Any, Callable, Protocol

import torch
from torch import Tensor, nn

from fastadv.config.schema import PerturbationConfig
from fastadv.config.search_plan import SearchPlan
from fastadv.data.fixed_size import QUANTUM, FilledBatch, fill_up
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.ball import Sizes
from fastadv.perturbation.inner_loop import Adversary, CleanGradient, Perturbation
from fastadv.perturbation.search import Gradients, Search, State, Surroundings, map_rows, perturbed
from fastadv.perturbation.trace import Trace

# A run meets a handful of token counts, and each last batch of an epoch may have its own number of sentences.
MOST_SIZES = 64


class FillableLoss(Protocol):
    """A loss that can be taken on a filled batch: of the batch's own sentences alone."""

    def on(self, filled: FilledBatch) -> Callable[[Tensor], Tensor]:
        """points (T', E) → the loss, a scalar."""


class CompiledAdversary(Adversary):
    """`Adversary` whose inner steps are compiled; the same results to rounding.

    Args:
        config: ``reuse`` exact or adaptive, ``inner_dropout`` off.
        modules, search: as there.
        max_length: L, the most tokens of a sentence.
        kind: default, or cudagraphs.
        quantum: token counts are multiples of it.
        backend: torch.compile's.
    """

    def __init__(
        self,
        config: PerturbationConfig | SearchPlan,
        *modules: nn.Module,
        max_length: int,
        search: Search | None = None,
        kind: str = "default",
        quantum: int = QUANTUM,
        backend: str = "inductor",
    ):
        super().__init__(config, *modules, search=search)
        self._max_length, self._quantum = max_length, quantum
        self._uses_graphs = kind == "cudagraphs"
        mode = "reduce-overhead" if self._uses_graphs else None
        options = {"fullgraph": True, "dynamic": False, "backend": backend, "mode": mode}
        self._compiled_gradients = torch.compile(gradients_of, **options)
        self._compiled_move = torch.compile(moved, **options)

    def search(
        self,
        x: Tensor,
        batch: PackedBatch,
        loss: FillableLoss,
        eta: Tensor | None = None,
        at_clean: CleanGradient | None = None,
        num_gradients: int | None = None,
        keeps_gradients: bool = False,
    ) -> Perturbation:
        x = x.detach()
        filled = fill_up(batch, self._max_length, self._quantum)
        around, start = self.start(x, batch, eta)

        def at_clean_filled() -> tuple[Tensor, Tensor]:
            grad, value = at_clean()
            return filled.pad(grad), value

        trace = Trace(filled_surroundings(around, filled), map_rows(filled.pad, start), keeps_gradients)
        at_clean = None if at_clean is None else at_clean_filled
        end = self._run(filled.pad(x), trace, loss.on(filled), at_clean, num_gradients)
        end, gradients = map_rows(filled.cut, (end, tuple(trace.gradients)))
        own = Trace(around, start, keeps_gradients, list(gradients), trace.losses)
        own.nonfinite_step = filled.cut(trace.nonfinite_step)
        return Perturbation.of(self.moves, end, own)

    def _gradients(self, x: Tensor, state: State, loss: Callable, around: Surroundings) -> tuple[Gradients, Tensor]:
        grads, value = self._call(self._compiled_gradients, self.moves, x, state, loss, around)
        return Gradients.shared(*grads), value

    def _move(self, state: State, step: int, grads: Gradients, around: Surroundings) -> State:
        # Steps that move alike share a graph.
        step = self.moves.kind_of_step(step)
        return self._call(self._compiled_move, self.moves, state, step, grads.delta, around)

    def _call(self, compiled: Callable, *arguments: Any) -> Any:
        with torch.enable_grad(), torch._dynamo.config.patch(recompile_limit=MOST_SIZES, trace_autograd_ops=True):
            if not self._uses_graphs:
                return compiled(*arguments)
            torch.compiler.cudagraph_mark_step_begin()
            return map_rows(Tensor.clone, compiled(*arguments))


def gradients_of(
    search: Search, x: Tensor, state: State, loss: Callable, around: Surroundings
) -> tuple[tuple[Tensor, ...], Tensor]:
    """A gradient (T, E) for each of the search's points, and the loss where they were taken.

    As `Adversary` takes them. No parameter may ask for a gradient.
    """
    grads, values = [], []
    for shift in search.points(state):
        point = perturbed(x, shift).requires_grad_()
        value = loss(point)
        # Not torch.func.grad: operations with a registered derivative are not for it.
        (grad,) = torch.autograd.grad(value, point)
        grads.append(around.of_active(grad))
        values.append(value.detach())
    return tuple(grads), search.mixed(values)


def moved(search: Search, state: State, step: int, grads: tuple[Tensor, ...], around: Surroundings) -> State:
    """The state after a step along ``grads``, which move delta and eta alike."""
    return search.move(state, step, Gradients.shared(*grads), around)


def filled_surroundings(around: Surroundings, filled: FilledBatch) -> Surroundings:
    """``around`` for the filled batch, whose fillers have radii and steps of 1."""
    sizes = Sizes(*(None if size is None else filled.pad(size, 1.0) for size in vars(around.sizes).values()))
    active = None if around.active is None else filled.pad(around.active)
    # The batch remembers it from now on: computing it takes a lock, which cannot be traced.
    _ = filled.batch.token_sentence
    return replace(around, batch=filled.batch, sizes=sizes, active=active)
