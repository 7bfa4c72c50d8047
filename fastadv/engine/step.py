"""One training step as the forward of one module, which DeepSpeed wraps: ``loss = engine(batch)``.

    X  = embed(batch)    z  = encode(X)        mask m1
    X+ = embed(batch)    z+ = encode(X+)       mask m2, or a given positive text; gathered over ranks: the keys
    delta, eta = search  encode(X + delta + eta) against the keys, constants
    z_adv = encode(X + delta)                  a mask of its own, X's graph kept
    L_RTD = detection(batch, h, eta)           where the objective has replaced token detection
    loss  = objective(z, z+, z_adv, L_RTD)

Under ``reuse: free`` the search and z_adv's pass are one thing (``free.py``).

Inner forwards never go through the engine, so nothing is reduced in them.
"""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Callable, Optional

import torch
from torch import Tensor, nn

from fastadv.config import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.objectives.base import Keys, Objective, Views
from fastadv.perturbation import AdaptiveReuse, Adversary, EtaTable, NonFiniteGradient, Perturbation
from fastadv.perturbation.ball import active_tokens, wide
from fastadv.perturbation.chains import perturbed
from fastadv.perturbation.compiled import CompiledAdversary
from fastadv.perturbation.inner_loop import CleanGradient

from .clock import no_clock
from .compiled_passes import CompiledPasses
from .dropout_replay import DropoutReplay
from .free import free_loss
from .gather import GlobalBatch, gather_rows, gather_unequal
from .inner_loss import InnerLoss, kept_buffers
from .perturbation_metrics import norm_sums
from .row_watch import RowWatch

_MOST_JOINT_TOKENS = 1024
"""tokens up to which one pass of both views was faster than two on a CPU"""


