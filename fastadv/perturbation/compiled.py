"""The search on batches of a few fixed sizes, its inner step compiled (``engine.compile``).

Two functions are compiled, each as one whole graph: the gradients at the point where the chains stand, and the chains'
move along them. Everything around them stays as it is: the start is drawn on the batch itself, and what is found holds
the batch's own rows alone. Fillers start at 0, have gradients of exactly 0 and stay there.

``cudagraphs`` has inductor record CUDA graphs of both. Their results lie in memory that the next replay writes to,
hence the copies. It was not run on a GPU.
"""

from typing import Callable, Optional, Protocol

import torch
from torch import Tensor, nn

from fastadv.config.schema import PerturbationConfig
from fastadv.data.fixed_size import QUANTUM, FilledBatch, fill_up
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.ball import Sizes
from fastadv.perturbation.chains import Chains, Gradients, Surroundings, perturbed
from fastadv.perturbation.inner_loop import Adversary, CleanGradient, Perturbation
from fastadv.perturbation.sentence import mix
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
        modules: as there.
        max_length: L, the most tokens of a sentence.
        kind: default, or cudagraphs.
        quantum: token counts are multiples of it.
        backend: torch.compile's.
    """

    def __init__(
        self,
        config: PerturbationConfig,
        *modules: nn.Module,
        max_length: int,
        kind: str = "default",
        quantum: int = QUANTUM,
        backend: str = "inductor",
    ):
        super().__init__(config, *modules)
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
        eta: Optional[Tensor] = None,
        at_clean: Optional[CleanGradient] = None,
        num_gradients: Optional[int] = None,
        keeps_gradients: bool = False,
    ) -> Perturbation:
        x = x.detach()
        filled = fill_up(batch, self._max_length, self._quantum)
        start = self.start(x, batch, eta)

        def at_clean_filled() -> tuple[Tensor, Tensor]:
            grad, value = at_clean()
            return filled.pad(grad), value

        end, trace = self._run(
            filled.pad(x),
            _filled(start, filled),
            loss.on(filled),
            None if at_clean is None else at_clean_filled,
            num_gradients,
            keeps_gradients,
        )
        return Perturbation.of(_cut(end, filled, start.around), _cut_trace(trace, filled, start))

    def _gradients(self, x: Tensor, chains: Chains, loss: Callable) -> tuple[Gradients, Tensor]:
        *grads, value = self._call(
            self._compiled_gradients, x, chains.pgd, chains.fgsm, chains.eta, chains.around, loss
        )
        return Gradients.shared(grads[0]) if len(grads) == 1 else Gradients(*grads), value

    def _move(self, chains: Chains, step: int, grads: Gradients) -> Chains:
        given = (grads.pgd,) if grads.pgd is grads.eta else (grads.pgd, grads.fgsm, grads.eta)
        config = self.config
        # Steps that move the same chains share a graph: a step is known by which chains it moves.
        bounds = [bound for bound in (config.steps_of_pgd, config.steps_of_fgsm) if bound >= step]
        position = chains.pgd, chains.fgsm, chains.eta
        return Chains(chains.around, *self._call(self._compiled_move, *position, chains.around, min(bounds), *given))

    def _call(self, compiled: Callable, *arguments) -> tuple:
        with torch.enable_grad(), torch._dynamo.config.patch(recompile_limit=MOST_SIZES, trace_autograd_ops=True):
            if not self._uses_graphs:
                return compiled(*arguments)
            torch.compiler.cudagraph_mark_step_begin()
            return tuple(None if value is None else value.clone() for value in compiled(*arguments))


def gradients_of(
    x: Tensor, pgd: Tensor, fgsm: Tensor, eta: Optional[Tensor], around: Surroundings, loss: Callable
) -> tuple[Tensor, ...]:
    """One gradient that all parts share, or those of PGD, FGSM and eta, (T, E) each; and the loss they were taken of.

    As `Adversary` takes them. No parameter may ask for a gradient.
    """
    rho = around.config.rho
    chains = Chains(around, pgd, fgsm, eta)

    def at(delta: Tensor) -> tuple[Tensor, Tensor]:
        point = perturbed(x, chains.with_eta(delta)).requires_grad_()
        value = loss(point)
        # Not torch.func.grad: operations with a registered derivative are not for it.
        (grad,) = torch.autograd.grad(value, point)
        return around.of_active(grad), value.detach()

    if around.config.gradient == "shared" or rho in (0, 1):
        # Not chains.delta, whose cache takes a lock, which cannot be traced.
        return at(mix(pgd, fgsm, rho))
    (grad_pgd, value_pgd), (grad_fgsm, value_fgsm) = at(pgd), at(fgsm)
    return grad_pgd, grad_fgsm, mix(grad_pgd, grad_fgsm, rho), rho * value_pgd + (1 - rho) * value_fgsm


def moved(
    pgd: Tensor, fgsm: Tensor, eta: Optional[Tensor], around: Surroundings, step: int, *grads: Tensor
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Both chains and eta, (T, E), after a step along one gradient, or along one for each."""
    gradients = Gradients.shared(grads[0]) if len(grads) == 1 else Gradients(*grads)
    end = Chains(around, pgd, fgsm, eta).move(step, gradients)
    return end.pgd, end.fgsm, end.eta


def _filled(chains: Chains, filled: FilledBatch) -> Chains:
    around = chains.around
    sizes = Sizes(*(None if size is None else filled.pad(size, 1.0) for size in vars(around.sizes).values()))
    active = None if around.active is None else filled.pad(around.active)
    position = (None if part is None else filled.pad(part) for part in (chains.pgd, chains.fgsm, chains.eta))
    return Chains(Surroundings(around.config, filled.batch, sizes, active), *position)


def _cut(chains: Chains, filled: FilledBatch, around: Surroundings) -> Chains:
    position = (None if part is None else filled.tokens(part) for part in (chains.pgd, chains.fgsm, chains.eta))
    return Chains(around, *position)


def _cut_trace(trace: Trace, filled: FilledBatch, start: Chains) -> Trace:
    gradients = []
    for grads in trace.gradients:
        own = {id(grad): filled.tokens(grad) for grad in vars(grads).values()}
        gradients.append(Gradients(*(own[id(grad)] for grad in vars(grads).values())))
    cut = Trace(start, trace.keeps_gradients, gradients, trace.losses)
    cut.nonfinite_step = filled.sentences(trace.nonfinite_step)
    return cut
