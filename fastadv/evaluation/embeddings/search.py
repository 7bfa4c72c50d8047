"""The search for a point of each text's ball that a classifier gets wrong: PGD and Auto-PGD on packed embeddings.

A ball lies around X, the embeddings of one text's real tokens; its radius is absolute. A text is fooled where any point
that the search meets is classified wrongly: each is a perturbation within the ball, and costs nothing to look at.
Dropout is off and parameters get no gradient.

Shapes: ``B`` texts, ``T`` packed tokens, ``E`` embedding size, ``D`` hidden size, ``C`` classes.

Sources: Madry et al. 2018 (PGD); Croce & Hein, "Reliable evaluation of adversarial robustness with an ensemble of
diverse parameter-free attacks", ICML 2020, algorithm 1 (Auto-PGD).
"""

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.evaluation.before_after.embedding_attack import evaluation_mode
from fastadv.perturbation.ball import wide
from fastadv_kernels import project, segment_norm, sentence_step, sign_step

MOMENTUM = 0.75
"""share of the new step in Auto-PGD; the rest is the step before"""
LEAST_RISES = 0.75
"""share of the steps between two checkpoints that must raise the loss, or the step size is halved"""

Radius = float | Tensor
"""a number, or one a text (B,)"""


@dataclass(frozen=True)
class Point:
    """A classifier at one point of each text's ball."""

    delta: Tensor
    """(T, E), a constant"""
    vectors: Tensor
    """(B, D) the pooled h"""
    losses: Tensor
    """(B,) cross-entropy of the true class"""
    predicted: Tensor
    """(B,) int64"""
    is_right: Tensor
    """(B,) bool; a row with a logit that is not finite is wrong"""
    grad: Optional[Tensor] = None
    """(T, E) derivative of the summed losses by delta, 0 at tokens that are not perturbed; None where not asked for"""

    def where(self, chosen: Tensor, other: "Point", batch: PackedBatch) -> "Point":
        """This point for texts that are ``chosen`` (B,), ``other`` for the rest."""

        def pick(name: str) -> Optional[Tensor]:
            mine, others = getattr(self, name), getattr(other, name)
            if mine is None or others is None:
                return None
            rows = chosen[batch.token_sentence] if name in ("delta", "grad") else chosen
            return torch.where(rows.view(-1, *[1] * (mine.ndim - 1)), mine, others)

        return Point(**{name: pick(name) for name in Point.__dataclass_fields__})


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    end: Point
    """the last point, and of Auto-PGD that of the largest loss"""
    is_right: Tensor
    """(B,) bool, right at every point met"""
    has_vanished: Tensor
    """(B,) bool: the gradient at the start is 0 or not finite"""