class Step(nn.Module):
    """The step of every objective.

    Args:
        encoder: offers ``embedder(batch)`` → () → (T, E), X under a mask of its own at each call, ``encode(x, batch,
            dropout=None)`` → (B, D), ``vocab_size`` and ``embedding_size``; dropout False turns it off, None leaves it
            to the training mode.
        objective: views and losses.
        perturbation: the search, for an objective that uses an adversary.
        detection: for an objective with ``detection``: called with (batch, h, z, eta), gives L_RTD and its metrics.
        compile: none, default or cudagraphs: whether the passes and the search's inner step are compiled, and how.
        joint_views: whether z and z+ come from one pass of 2B, where that is the same computation; None: where it pays.

    Attributes:
        metrics: of the last forward, by name: detached scalar tensors, logged as means over ranks.
        whole: the last forward's batch over all ranks.
        compute_dtype: what encoder passes compute in, on copies of the weights made once a step; None: as they are.
        is_skipped: whether the last forward met a non-finite inner gradient under ``on_nonfinite: skip``; its loss
            must not be stepped on.
        fault: what it met then.
        watch: the last forward's vectors, and which of them went wrong.
        clock: times the search and z_adv's pass, where one is given.
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        perturbation: PerturbationConfig,
        detection: Optional[nn.Module] = None,
        compile: str = "none",
        joint_views: Optional[bool] = False,
    ):
        super().__init__()
        if (detection is None) != (objective.detection is None):
            raise ValueError("a detection is given exactly where the objective asks for one")
        self.encoder = encoder
        self.objective = objective
        self.perturbation = perturbation.as_mixed()
        self.detection = detection
        self._joint_views = joint_views
        self._passes = None if compile == "none" else CompiledPasses(encoder)
        self.metrics: dict[str, Tensor] = {}
        self.is_skipped = False
        self.fault: Optional[NonFiniteGradient] = None
        self.watch = RowWatch()
        self.clock = no_clock
        self.compute_dtype: Optional[torch.dtype] = None
        self.whole: Optional[GlobalBatch] = None
        self.eta_table: Optional[EtaTable] = None
        self.adaptive: Optional[AdaptiveReuse] = None
        if objective.uses_adversary:
            if compile == "none":
                self._adversary = Adversary(self.perturbation, encoder, objective)
            else:
                self._adversary = CompiledAdversary(
                    self.perturbation, encoder, objective, max_length=encoder.max_length, kind=compile
                )
            if self.perturbation.reuse == "adaptive" and self.perturbation.num_inner_steps > 0:
                self.adaptive = AdaptiveReuse(
                    self.perturbation.num_inner_steps, perturbation.probe_every, perturbation.agreement
                )
            if self.perturbation.use_eta:
                dtype = wide(next(encoder.parameters()).dtype)
                self.eta_table = EtaTable(
                    encoder.vocab_size, encoder.embedding_size, perturbation.sigma, dtype, perturbation.norm
                )

    def forward(self, batch: PackedBatch) -> Tensor:
        """The loss of one batch, a scalar.

        Raises:
            NonFiniteGradient: an inner gradient was not finite and ``on_nonfinite`` is raise.
        """
        self.metrics, self.is_skipped, self.fault = {}, False, None
        self.watch.clear()
        self.whole = GlobalBatch(batch)
        with ExitStack() as stack:
            if self.compute_dtype is not None:
                stack.enter_context(self.encoder.computing_in(self.compute_dtype))
                if self.detection is not None:
                    stack.enter_context(self.detection.discriminator.computing_in(self.compute_dtype))
            loss, terms = self._loss(batch)
        self.metrics.update(loss=loss.detach(), **terms)
        return loss

    def _loss(self, batch: PackedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        whole, objective = self.whole, self.objective
        embed = self.encoder.embedder(batch)
        x = embed()
        x_positive = embed() if self._joins_views(batch) else None
        masks = DropoutReplay(x.device)
        if x_positive is None:
            pooled, positive = self._encode(x, batch), None
        else:
            pooled, positive = self._encode(torch.cat([x, x_positive]), batch.twice()).chunk(2)
        # Whether an inner step at X itself would repeat the pass just made, whose graph can then serve it.
        is_as_inner = objective.uses_adversary and (self._is_frozen or masks.is_unused())
        query = objective.project(pooled)
        keys_masks = DropoutReplay(x.device)
        keys = self._positive_keys(batch, embed, positive) if objective.uses_positive else None
        views = Views(query, batch.sentence_ids, keys, rows_a_rank=whole.rows_a_rank)
        self.watch.see("z", query)
        self.watch.see_keys("z+", keys)
        found = None
        is_free = objective.uses_adversary and self.perturbation.reuse == "free"
        if is_free:
            with self.clock("search"):
                loss, terms, found, weight_rtd = free_loss(self, x, batch, views, self._start_of_eta(batch))
            self._record(found, batch)
        elif objective.uses_adversary:
            inner_loss = self._inner_loss(batch, keys, masks, keys_masks)
            # Frozen embeddings have no graph to X, and a compiled pass's serves one backward alone.
            has_graph = is_as_inner and x.requires_grad and self._passes is None
            at_clean = partial(inner_loss.gradient_at_clean, x, pooled) if has_graph else None
            with self.clock("search"):
                found = self._search(x, batch, inner_loss, at_clean)
            with self.clock("adversarial"):
                adversarial = objective.project(self._encode(perturbed(x, found.delta), batch))
            self.watch.see("z_adv", adversarial)
            adversarial_keys = whole.gather_keys(adversarial, batch.sentence_ids)
            views = replace(views, adversarial=adversarial, adversarial_keys=adversarial_keys)
        if self.detection is not None:
            eta = None if found is None else found.eta
            loss_rtd, rtd_metrics = self.detection(batch, pooled, query, eta, whole.tokens_a_rank, whole.num_ranks)
            self.metrics.update(rtd_metrics)
            views = replace(views, loss_rtd=loss_rtd)
        if is_free and self.detection is not None:
            loss = loss + weight_rtd * views.loss_rtd
            terms["loss_rtd"] = views.loss_rtd.detach()
        if not is_free:
            loss, terms = objective.loss(views)
        return loss, terms

    @property
    def _is_frozen(self) -> bool:
        """Whether inner steps have the clean pass's dropout masks."""
        return self.perturbation.inner_dropout == "frozen"

    def _inner_loss(
        self,
        batch: PackedBatch,
        keys: Optional[Keys],
        masks: DropoutReplay,
        keys_masks: DropoutReplay,
    ) -> InnerLoss:
        def keys_anew() -> Keys:
            # The reference computes the keys each time, under the masks that made them first.
            with torch.no_grad(), keys_masks.again(), kept_buffers(self.objective):
                return self._positive_keys(batch)

        return InnerLoss(
            self.encoder,
            self.objective,
            batch,
            keys,
            masks=masks if self._is_frozen else None,
            keys_anew=keys_anew if self.perturbation.reuse == "none" and keys is not None else None,
        )

    def _encode(self, x: Tensor, batch: PackedBatch) -> Tensor:
        """h (B, D) of X (T, E), for the loss that the parameters lower."""
        return self.encoder.encode(x, batch) if self._passes is None else self._passes(x, batch)

    def _joins_views(self, batch: PackedBatch) -> bool:
        """Whether X and X+ pass through the encoder as one batch.

        Not where z+ has texts of its own, nor where the masks of one of the two are drawn again.
        """
        replays = self.objective.uses_adversary and (self._is_frozen or self.perturbation.reuse == "none")
        if replays or not self.objective.uses_positive or batch.positive is not None:
            return False
        if self._joint_views is None:
            # A GPU waits for launches; on a CPU small products gain, and large ones lose the cache.
            return batch.input_ids.device.type != "cpu" or 2 * batch.num_tokens <= _MOST_JOINT_TOKENS
        return self._joint_views

    def _positive_keys(
        self, batch: PackedBatch, embed: Optional[Callable[[], Tensor]] = None, pooled: Optional[Tensor] = None
    ) -> Keys:
        """z+ of the given positive texts, or of the sentences once more, whose ``embed`` or even ``pooled`` vectors
        (B, D) may be at hand; given hard negatives go with them."""
        if pooled is not None:
            keys = self.whole.gather_keys(self.objective.project(pooled), batch.sentence_ids)
        elif batch.positive is not None:
            keys = self._keys(batch.positive, batch.sentence_ids)
        else:
            keys = self._keys(batch, batch.sentence_ids, embed)
        if batch.hard_negative is None:
            return keys
        return keys.with_hard_negatives(self._keys(batch.hard_negative, batch.hard_negative.sentence_ids))

    def _keys(self, texts: PackedBatch, ids: Tensor, embed: Optional[Callable[[], Tensor]] = None) -> Keys:
        embed = embed or self.encoder.embedder(texts)
        return self.whole.gather_keys(self.objective.project(self._encode(embed(), texts)), ids)

    def _search(
        self, x: Tensor, batch: PackedBatch, loss: InnerLoss, at_clean: Optional[CleanGradient]
    ) -> Perturbation:
        is_probe = self.adaptive is not None and self.adaptive.is_probe_due
        num_gradients = None if self.adaptive is None or is_probe else self.adaptive.num_gradients
        found = self._adversary.search(x, batch, loss, self._start_of_eta(batch), at_clean, num_gradients, is_probe)
        self._record(found, batch)
        if is_probe and not self.is_skipped:
            self._learn(x, loss, found)
        if self.adaptive is not None:
            num_taken = len(found.trace.losses)
            self.metrics["num_gradients"] = torch.tensor(float(num_taken))
            self.metrics["gradients_skipped"] = torch.tensor(float(self.perturbation.num_inner_steps - num_taken))
        return found

    def _start_of_eta(self, batch: PackedBatch) -> Optional[Tensor]:
        return None if self.eta_table is None else self.eta_table.read(batch)

    def _record(self, found: Perturbation, batch: PackedBatch) -> None:
        """Metrics and table rows of what was found; a fault ends the run or marks the batch as skipped."""
        # Of all ranks' rows, so that all raise or skip together.
        nonfinite_step = gather_rows(found.nonfinite_step, self.whole.rows)
        if bool((nonfinite_step > 0).any()):
            self.fault = NonFiniteGradient(nonfinite_step)
            if self.perturbation.on_nonfinite == "raise":
                raise self.fault
            self.is_skipped = True
            self.metrics["num_nonfinite_sentences"] = (nonfinite_step > 0).sum()
        if len(found.trace.losses) > 1:
            self.metrics["inner_gain"] = found.gain
        norms = norm_sums(found, batch, self.perturbation)
        self.metrics.update({name: total / count for name, (total, count) in norms.items()})
        self.metrics["delta_rms"] = found.delta.square().mean().sqrt()
        if self.eta_table is not None:
            self.eta_table.accumulate(found.eta, batch, active_tokens(batch, self.perturbation))
            self.metrics["eta_rms"] = found.eta.square().mean().sqrt()
            if found.epsilon_token is not None:
                self.metrics["eta_table_dead_share"] = self.eta_table.dead_share(found.epsilon_token.mean())

    def _learn(self, x: Tensor, loss: InnerLoss, found: Perturbation) -> None:
        """A probe's lesson: how many gradients are enough, and which share of the exact gain so many reach."""
        trace = found.trace
        num_gradients = self.adaptive.learn(gather_rows(trace.agreements(), self.whole.rows))
        counts = num_gradients, len(trace.losses)
        ends = [trace.end_with(count, self.perturbation.num_inner_steps) for count in counts]
        losses = torch.stack([trace.losses[0], *self._adversary.losses_at(x, loss, *ends)]).to(wide(x.dtype))
        start, reused, exact = gather_unequal(losses[None]).sum(dim=0)
        self.metrics["reuse_num_gradients"] = torch.tensor(float(num_gradients))
        # Where the exact search gains nothing there is nothing to have a share of.
        self.metrics["reuse_gain_share"] = (reused - start) / (exact - start)

    def commit(self) -> None:
        """After an optimizer step: what the searches found enters the eta table."""
        if self.eta_table is not None:
            self.eta_table.commit(gather_unequal)
        if self.adaptive is not None:
            self.adaptive.commit()

    def discard(self) -> None:
        """After a skipped batch: what its search found is forgotten."""
        if self.eta_table is not None:
            self.eta_table.discard()

    def extra_state_dict(self) -> dict[str, Tensor]:
        """State that is no parameter and no buffer: tensors by name."""
        return {name: value for owner in self._stateful() for name, value in owner.state_dict().items()}

    def load_extra_state_dict(self, state: dict[str, Tensor]) -> None:
        for owner in self._stateful():
            owner.load_state_dict(state)

    def _stateful(self) -> list[EtaTable | AdaptiveReuse]:
        return [owner for owner in (self.eta_table, self.adaptive) if owner is not None]
