"""PGD on the embedding-layer output: the smallest change of X, inside a linf ball, that does the most harm.

An attack is three pure functions over packed tokens, :func:`start`, :func:`step` and :func:`project`, which
`fastadv.perturbation.inner_loop.Adversary` runs (Madry et al. 2018, eq. 1, per sentence). Radii are relative:
κ·RMS(X_s) for sentence s over its real tokens, so that one κ means the same for any encoder. The start is drawn in the
ball, because the gradient of a cosine is zero where nothing is perturbed yet.

Shapes: ``B`` sentences, ``T`` packed tokens, ``E`` embedding size, ``D`` hidden size.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor

from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.inner_loop import Adversary
from fastadv.perturbation.search import Gradients, Search, Surroundings
from fastadv_kernels import project as project_on_ball
from fastadv_kernels import segment_norm, sign_step

Loss = Callable[[Tensor], Tensor]
"""vectors (B, D) -> (B,) what the attack makes large, each entry a function of its own row only"""

STEP_RELATIVE = 1 / 3
"""size of a sign step as a share of the radius"""


@dataclass(frozen=True)
class AttackResult:
    """What an attack reached; all constants."""

    vectors: Tensor
    """(B, D) float32, the sentence vectors at the worst perturbation met"""
    delta: Tensor
    """(T, E) float32, the perturbation that the steps end at"""
    start_vectors: Tensor
    """(B, D) float32, the vectors at the random start: noise of the same radius, without a gradient"""


def relative_radius(x: Tensor, batch: PackedBatch, kappa: float) -> Tensor:
    """(B,) float32: κ·RMS(X_s), a constant. x (T, E)."""
    num_entries = batch.lengths * x.shape[1]
    return kappa * segment_norm(x.detach().float(), batch.cu_seqlens, "l2") / num_entries.sqrt()


def start(x: Tensor, batch: PackedBatch, radius: Tensor, draws: Sequence[int], seed: int) -> Tensor:
    """(T, E) float32, uniform in each sentence's ball.

    A sentence's draw depends on ``seed`` and its own number in ``draws`` only, so that two models of one shape are
    attacked from the same start, however the sentences are batched.
    """
    width = x.shape[1]
    uniform = [
        np.random.default_rng((seed, draw)).random((length, width), dtype=np.float32)
        for draw, length in zip(draws, batch.lengths.tolist(), strict=True)
    ]
    noise = torch.from_numpy(np.concatenate(uniform)).to(x.device) * 2 - 1
    return project(noise * radius[batch.token_sentence, None], batch, radius)


def step(delta: Tensor, grad: Tensor, batch: PackedBatch, radius: Tensor, step_relative: float) -> Tensor:
    """Π(δ + step_relative·radius·sign(g)); a sentence whose gradient is not finite keeps its δ."""
    return sign_step(delta, grad, batch.cu_seqlens, step_relative * radius, radius, "linf")


def project(delta: Tensor, batch: PackedBatch, radius: Tensor) -> Tensor:
    """Π on each sentence's linf ball; ``delta`` (T, E), ``radius`` (B,)."""
    return project_on_ball(delta, radius, "linf", batch.cu_seqlens)


class _State(NamedTuple):
    """Where a search stands."""

    delta: Tensor
    """(T, E) float32"""
    radius: Tensor
    """(B,)"""


class _SignSteps(Search):
    """``num_steps`` sign steps from a start that is drawn for each sentence by itself."""

    def __init__(self, kappa: float, num_steps: int, step_relative: float, draws: Sequence[int], seed: int):
        super().__init__(PerturbationConfig(epsilon_relative=kappa, use_eta=False).resolve())
        self._num_steps, self._step_relative, self._draws, self._seed = num_steps, step_relative, draws, seed

    @property
    def num_steps(self) -> int:
        return self._num_steps

    def start(self, x: Tensor, around: Surroundings, eta: Tensor | None) -> _State:
        radius = relative_radius(x, around.batch, self.plan.epsilon_relative)
        return _State(start(x, around.batch, radius, self._draws, self._seed), radius)

    def move(self, state: _State, number: int, grads: Gradients, around: Surroundings) -> _State:
        grad = grads.delta[0].to(state.delta.dtype)
        return state._replace(delta=step(state.delta, grad, around.batch, state.radius, self._step_relative))

    def delta(self, state: _State) -> Tensor:
        return state.delta


def pgd_attack(
    encoder,
    batch: PackedBatch,
    loss: Loss,
    kappa: float,
    num_steps: int = 8,
    step_relative: float = STEP_RELATIVE,
    draws: Sequence[int] | None = None,
    seed: int = 0,
) -> AttackResult:
    """``num_steps`` sign steps from a random start, dropout off; the worst vectors met for each sentence are kept.

    Keeping the worst (start included) costs no pass and makes the reached loss never fall with more steps; sign steps
    of a third of the radius overshoot near the end. Parameters get no gradient, and the encoder's mode is restored.

    Args:
        encoder: ``embed(batch, dropout) -> (T, E)``, ``encode(x, batch, dropout) -> (B, D)``.
        loss: see :data:`Loss`; :func:`negative_cosine` for meaning, a probe's cross-entropy for a label.
        kappa: radius as a multiple of RMS(X_s); 0 leaves the sentences as they are.
        draws: (B,) a number for each sentence that addresses its random start; by default its row.
    """
    draws = range(batch.num_sentences) if draws is None else draws
    start_vectors = worst_vectors = worst_losses = None

    def summed(points: Tensor) -> Tensor:
        nonlocal start_vectors, worst_vectors, worst_losses
        vectors = encoder.encode(points, batch, dropout=False).float()
        losses = loss(vectors)
        if worst_losses is None:
            start_vectors = worst_vectors = vectors.detach()
            worst_losses = losses.detach()
        else:
            is_worse = losses.detach() > worst_losses
            worst_losses = torch.where(is_worse, losses.detach(), worst_losses)
            worst_vectors = torch.where(is_worse[:, None], vectors.detach(), worst_vectors)
        return losses.sum()

    search = _SignSteps(kappa, num_steps, step_relative, draws, seed)
    adversary = Adversary(search.plan, encoder, search=search)
    with evaluation_mode(encoder):
        with torch.no_grad():
            x = encoder.embed(batch, dropout=False).detach()
        found = adversary.search(x, batch, summed)
        adversary.losses_at(x, summed, found.state)
    return AttackResult(vectors=worst_vectors, delta=found.delta, start_vectors=start_vectors)


def negative_cosine(clean: Tensor) -> Loss:
    """−cos of the perturbed vector to the clean one; ``clean`` (B, D) is a constant."""
    clean = torch.nn.functional.normalize(clean.detach().float(), dim=1)
    return lambda vectors: -(torch.nn.functional.normalize(vectors, dim=1) * clean).sum(dim=1)


@contextmanager
def evaluation_mode(encoder):
    """``encoder.eval()`` inside, the former mode of every module after."""
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training
