"""One training step as the forward of one module, which DeepSpeed wraps: ``loss = engine(batch)``.

    X  = embed(batch)    z  = encode(X)        mask m1
    X+ = embed(batch)    z+ = encode(X+)       mask m2, or a given positive text; gathered over ranks: the keys
    z_text = encode(embed(the worst of a sentence's edited copies)), where the objective asks for it
    delta, eta = search  encode(X + delta + eta) against the keys, constants
    z_adv = encode(X + delta)                  a mask of its own, X's graph kept
    L_RTD = detection(batch, h, eta)           where the objective has replaced token detection
    other texts of the sentences, and the second network's passes, where the objective asks for them
    loss  = objective(z, z+, z_adv) + weight * L_RTD

Each rank's share may pass in pieces (``micro_batch.py``); z, z+ and z_adv of all of them meet in the loss. Under
``reuse: free`` the search and z_adv's pass are one thing (``free.py``).

Inner forwards never go through the engine, so nothing is reduced in them.
"""

from functools import partial
from typing import Literal, Sequence

import torch
from torch import Tensor, nn

from fastadv.config.schema import PerturbationConfig
from fastadv.config.search_plan import SearchPlan
from fastadv.config.text_search import TextSearchConfig
from fastadv.data.packing import PackedBatch
from fastadv.engine.step.average import AverageModel
from fastadv.engine.step.batch_search import BatchSearch
from fastadv.engine.step.free import free_loss
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.micro_batch import MicroBatch, cut
from fastadv.engine.step.passes import CleanPasses, Passes
from fastadv.engine.step.row_watch import RowWatch
from fastadv.engine.step.text_search import TextSearch
from fastadv.engine.step.views import clean_views, joined, with_adversarial
from fastadv.files.clock import no_clock
from fastadv.objectives.base import Objective, Views
from fastadv.objectives.terms import logged_name
from fastadv.perturbation import EtaTable, Search


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
        compute_dtype: what encoder passes compute in, on copies of the weights made once a step; None: as they are.
        search: how a perturbation moves; None: as the objective has it.
        text: the search over texts, for an objective that asks for a text view.

    Attributes:
        metrics: scalars of the last forward by name: detached tensors, logged as means over ranks.
        whole: the last forward's batch over all ranks.
        is_skipped: whether the last forward met a non-finite inner gradient under ``on_nonfinite: skip``; its loss
            must not be stepped on.
        fault: the inner gradients that were not finite then.
        watch: the last forward's vectors, and which of them went wrong.
        clock: times the search and z_adv's pass, where one is given.
        passes: the encoder's passes.
        search: the search of a whole batch, for an objective that uses an adversary, else None.
        text_search: the search over texts, for an objective with a text view, else None.
        average: the average of encoder and classifier over steps, for an objective that uses it, else None.
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        perturbation: PerturbationConfig | SearchPlan,
        detection: nn.Module | None = None,
        compile: str = "none",
        joint_views: bool | None = False,
        micro_batch_size: int | None = None,
        second: nn.Module | None = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        compute_dtype: torch.dtype | None = None,
        search: Search | None = None,
        text: TextSearchConfig | None = None,
    ):
        super().__init__()
        needs = objective.needs
        if (detection is None) != (needs.detection is None):
            raise ValueError("a detection is given exactly where the objective asks for one")
        if (second is None) == needs.second_network:
            raise ValueError("a second network is given exactly where the objective asks for one")
        self.encoder, self.objective, self.detection, self.second = encoder, objective, detection, second
        self.plan = perturbation.resolve() if isinstance(perturbation, PerturbationConfig) else perturbation
        is_searched = needs.adversarial is not None
        # Views of which one's masks are drawn again cannot share a pass.
        replays_masks = is_searched and (self.plan.inner_dropout == "frozen" or self.plan.reuse == "none")
        self.passes = Passes(encoder, objective, second, compile, joint_views, replays_masks, compute_dtype)
        self.search: BatchSearch | None = None
        if is_searched:
            search = objective.make_search(self.plan) if search is None else search
            self.search = BatchSearch(search, self.passes, objective, compile)
        if (needs.flip and needs.text is None) or (needs.text is not None and not needs.clean):
            raise ValueError("Needs.flip goes with Needs.text, and Needs.text with Needs.clean")
        self.text_search: TextSearch | None = None
        if needs.text is not None:
            text = TextSearchConfig() if text is None else text
            self.text_search = TextSearch(text, self.passes, objective, self.plan)
        # Not a module's attribute: DeepSpeed must not find it.
        self.average: AverageModel | None = None
        if needs.average:
            self.average = AverageModel(encoder, objective.classifier, objective.decay_of_average)
        self._micro_batch_size, self._on_nonfinite = micro_batch_size, on_nonfinite
        self.metrics: dict[str, Tensor] = {}
        self.whole: GlobalBatch | None = None
        self.is_skipped, self.fault = False, None
        self.watch, self.clock = RowWatch(), no_clock

    @property
    def eta_table(self) -> EtaTable | None:
        """V, where there is one."""
        return None if self.search is None else self.search.eta_table

    def forward(self, batch: PackedBatch) -> Tensor:
        """The loss of one batch, a scalar.

        Raises:
            NonFiniteGradient: an inner gradient was not finite and ``on_nonfinite`` is raise.
        """
        self.metrics, self.is_skipped, self.fault = {}, False, None
        self.watch.clear()
        self.whole = GlobalBatch(batch)
        discriminator = None if self.detection is None else self.detection.discriminator
        with self.passes.narrowed(discriminator) as inside:
            pieces = cut(batch, self.whole, self._micro_batch_size, inside)
            clean = [self.passes.encode_clean(piece) for piece in pieces]
            views = clean_views(self.objective, self.whole, batch, clean, self._average_logits(pieces))
            self._watch_clean(views)
            views = self._search_texts(pieces, clean, views)
            if self.search is not None and self.plan.reuse == "free":
                loss, terms, etas = self._train_in_search(clean[0], views)
                loss_rtd = self._detect(pieces, clean, views, etas)
            else:
                views, etas = self._attack(pieces, clean, views)
                loss_rtd = self._detect(pieces, clean, views, etas)
                loss, terms = self.objective.loss(views)
        if loss_rtd is not None:
            loss = loss + self.objective.needs.detection.weight * loss_rtd
            terms["loss_rtd"] = loss_rtd.detach()
        self.metrics.update(loss=loss.detach(), **{logged_name(name): value for name, value in terms.items()})
        return loss

    def _watch_clean(self, views: Views) -> None:
        if views.query is not None:
            self.watch.see("z", views.query)
            self.watch.see_keys("z+", views.positive_keys)
        for name, variant in views.variants.items():
            self.watch.see(f"h of {name}", variant.pooled)

    def _average_logits(self, pieces: Sequence[MicroBatch]) -> Tensor | None:
        if self.average is None:
            return None
        dtype = self.passes.compute_dtype or next(self.encoder.parameters()).dtype
        return joined([self.average.logits(piece.batch, dtype) for piece in pieces])

    def _search_texts(self, pieces: Sequence[MicroBatch], clean: Sequence[CleanPasses], views: Views) -> Views:
        """``views`` with those of the proposals that the search over texts chooses."""
        if self.text_search is None:
            return views
        with self.clock("text_search"):
            views, metrics = self.text_search.extend(views, pieces, clean, self.whole)
        self.metrics.update(metrics)
        self.watch.see("z_text", views.text.query)
        if views.flip is not None:
            self.watch.see("z_flip", views.flip.query)
        return views

    def _attack(
        self, pieces: Sequence[MicroBatch], clean: Sequence[CleanPasses], views: Views
    ) -> tuple[Views, list[Tensor | None]]:
        """``views`` with z_adv, at the perturbation that the search finds for each piece; and each piece's eta."""
        if self.search is None:
            return views, [None] * len(pieces)
        self.search.begin(self.whole)
        adversarial, etas, keys = [], [], views.positive_keys
        for piece, of_piece in zip(pieces, clean, strict=True):
            with self.clock("search"):
                found = self.search.search(piece, of_piece, None if keys is None else keys.from_row(piece.first_row))
            with self.clock("adversarial"):
                adversarial.append(self.passes.encode_adversarial(piece, of_piece, found.delta))
            # Of many pieces, all stay alive.
            etas.append(None if self.detection is None else found.eta)
        pooled, tokens = map(joined, zip(*adversarial))
        views = with_adversarial(views, self.objective, self.whole, pooled, tokens)
        self._finish_search()
        # After the search's own faults, which it would follow from.
        self.watch.see("z_adv", views.adversarial)
        return views, etas

    def _train_in_search(
        self, clean: CleanPasses, views: Views
    ) -> tuple[Tensor, dict[str, Tensor], list[Tensor | None]]:
        """The loss of a search whose every pass trains, its terms, and the eta that it ended with."""
        self.search.begin(self.whole)
        with self.clock("search"):
            eta, adversary = self.search.start_of_eta(views.batch), self.search.current
            see_last = partial(self.watch.see, "z_adv")
            loss, terms, found = free_loss(self.passes, self.objective, adversary, clean.x(), views, eta, see_last)
        self.search.record(found, views.batch)
        self._finish_search()
        return loss, terms, [found.eta]

    def _finish_search(self) -> None:
        """Takes the search's metrics, and what of it was not finite on any rank."""
        metrics, self.fault = self.search.finish()
        if self.fault is not None and self._on_nonfinite == "raise":
            raise self.fault
        self.is_skipped = self.fault is not None
        self.metrics.update(metrics)

    def _detect(
        self, pieces: Sequence[MicroBatch], clean: Sequence[CleanPasses], views: Views, etas: Sequence[Tensor | None]
    ) -> Tensor | None:
        """L_RTD of the batch, with the perturbation that the search ended with; a metric is the mean over tokens."""
        if self.detection is None:
            return None
        queries = views.query.split([piece.sentences.num_sentences for piece in pieces])
        options = {"tokens_a_rank": self.whole.tokens_a_rank, "num_ranks": self.whole.num_ranks}
        losses = []
        for piece, of_piece, query, eta in zip(pieces, clean, queries, etas, strict=True):
            batch = piece.batch
            # Drawn once: what is run again is the discriminator, not the generator.
            corrupted = {} if piece.is_only else {"corrupted": self.detection.corrupt(batch)}
            detect = partial(self.detection, **options, **corrupted)
            loss, metrics = piece.run(detect, batch, of_piece.pooled, query, eta)
            losses.append(loss)
            share = batch.num_tokens / views.batch.num_tokens
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
