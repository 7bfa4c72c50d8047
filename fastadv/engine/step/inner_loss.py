"""The loss of perturbed embeddings that a search raises: encoder and objective, everything but the points constant."""

from contextlib import contextmanager
from typing import Callable

import torch
from torch import Tensor, nn

from fastadv.data.fixed_size import FilledBatch
from fastadv.data.packing import PackedBatch
from fastadv.engine.step.dropout_replay import DropoutReplay
from fastadv.objectives.base import Keys, Objective, Views


class InnerLoss:
    """points (T, E) → the objective's inner loss of one batch, summed over rows.

    Args:
        keys: of the clean pass; constants here.
        masks: those of the clean pass, repeated in every call; None runs without dropout.
        keys_again: called for the keys in every call, in place of ``keys``.
        anchor: (B, D) h of the unperturbed point, a constant, for an objective that compares with it.
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        batch: PackedBatch,
        keys: Keys | None,
        masks: DropoutReplay | None,
        keys_again: Callable[[], Keys] | None = None,
        anchor: Tensor | None = None,
    ):
        self._encoder, self._objective, self.batch = encoder, objective, batch
        self._keys = None if keys is None else keys.detach()
        self._masks, self._keys_again, self._anchor = masks, keys_again, anchor

    def __call__(self, points: Tensor) -> Tensor:
        keys = self._keys if self._keys_again is None else self._keys_again()
        return self._of_pooled(self._pooled(points), keys)

    def on(self, filled: FilledBatch) -> Callable[[Tensor], Tensor]:
        """The same loss of points (T', E) of the filled batch, without dropout."""
        if self._masks is not None or self._keys_again is not None:
            raise ValueError("a filled batch has no masks of the clean pass, and keys that are constant")
        # What passes remember of a batch must be there before they are traced.
        self._encoder.prepare(filled.batch)
        return _FilledLoss(self, filled.batch, filled.num_sentences)

    def gradient_at_clean(self, x: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient by X (T, E), and the loss, from the graph that made ``pooled`` (B, D) of ``x``.

        Nothing is encoded. Only X is asked for, so no parameter's gradient is computed; the graph is kept. It equals
        the gradient of a pass of its own where that has the clean pass's masks, or where there is no dropout.
        """
        with torch.enable_grad():
            value = self._of_pooled(pooled, self._keys)
        (grad,) = torch.autograd.grad(value, x, retain_graph=True)
        return grad, value.detach()

    def at_clean(self, pooled: Tensor) -> Tensor:
        """The loss at X, of the vectors (B, D) that the clean pass gave under its own masks; nothing is encoded."""
        with torch.no_grad(), kept_buffers(self._objective):
            return self._of_pooled(pooled.detach(), self._keys)

    def _pooled(self, points: Tensor) -> Tensor:
        if self._masks is None:
            return self._encoder.encode(points, self.batch, dropout=False)
        with self._masks.again():
            return self._encoder.encode(points, self.batch)

    def _of_pooled(self, pooled: Tensor, keys: Keys | None) -> Tensor:
        batch = self.batch
        views = Views(
            self._objective.project(pooled, is_inner=True),
            batch.sentence_ids,
            positive_keys=keys,
            pooled=pooled,
            anchor=self._anchor,
            labels=batch.labels,
            batch=batch,
        )
        return self._objective.inner_loss(views)


class _FilledLoss:
    def __init__(self, loss: InnerLoss, batch: PackedBatch, num_sentences: int):
        self._loss, self._batch, self._num_sentences = loss, batch, num_sentences

    def __call__(self, points: Tensor) -> Tensor:
        loss = self._loss
        pooled = loss._encoder.encode(points, self._batch, dropout=False)
        return loss._of_pooled(pooled[: self._num_sentences], loss._keys)


@contextmanager
def kept_buffers(module: nn.Module):
    """Running statistics change on copies inside the block, and are the old ones after it.

    Copies, since graphs built before hold the originals and refuse a backward once those were written to.
    """
    originals = [(owner, name, value) for owner in module.modules() for name, value in owner._buffers.items()]
    for owner, name, value in originals:
        owner._buffers[name] = None if value is None else value.clone()
    try:
        yield
    finally:
        for owner, name, value in originals:
            owner._buffers[name] = value
