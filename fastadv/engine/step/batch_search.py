"""The search of a whole batch: of one piece after another, with one outcome for all pieces and all ranks.

What lives from batch to batch is here too: the eta table, and what ``reuse: adaptive`` has learned.
"""

from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.engine.step.gather import GlobalBatch, gather_rows, gather_unequal
from fastadv.engine.step.inner_loss import InnerLoss, kept_buffers
from fastadv.engine.step.micro_batch import MicroBatch
from fastadv.engine.step.passes import CleanPasses, Passes
from fastadv.engine.step.search_record import SearchRecord
from fastadv.engine.step.views import keys_of
from fastadv.objectives.base import Keys, Objective
from fastadv.perturbation import AdaptiveReuse, Adversary, EtaTable, NonFiniteGradient, Perturbation, Search
from fastadv.perturbation.ball import wide
from fastadv.perturbation.compiled import CompiledAdversary


class BatchSearch:
    """Searches perturbations batch by batch.

    Args:
        search: how a perturbation moves.
        passes, objective: own the parameters that enter the inner loss.
        compile: none, default or cudagraphs: whether inner steps are compiled, and how.

    Attributes:
        adversary: searches one piece, from ``start_step`` on.
        eta_table, adaptive: state; None where the config has no use for it.
    """

    def __init__(self, search: Search, passes: Passes, objective: Objective, compile: str = "none"):
        plan, encoder = search.plan, passes.encoder
        self.plan, self._passes, self._objective = plan, passes, objective
        self.eta_table: EtaTable | None = None
        self.adaptive: AdaptiveReuse | None = None
        self._num_commits = 0
        self._still = Adversary(plan.still, encoder, objective) if plan.start_step else None
        if compile == "none":
            self.adversary = Adversary(plan, encoder, objective, search=search)
        else:
            self.adversary = CompiledAdversary(
                plan, encoder, objective, search=search, max_length=encoder.max_length, kind=compile
            )
        if plan.reuse == "adaptive" and self.num_steps > 0:
            self.adaptive = AdaptiveReuse(self.num_steps, plan.probe_every, plan.agreement)
        if search.uses_eta:
            dtype = wide(next(encoder.parameters()).dtype)
            self.eta_table = EtaTable(encoder.vocab_size, encoder.embedding_size, plan.sigma, dtype, plan.norm)
        self._whole: GlobalBatch | None = None
        self._record = SearchRecord()

    @property
    def num_steps(self) -> int:
        """N, the inner steps."""
        return self.adversary.moves.num_steps

    @property
    def is_waiting(self) -> bool:
        """Whether the search has not begun: the step is one of the first ``start_step``."""
        return self._num_commits < self.plan.start_step

    @property
    def current(self) -> Adversary:
        """The adversary, or one that leaves delta 0 before ``start_step``."""
        return self._still if self.is_waiting else self.adversary

    def begin(self, whole: GlobalBatch) -> None:
        """Before the first piece of a batch."""
        self._whole, self._record = whole, SearchRecord()

    def start_of_eta(self, batch: PackedBatch) -> Tensor | None:
        """(T, E) where eta starts: the table's rows; None where no eta is searched."""
        return None if self.eta_table is None or self.is_waiting else self.eta_table.read(batch)

    def search(self, piece: MicroBatch, clean: CleanPasses, keys: Keys | None) -> Perturbation:
        """The perturbation of one piece.

        Args:
            clean: what the piece's clean passes made.
            keys: of the whole batch, for queries that begin with the piece's first row.
        """
        adaptive, loss = None if self.is_waiting else self.adaptive, self._inner_loss(piece, clean, keys)
        with nullcontext() if piece.is_only else torch.no_grad():
            x = clean.x()
        # Where an inner step at X itself would repeat the pass just made, its graph can serve it. Frozen embeddings
        # have no graph to X, and pieces keep none.
        is_as_inner = self._is_frozen or clean.has_no_dropout
        has_graph = piece.is_only and self._passes.keeps_graphs and x.requires_grad and clean.pooled is not None
        at_clean = partial(loss.gradient_at_clean, x, clean.pooled) if is_as_inner and has_graph else None
        is_probe = adaptive is not None and adaptive.is_probe_due
        num_gradients = None if adaptive is None or is_probe else adaptive.num_gradients
        batch, eta = loss.batch, self.start_of_eta(loss.batch)
        found = self.current.search(x, batch, loss, eta, at_clean, num_gradients, is_probe)
        self.record(found, batch)
        if not self._is_frozen and clean.pooled is not None and found.trace.losses:
            self._record.add_dropout(loss.at_clean(clean.pooled), found, batch)
        if is_probe:
            trace, moves = found.trace, self.adversary.moves
            ends = [trace.end_with(moves, count) for count in range(1, len(trace.losses) + 1)]
            losses = [trace.losses[0], *self.adversary.losses_at(x, loss, *ends)]
            self._record.probes.append((trace.agreements(), torch.stack(losses).to(wide(x.dtype))))
        return found

    @property
    def _is_frozen(self) -> bool:
        """Whether inner steps have the clean pass's dropout masks."""
        return self.plan.inner_dropout == "frozen"

    def _inner_loss(self, piece: MicroBatch, clean: CleanPasses, keys: Keys | None) -> InnerLoss:
        batch, keys_again = piece.batch, None
        if self.plan.reuse == "none" and keys is not None:

            def keys_again() -> Keys:
                # The reference computes the keys each time, under the masks that made them first.
                with torch.no_grad(), clean.keys_masks.again(), kept_buffers(self._objective):
                    return keys_of(self._objective, self._whole, batch, *self._passes.encode_keys(batch))

        masks = clean.masks if self._is_frozen else None
        anchor = self._anchor(clean, batch)
        return InnerLoss(self._passes.encoder, self._objective, batch, keys, masks, keys_again, anchor)

    def _anchor(self, clean: CleanPasses, batch: PackedBatch) -> Tensor | None:
        """(b, D) h of X itself as inner passes compute it, a constant, for an objective that asks for it."""
        if not self._objective.needs.adversarial.anchor:
            return None
        if self._is_frozen or clean.has_no_dropout:
            return clean.pooled.detach()
        with torch.no_grad():
            return self._passes.encoder.encode(clean.x(), batch, dropout=False)

    def record(self, found: Perturbation, batch: PackedBatch) -> None:
        """Counts what was found for one piece."""
        record = self._record
        if found.eta is not None and self.eta_table is not None:
            active = found.trace.around.active
            self.eta_table.accumulate(found.eta, batch, active, joins_last=bool(record.nonfinite_steps))
        record.add(found, batch)

    def finish(self) -> tuple[dict[str, Tensor], NonFiniteGradient | None]:
        """The batch's metrics, and the inner gradients that were not finite on any rank, if there are some.

        All ranks call it together."""
        record, whole = self._record, self._whole
        # Of all ranks' rows, so that all raise or skip together.
        nonfinite_step = gather_rows(torch.cat(record.nonfinite_steps), whole.rows)
        metrics, fault = {}, None
        if bool((nonfinite_step > 0).any()):
            fault = NonFiniteGradient(nonfinite_step)
            metrics["num_nonfinite_sentences"] = (nonfinite_step > 0).sum()
        metrics.update(record.metrics())
        if self.eta_table is not None and record.epsilon_token:
            # Its mean over sentences.
            epsilon_token = torch.cat(record.epsilon_token).mean()
            metrics["eta_table_dead_share"] = self.eta_table.dead_share(epsilon_token)
        if record.probes and fault is None:
            metrics.update(self._learn())
        if self.adaptive is not None and not self.is_waiting:
            num_skipped = self.num_steps - record.num_gradients
            metrics["num_gradients"] = torch.tensor(float(record.num_gradients))
            metrics["gradients_skipped"] = torch.tensor(float(num_skipped))
        return metrics, fault

    def _learn(self) -> dict[str, Tensor]:
        """A probe's lesson: how many gradients are enough, and which share of the exact gain so many reach."""
        agreements, losses = zip(*self._record.probes, strict=True)
        num_gradients = self.adaptive.learn(gather_rows(torch.cat(agreements), self._whole.rows))
        # After 0, 1, ..., N gradients.
        losses = gather_unequal(torch.stack(losses)).sum(dim=0)
        # Where the exact search gains nothing there is nothing to have a share of.
        share = (losses[num_gradients] - losses[0]) / (losses[-1] - losses[0])
        return {"reuse_num_gradients": torch.tensor(float(num_gradients)), "reuse_gain_share": share}

    def commit(self) -> None:
        """After an optimizer step: what the searches found enters the eta table."""
        if not self.is_waiting:
            if self.eta_table is not None:
                self.eta_table.commit(gather_unequal)
            if self.adaptive is not None:
                self.adaptive.commit()
            self.adversary.moves.commit()
        self._num_commits += 1

    def discard(self) -> None:
        """After a skipped batch: what its search found is forgotten."""
        if self.is_waiting:
            return
        if self.eta_table is not None:
            self.eta_table.discard()
        self.adversary.moves.discard()

    def stateful(self) -> list["EtaTable | AdaptiveReuse | Search | BatchSearch"]:
        """Owners of what a checkpoint keeps."""
        owners = [owner for owner in (self.eta_table, self.adaptive, self.adversary.moves) if owner is not None]
        return owners if self._still is None else [*owners, self]

    def state_dict(self) -> dict[str, Tensor]:
        """How many optimizer steps are done, for a search that begins late."""
        return {"search_num_commits": torch.tensor(self._num_commits)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._num_commits = int(state["search_num_commits"])
