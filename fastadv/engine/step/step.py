"""One training step as the forward of one module, which DeepSpeed wraps: ``loss = engine(batch)``.

    X  = embed(batch)    z  = encode(X)        mask m1
    X+ = embed(batch)    z+ = encode(X+)       mask m2, or a given positive text; gathered over ranks: the keys
    delta, eta = search  encode(X + delta + eta) against the keys, constants
    z_adv = encode(X + delta)                  a mask of its own, X's graph kept
    L_RTD = detection(batch, h, eta)           where the objective has replaced token detection, with its weight
    other texts of the sentences, and the second network's passes, where the objective asks for them
    loss  = objective(z, z+, z_adv) + weight * L_RTD

Each rank's share may pass in pieces (``micro_batch.py``); z, z+ and z_adv of all of them meet in the loss. Under
``reuse: free`` the search and z_adv's pass are one thing (``free.py``).

Inner forwards never go through the engine, so nothing is reduced in them.
"""

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Literal, Optional

import torch
from torch import Tensor, nn

from fastadv.config.schema import PerturbationConfig
from fastadv.config.search_plan import SearchPlan
from fastadv.data.packing import PackedBatch
from fastadv.distributed.zero import is_cut_up
from fastadv.engine.step.average import AverageModel
from fastadv.engine.step.batch_search import BatchSearch
from fastadv.engine.step.compiled_passes import CompiledPasses
from fastadv.engine.step.free import free_loss
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.inner_loss import InnerLoss, kept_buffers
from fastadv.engine.step.micro_batch import MicroBatch, num_pieces
from fastadv.engine.step.row_watch import RowWatch
from fastadv.engine.step.variant_passes import joined, joined_variants
from fastadv.files.clock import no_clock
from fastadv.objectives.base import Keys, Objective, SecondViews, Views
from fastadv.objectives.terms import logged_name
from fastadv.perturbation import AdaptiveReuse, EtaTable, NonFiniteGradient, Perturbation, Search

_MOST_JOINT_TOKENS = 1024
"""tokens up to which one pass of both views was faster than two on a CPU"""


