"""One training step as the forward of one module, which DeepSpeed wraps: ``loss = engine(batch)``.

    X  = embed(batch)    z  = encode(X)        mask m1
    X+ = embed(batch)    z+ = encode(X+)       mask m2, gathered over ranks: the keys
    delta, eta = search  encode(X + delta + eta) against the keys, constants
    z_adv = encode(X + delta)                  a mask of its own, X's graph kept
    loss  = objective(z, z+, z_adv)

Inner forwards never go through the engine, so nothing is reduced in them.
"""

from contextlib import contextmanager
from typing import Callable, Optional

import torch
from torch import Tensor, nn

from fastadv.config import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.objectives.base import Keys, Objective, Views
from fastadv.perturbation import Adversary, EtaTable, NonFiniteGradient, Perturbation
from fastadv.perturbation.ball import active_tokens, wide
from fastadv.perturbation.inner_loop import perturbed

from .dropout_replay import DropoutReplay
from .gather import gather_keys


class Step(nn.Module):
    """The step of every objective.

    Args:
        encoder: offers ``embed(batch, dropout=None)`` → (T, E), ``encode(x, batch, dropout=None)`` → (B, D),
            ``vocab_size`` and ``embedding_size``; dropout False turns it off, None leaves it to the training mode.
        objective: views and losses.
        perturbation: the search, for an objective that uses an adversary.

    Attributes:
        metrics: of the last forward, by name: detached scalar tensors.
        is_skipped: whether the last forward met a non-finite inner gradient under ``on_nonfinite: skip``; its loss
            must not be stepped on.
    """

    def __init__(self, encoder: nn.Module, objective: Objective, perturbation: PerturbationConfig):
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.perturbation = perturbation
        self.metrics: dict[str, Tensor] = {}
        self.is_skipped = False
        self.eta_table: Optional[EtaTable] = None
        if objective.uses_adversary:
            self._adversary = Adversary(perturbation, encoder, objective)
            if perturbation.use_eta:
                dtype = wide(next(encoder.parameters()).dtype)
                self.eta_table = EtaTable(
                    encoder.vocab_size, encoder.embedding_size, perturbation.sigma, dtype, perturbation.norm
                )

    def forward(self, batch: PackedBatch) -> Tensor:
        """The loss of one batch, a scalar.

        Raises:
            NonFiniteGradient: an inner gradient was not finite and ``on_nonfinite`` is raise.
        """
        self.metrics, self.is_skipped = {}, False
        x = self.encoder.embed(batch)
        query_masks = DropoutReplay(x.device)
        query = self.objective.project(self.encoder.encode(x, batch))
        positive_keys = None
        positive_masks = DropoutReplay(x.device)
        if self.objective.uses_positive:
            positive_keys = self._positive_keys(batch)
        adversarial = adversarial_keys = None
        if self.objective.uses_adversary:
            loss = self._inner_loss(batch, positive_keys, query_masks, positive_masks)
            found = self._search(x, batch, loss)
            adversarial = self.objective.project(self.encoder.encode(perturbed(x, found.delta), batch))
            adversarial_keys = gather_keys(adversarial, batch.sentence_ids)
        views = Views(query, batch.sentence_ids, positive_keys, adversarial, adversarial_keys)
        loss, terms = self.objective.loss(views)
        self.metrics.update(loss=loss.detach(), **terms)
        return loss

    def _positive_keys(self, batch: PackedBatch) -> Keys:
        positive = self.objective.project(self.encoder.encode(self.encoder.embed(batch), batch))
        return gather_keys(positive, batch.sentence_ids)

    def _inner_loss(
        self,
        batch: PackedBatch,
        keys: Optional[Keys],
        query_masks: DropoutReplay,
        positive_masks: DropoutReplay,
    ) -> Callable[[Tensor], Tensor]:
        """points (T, E) → the objective's inner loss, summed over rows."""
        keys = None if keys is None else keys.detach()
        is_frozen = self.perturbation.inner_dropout == "frozen"

        def vectors(points: Tensor) -> Tensor:
            if not is_frozen:
                return self.encoder.encode(points, batch, dropout=False)
            with query_masks.again():
                return self.encoder.encode(points, batch)

        def inner_loss(points: Tensor) -> Tensor:
            own_keys = keys
            if self.perturbation.reuse == "none" and keys is not None:
                # The reference computes the keys anew each time, under the masks that made them first.
                with torch.no_grad(), positive_masks.again(), _kept_buffers(self.objective):
                    own_keys = self._positive_keys(batch)
            return self.objective.inner_loss(
                self.objective.project(vectors(points), is_inner=True), own_keys, batch.sentence_ids
            )

        return inner_loss

    def _search(self, x: Tensor, batch: PackedBatch, loss: Callable[[Tensor], Tensor]) -> Perturbation:
        eta = None if self.eta_table is None else self.eta_table.read(batch)
        found = self._adversary.search(x, batch, loss, eta)
        if bool((found.nonfinite_step > 0).any()):
            if self.perturbation.on_nonfinite == "raise":
                raise NonFiniteGradient(found)
            self.is_skipped = True
            self.metrics["num_nonfinite_sentences"] = (found.nonfinite_step > 0).sum()
        self.metrics["inner_gain"] = found.gain
        self.metrics["delta_rms"] = found.delta.square().mean().sqrt()
        if self.eta_table is not None:
            self.eta_table.accumulate(found.eta, batch, active_tokens(batch, self.perturbation))
            self.metrics["eta_rms"] = found.eta.square().mean().sqrt()
            if found.epsilon_token is not None:
                self.metrics["eta_table_dead_share"] = self.eta_table.dead_share(found.epsilon_token.mean())
        return found

    def commit(self) -> None:
        """After an optimizer step: what the searches found enters the eta table."""
        if self.eta_table is not None:
            self.eta_table.commit()

    def discard(self) -> None:
        """After a skipped step: what the searches found is forgotten."""
        if self.eta_table is not None:
            self.eta_table.discard()

    def extra_state_dict(self) -> dict[str, Tensor]:
        """State that is no parameter and no buffer: tensors by name."""
        return {} if self.eta_table is None else self.eta_table.state_dict()

    def load_extra_state_dict(self, state: dict[str, Tensor]) -> None:
        if self.eta_table is not None:
            self.eta_table.load_state_dict(state)


@contextmanager
def _kept_buffers(module: nn.Module):
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