class Target:
    """A classifier around one batch of texts: X is embedded once, points are looked at as often as wanted.

    Args:
        classifier: has ``encoder`` (``embed``, ``encode``) and ``head`` (h (B, D) -> logits (B, C)).
        labels: (B,) int64, the true class of each text.
        perturb_special_tokens: false: [CLS], [SEP] and their like keep their embeddings.
    """

    def __init__(self, classifier, batch: PackedBatch, labels: Tensor, perturb_special_tokens: bool = True):
        self.classifier, self.batch, self.labels = classifier, batch, labels
        self._active = None if perturb_special_tokens else ~batch.is_special
        with torch.no_grad():
            self.x = classifier.encoder.embed(batch, dropout=False).detach()

    def zeros(self) -> Tensor:
        """(T, E), the text itself."""
        return torch.zeros(self.x.shape, dtype=wide(self.x.dtype), device=self.x.device)

    def at(self, delta: Tensor, needs_gradient: bool = False) -> Point:
        """The classifier at X + ``delta`` (T, E), which is summed in float32 at least and rounded once."""
        delta = delta.detach().requires_grad_(needs_gradient)
        with torch.set_grad_enabled(needs_gradient):
            vectors = self.classifier.encoder.encode((self.x + delta).to(self.x.dtype), self.batch, dropout=False)
            logits = self.classifier.head(vectors).to(wide(vectors.dtype))
            losses = cross_entropy(logits, self.labels)
        # A head that rounds or thresholds has no gradient at all: that is 0, as the attack sees it.
        has_graph = needs_gradient and losses.requires_grad
        grad = None
        if needs_gradient:
            grad = torch.autograd.grad(losses.sum(), delta, allow_unused=True)[0] if has_graph else None
            grad = torch.zeros_like(delta) if grad is None else grad
        predicted = logits.detach().argmax(dim=1)
        is_right = (predicted == self.labels) & logits.detach().isfinite().all(dim=1)
        constants = (value.detach() for value in (delta, vectors, losses))
        return Point(*constants, predicted, is_right, None if grad is None else self.of_active(grad))

    def of_active(self, rows: Tensor) -> Tensor:
        """``rows`` (T, E), 0 at tokens that are not perturbed."""
        return rows if self._active is None else torch.where(self._active[:, None], rows, 0)

    def random_delta(self, draws: Sequence[int], seed: Sequence[int], radius: Radius, norm: str, on_surface=False):
        """(T, E): uniform in each text's ball, or on its surface.

        A text's draw depends on ``seed`` and its own number in ``draws`` alone, not on the batch it is in.
        """
        widths, texts = self.x.shape[1], []
        lengths = self.batch.lengths.tolist()
        for draw, length in zip(draws, lengths, strict=True):
            generator = np.random.default_rng((*seed, draw))
            if norm == "linf":
                rows = generator.uniform(-1, 1, (length, widths))
                texts.append(np.sign(rows) if on_surface else rows)
            else:
                texts.append(generator.standard_normal((length, widths)))
        noise = self.of_active(torch.as_tensor(np.concatenate(texts), dtype=self.zeros().dtype, device=self.x.device))
        if norm == "l2":
            norms = segment_norm(noise, self.batch.cu_seqlens, "l2")
            noise = noise / torch.where(norms > 0, norms, 1)[self.batch.token_sentence, None]
            if not on_surface:
                noise = noise * self._uniform_radii(draws, seed)[self.batch.token_sentence, None]
        per_token = radius[self.batch.token_sentence, None] if isinstance(radius, Tensor) else radius
        return project(noise * per_token, radius, norm, self.batch.cu_seqlens)

    def _uniform_radii(self, draws: Sequence[int], seed: Sequence[int]) -> Tensor:
        """(B,): |u| of a point that is uniform in the unit ball of as many dimensions as the text has entries."""
        shares = [np.random.default_rng((*seed, draw, 1)).random() for draw in draws]
        is_active = torch.ones_like(self.batch.is_special) if self._active is None else self._active
        num_tokens = torch.zeros_like(self.batch.lengths).index_add(0, self.batch.token_sentence, is_active.long())
        num_entries = num_tokens.clamp(min=1).double() * self.x.shape[1]
        uniform = torch.as_tensor(shares, dtype=torch.float64, device=num_entries.device)
        return (uniform ** (1 / num_entries)).to(self.zeros().dtype)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) −log p(label) of logits (B, C), as softplus(log Σ_{j ≠ y} exp z_j − z_y).

    The same number as usual; its gradient holds no p_y − 1, which float32 rounds to 0 at a logit gap of 17, where an
    attack on a confident classifier then loses the true class's part.
    """
    own = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
    others = logits.masked_fill(own, -math.inf).logsumexp(dim=1)
    return F.softplus(others - logits.gather(1, labels[:, None])[:, 0])


def step(delta: Tensor, grad: Tensor, batch: PackedBatch, size: Radius, radius: Radius, norm: str) -> Tensor:
    """Π(δ + size·g/‖g‖₂) in the l2 ball, Π(δ + size·sign(g)) in the linf ball; a gradient that is not finite is 0."""
    move = sentence_step if norm == "l2" else sign_step
    return move(delta, grad, batch.cu_seqlens, size, radius, norm)


def pgd(target: Target, start: Tensor, radius: Radius, size: Radius, num_steps: int, norm: str) -> Found:
    """``num_steps`` steps of ``size`` from ``start`` (T, E); the last point is where they end."""
    delta, is_right, has_vanished = start, None, None
    for _ in range(num_steps):
        point = target.at(delta, needs_gradient=True)
        if is_right is None:
            is_right, has_vanished = point.is_right, vanished(point.grad, target.batch)
        is_right = is_right & point.is_right
        delta = step(delta, point.grad, target.batch, size, radius, norm)
    end = target.at(delta)
    return Found(end, is_right & end.is_right, has_vanished)


def apgd(target: Target, start: Tensor, radius: Radius, size: Radius, num_steps: int, norm: str) -> Found:
    """Auto-PGD: momentum; at checkpoints a text without progress goes on from its best point in half steps."""
    batch = target.batch
    size = torch.as_tensor(size, dtype=start.dtype, device=start.device).expand(batch.num_sentences)
    point = best = target.at(start, needs_gradient=True)
    is_right, has_vanished = point.is_right, vanished(point.grad, batch)
    before = start
    num_rises = torch.zeros_like(point.predicted)
    was_halved, best_then, last_checkpoint = torch.zeros_like(is_right), point.losses, 0
    checkpoints = checkpoints_of(num_steps)
    for number in range(1, num_steps + 1):
        moved = step(point.delta, point.grad, batch, size, radius, norm)
        if number > 1:
            moved = MOMENTUM * (moved - point.delta) + (1 - MOMENTUM) * (point.delta - before) + point.delta
            moved = project(moved, radius, norm, batch.cu_seqlens)
        before, losses = point.delta, point.losses
        point = target.at(moved, needs_gradient=number < num_steps)
        is_right = is_right & point.is_right
        num_rises += point.losses > losses
        is_better = point.losses > best.losses
        best = point.where(is_better, best, batch)
        if number in checkpoints and number < num_steps:
            too_few = num_rises < LEAST_RISES * (number - last_checkpoint)
            is_stuck = ~was_halved & (best.losses == best_then)
            halves = too_few | is_stuck
            size = torch.where(halves, size / 2, size)
            point = best.where(halves, point, batch)
            was_halved, best_then, last_checkpoint = halves, best.losses, number
            num_rises = torch.zeros_like(num_rises)
    return Found(best, is_right, has_vanished)


def checkpoints_of(num_steps: int) -> List[int]:
    """⌈p_j·N⌉ with p_1 = 0.22, p_{j+1} = p_j + max(p_j − p_{j−1} − 0.03, 0.06): the paper's section 3.2."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    # Sums of hundredths: without the rounding 0.22 + 0.19 + 0.16 would lie a hair above 0.57.
    return sorted({math.ceil(round(share, 6) * num_steps) for share in shares[1:] if share <= 1})


def vanished(grad: Tensor, batch: PackedBatch) -> Tensor:
    """(B,) bool: the gradient (T, E) of a text is 0 throughout, or holds a NaN or infinity."""
    size = segment_norm(grad, batch.cu_seqlens, "linf")
    return ~size.isfinite() | (size == 0)


SEARCHES: dict[str, Callable[..., Found]] = {"fgsm": pgd, "fgm": pgd, "pgd": pgd, "apgd": apgd}
"""of each method; fgsm and fgm are one step of PGD, as long as the radius"""


@contextmanager
def attacking(*classifiers):
    """Dropout off and parameters without gradients inside; everything as it was after."""
    trained = [p for one in classifiers for p in one.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with evaluation_mode(torch.nn.ModuleList(classifiers)):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