class Step(nn.Module):
    """The step of every objective.

    Args:
        encoder: offers ``embedder(batch)`` → () → (T, E), X under a mask of its own at each call, ``encode(x, batch,
            dropout=None)`` → (B, D), ``vocab_size`` and ``embedding_size``; dropout False turns it off, None leaves it
            to the training mode.
        objective: views and losses.
        perturbation: every setting of the search, as configured or resolved, for an objective that uses an adversary.
        detection: for an objective with ``Needs.detection``: called with (batch, h, z, eta), gives L_RTD and its
            metrics.
        compile: none, default or cudagraphs: whether the passes and the search's inner step are compiled, and how.
        joint_views: whether z and z+ come from one pass of 2B, where that is the same computation; None: where it pays.
        micro_batch_size: sentences that pass through the encoder at a time; None: all. Not with ``reuse`` none or free,
            and not with ``compile``.
        second: the second encoder, for an objective with ``Needs.second_network``.
        on_nonfinite: whether an inner gradient that is not finite is raised or marks the batch as skipped.
        search: how a perturbation moves; None: the shipped search.
        compute_dtype: what encoder passes compute in, on copies of the weights made once a step; None: as they are.

    Attributes:
        metrics: of the last forward, by name: detached scalar tensors, logged as means over ranks.
        whole: the last forward's batch over all ranks.
        is_skipped: whether the last forward met a non-finite inner gradient under ``on_nonfinite: skip``; its loss
            must not be stepped on.
        fault: what it met then.
        watch: the last forward's vectors, and which of them went wrong.
        clock: times the search and z_adv's pass, where one is given.
        average: of encoder and classifier over steps, for an objective that uses it, else None.
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        perturbation: PerturbationConfig | SearchPlan,
        detection: Optional[nn.Module] = None,
        compile: str = "none",
        joint_views: Optional[bool] = False,
        micro_batch_size: Optional[int] = None,
        second: Optional[nn.Module] = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        search: Search | None = None,
        compute_dtype: Optional[torch.dtype] = None,
    ):
        super().__init__()
        if (detection is None) != (objective.needs.detection is None):
            raise ValueError("a detection is given exactly where the objective asks for one")
        if (second is None) == objective.needs.second_network:
            raise ValueError("a second network is given exactly where the objective asks for one")
        self.encoder = encoder
        self.objective = objective
        self.plan = perturbation.resolve() if isinstance(perturbation, PerturbationConfig) else perturbation
        self.detection = detection
        self.second = second
        self._joint_views = joint_views
        self._on_nonfinite = on_nonfinite
        self._passes = None if compile == "none" else CompiledPasses(encoder)
        self.metrics: dict[str, Tensor] = {}
        self.is_skipped = False
        self.fault: Optional[NonFiniteGradient] = None
        self.watch = RowWatch()
        self.clock = no_clock
        self.compute_dtype = compute_dtype
        self.whole: Optional[GlobalBatch] = None
        self._micro_batch_size = micro_batch_size
        self.search: Optional[BatchSearch] = None
        if objective.needs.adversarial is not None:
            self.search = BatchSearch(self.plan, encoder, objective, compile, search)
        # Not a module's attribute: DeepSpeed must not find it.
        self.average: Optional[AverageModel] = None
        if objective.needs.average:
            self.average = AverageModel(encoder, objective.classifier, objective.decay_of_average)

    @property
    def eta_table(self) -> Optional[EtaTable]:
        """V, where there is one."""
        return None if self.search is None else self.search.eta_table

    @property
    def adaptive(self) -> Optional[AdaptiveReuse]:
        """What ``reuse: adaptive`` has learned."""
        return None if self.search is None else self.search.adaptive

    def forward(self, batch: PackedBatch) -> Tensor:
        """The loss of one batch, a scalar.

        Raises:
            NonFiniteGradient: an inner gradient was not finite and ``on_nonfinite`` is raise.
        """
        self.metrics, self.is_skipped, self.fault = {}, False, None
        self.watch.clear()
        self.whole = GlobalBatch(batch)
        with ExitStack() as stack:
            inside = []
            if self.compute_dtype is not None:
                of_detection = None if self.detection is None else self.detection.discriminator
                encoders = [e for e in (self.encoder, of_detection, self.second) if e is not None]
                inside = [stack.enter_context(encoder.computing_in(self.compute_dtype)) for encoder in encoders]
            loss, terms = self._loss(batch, self._pieces(batch, inside))
        self.metrics.update(loss=loss.detach(), **{logged_name(name): value for name, value in terms.items()})
        return loss

    def _pieces(self, batch: PackedBatch, inside: list) -> list[MicroBatch]:
        count = num_pieces(self.whole, self._micro_batch_size)
        parts = [batch] if count == 1 else batch.split(count)
        first_rows = accumulate([part.num_sentences for part in parts], initial=0)
        return [MicroBatch(self, part, row, count == 1, inside) for part, row in zip(parts, first_rows)]

    def _loss(self, batch: PackedBatch, pieces: list[MicroBatch]) -> tuple[Tensor, dict[str, Tensor]]:
        whole, objective, search = self.whole, self.objective, self.search
        for piece in pieces:
            piece.encode_clean()
        pooled = joined([piece.pooled for piece in pieces])
        query, keys = None if pooled is None else objective.project(pooled), None
        if objective.needs.positive:
            positive = joined([piece.positive for piece in pieces])
            keys = self._keys(batch, positive, joined([piece.hard_negative for piece in pieces]))
        views = Views(
            query,
            batch.sentence_ids,
            keys,
            rows_a_rank=whole.rows_a_rank,
            pooled=pooled,
            labels=batch.labels,
            batch=batch,
            tokens_a_rank=whole.tokens_a_rank,
            ranks=whole,
            average_logits=self._average_logits(pieces),
            tokens=joined([piece.tokens for piece in pieces]),
            variants=joined_variants([piece.variants for piece in pieces], batch),
            second=self._second_views(pieces, batch),
        )
        if query is not None:
            self.watch.see("z", query)
            self.watch.see_keys("z+", keys)
        for name, variant in views.variants.items():
            self.watch.see(f"h of {name}", variant.pooled)
        etas, is_free = [None] * len(pieces), search is not None and self.plan.reuse == "free"
        if search is not None:
            search.begin()
        if is_free:
            with self.clock("search"):
                start = search.start_of_eta(batch)
                loss, terms, found = free_loss(self, pieces[0].x(), batch, views, start)
            search.record(found, batch)
            etas = [found.eta]
        elif search is not None:
            adversarial = []
            for i, piece in enumerate(pieces):
                with self.clock("search"):
                    found = self._search(piece, None if keys is None else keys.from_row(piece.first_row))
                with self.clock("adversarial"):
                    adversarial.append(piece.encode_adversarial(found.delta))
                if self.detection is not None:
                    etas[i] = found.eta
            pooled, tokens = map(joined, zip(*adversarial))
            views = self.with_adversarial(views, pooled, tokens)
        if search is not None:
            metrics, self.fault = search.finish(whole)
            if self.fault is not None and self._on_nonfinite == "raise":
                raise self.fault
            self.is_skipped = self.fault is not None
            self.metrics.update(metrics)
            if views.adversarial is not None:
                # Behind the search's own faults, which it would follow from.
                self.watch.see("z_adv", views.adversarial)
        # With the perturbation that the search ended with, so it is no part of a pass under reuse free.
        loss_rtd = None if self.detection is None else self._detect(batch, pieces, query, etas)
        if not is_free:
            loss, terms = objective.loss(views)
        if loss_rtd is not None:
            loss = loss + objective.needs.detection.weight * loss_rtd
            terms["loss_rtd"] = loss_rtd.detach()
        return loss, terms

    def with_adversarial(self, views: Views, pooled: Tensor, tokens: Optional[Tensor] = None) -> Views:
        """``views`` with what is made of h (B, D) of the adversarial pass, and its token states (T, D)."""
        adversarial = self.objective.project(pooled)
        has_keys, gather = self.objective.needs.adversarial.keys, self.whole.gather_keys
        return replace(
            views,
            adversarial=adversarial,
            adversarial_keys=gather(adversarial, views.sentence_ids) if has_keys else None,
            adversarial_pooled=pooled,
            adversarial_tokens=tokens,
        )

    def _second_views(self, pieces: list[MicroBatch], batch: PackedBatch) -> Optional[SecondViews]:
        if self.second is None:
            return None
        pooled, tokens = (joined(list(parts)) for parts in zip(*(piece.second for piece in pieces)))
        return SecondViews(pooled, joined_variants([piece.second_variants for piece in pieces], batch), tokens)

    def _average_logits(self, pieces: list[MicroBatch]) -> Optional[Tensor]:
        if self.average is None:
            return None
        dtype = self.compute_dtype or next(self.encoder.parameters()).dtype
        return joined([self.average.logits(piece.batch, dtype) for piece in pieces])

    @property
    def _is_frozen(self) -> bool:
        """Whether inner steps have the clean pass's dropout masks."""
        return self.plan.inner_dropout == "frozen"

    def _inner_loss(self, piece: MicroBatch, keys: Optional[Keys]) -> InnerLoss:
        def keys_anew() -> Keys:
            # The reference computes the keys each time, under the masks that made them first.
            with torch.no_grad(), piece.keys_masks.again(), kept_buffers(self.objective):
                return self._keys(batch, *piece.keys_anew())

        batch = piece.batch
        return InnerLoss(
            self.encoder,
            self.objective,
            batch,
            keys,
            masks=piece.masks if self._is_frozen else None,
            keys_anew=keys_anew if self.plan.reuse == "none" and keys is not None else None,
            anchor=self._anchor(piece),
        )

    def _anchor(self, piece: MicroBatch) -> Optional[Tensor]:
        """h of X itself as inner passes compute it, a constant, for an objective that asks for it."""
        if not self.objective.needs.adversarial.anchor:
            return None
        if self._is_frozen or piece.has_no_dropout:
            return piece.pooled.detach()
        with torch.no_grad():
            return self.encoder.encode(piece.x(), piece.batch, dropout=False)

    def encode(self, x: Tensor, batch: PackedBatch) -> Tensor:
        """h (B, D) of X (T, E), for the loss that the parameters lower."""
        return self.encoder.encode(x, batch) if self._passes is None else self._passes(x, batch)

    def joins_views(self, batch: PackedBatch) -> bool:
        """Whether X and X+ pass through the encoder as one batch.

        Not where z+ has texts of its own, nor where the masks of one of the two are drawn again.
        """
        needs = self.objective.needs
        replays = needs.adversarial is not None and (self._is_frozen or self.plan.reuse == "none")
        if replays or not needs.positive or batch.positive is not None or needs.tokens:
            return False
        if self._joint_views is None:
            # A GPU waits for launches; on a CPU small products gain, and large ones lose the cache.
            return batch.input_ids.device.type != "cpu" or 2 * batch.num_tokens <= _MOST_JOINT_TOKENS
        return self._joint_views

    def _keys(self, batch: PackedBatch, positive: Tensor, hard_negative: Optional[Tensor]) -> Keys:
        """Keys of all ranks, of pooled vectors (B, D) of z+ and of given hard negatives, which go with them."""
        project, ids = self.objective.project, batch.sentence_ids
        keys = self.whole.gather_keys(project(positive), ids)
        if hard_negative is None:
            return keys
        given = self.whole.gather_keys(project(hard_negative), batch.hard_negative.sentence_ids)
        return keys.with_hard_negatives(given)

    def _search(self, piece: MicroBatch, keys: Optional[Keys]) -> Perturbation:
        """The perturbation of a piece, against the keys of the whole batch."""
        inner_loss = self._inner_loss(piece, keys)
        with nullcontext() if piece.is_only else torch.no_grad():
            x = piece.x()
        # Where an inner step at X itself would repeat the pass just made, its graph can serve it. Frozen embeddings
        # have no graph to X, a compiled pass's or one at ZeRO 3 serves one backward alone, and checkpoints and pieces
        # keep none.
        is_as_inner = self._is_frozen or piece.has_no_dropout
        keeps_graph = piece.is_only and self._passes is None and self.encoder.keeps_activations
        keeps_graph = keeps_graph and not is_cut_up(self.encoder)
        has_graph = keeps_graph and is_as_inner and x.requires_grad and piece.pooled is not None
        at_clean = partial(inner_loss.gradient_at_clean, x, piece.pooled) if has_graph else None
        return self.search.search(x, inner_loss.batch, inner_loss, at_clean)

    def _detect(
        self, batch: PackedBatch, pieces: list[MicroBatch], query: Tensor, etas: list[Optional[Tensor]]
    ) -> Tensor:
        """L_RTD of the batch; a metric is the mean over tokens."""
        queries = query.split([piece.num_sentences for piece in pieces])
        losses = []
        for piece, of_piece, eta in zip(pieces, queries, etas, strict=True):
            loss, metrics = piece.detect(of_piece, eta)
            losses.append(loss)
            share = piece.num_tokens / batch.num_tokens
            for name, value in metrics.items():
                self.metrics[name] = self.metrics.get(name, 0) + share * value
        return torch.stack(losses).sum()

    def commit(self) -> None:
        """After an optimizer step: what the searches found enters the eta table, the weights the average model."""
        if self.search is not None:
            self.search.commit()
        if self.average is not None:
            self.average.update()
        self.objective.commit()

    def discard(self) -> None:
        """After a skipped batch: what its search found is forgotten."""
        if self.search is not None:
            self.search.discard()
        self.objective.discard()

    def extra_state_dict(self) -> dict[str, Tensor]:
        """State that is no parameter and no buffer: tensors by name."""
        return {name: value for owner in self._stateful() for name, value in owner.state_dict().items()}

    def load_extra_state_dict(self, state: dict[str, Tensor]) -> None:
        for owner in self._stateful():
            owner.load_state_dict(state)

    def _stateful(self) -> list:
        of_search = [] if self.search is None else self.search.stateful()
        return [*of_search, *([] if self.average is None else [self.average]), *self.objective.stateful()]
