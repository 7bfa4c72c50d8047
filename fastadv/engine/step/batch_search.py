"""The search of a whole batch: of one piece after another, with one outcome for all pieces and all ranks.

What lives from batch to batch is here too: the eta table, and what ``reuse: adaptive`` has learned.
"""

from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.engine.step.gather import GlobalBatch, gather_rows, gather_unequal
from fastadv.engine.step.inner_loss import InnerLoss
from fastadv.engine.step.perturbation_metrics import norm_sums
from fastadv.objectives.base import Objective
from fastadv.perturbation import AdaptiveReuse, Adversary, EtaTable, NonFiniteGradient, Perturbation, Search
from fastadv.perturbation.ball import wide
from fastadv.perturbation.compiled import CompiledAdversary
from fastadv.perturbation.inner_loop import CleanGradient


class BatchSearch:
    """Searches perturbations batch by batch.

    Args:
        search: how a perturbation moves.
        encoder, objective: own the parameters that enter the inner loss.
        compile: none, default or cudagraphs: whether inner steps are compiled, and how.

    Attributes:
        adversary: searches one piece.
        eta_table, adaptive: state; None where the config has no use for it.
    """

    def __init__(self, search: Search, encoder: nn.Module, objective: Objective, compile: str = "none"):
        plan = search.plan
        self.eta_table: EtaTable | None = None
        self.adaptive: AdaptiveReuse | None = None
        if compile == "none":
            self.adversary = Adversary(plan, encoder, objective, search=search)
        else:
            self.adversary = CompiledAdversary(
                plan, encoder, objective, search=search, max_length=encoder.max_length, kind=compile
            )
        if plan.reuse == "adaptive" and self.num_steps > 0:
            self.adaptive = AdaptiveReuse(self.num_steps, plan.probe_every, plan.agreement)
        if plan.use_eta:
            dtype = wide(next(encoder.parameters()).dtype)
            self.eta_table = EtaTable(encoder.vocab_size, encoder.embedding_size, plan.sigma, dtype, plan.norm)
        self._record = _Record()

    @property
    def num_steps(self) -> int:
        """N, the inner steps."""
        return self.adversary.moves.num_steps

    def begin(self) -> None:
        """Before the first piece of a batch."""
        self._record = _Record()

    def start_of_eta(self, batch: PackedBatch) -> Optional[Tensor]:
        return None if self.eta_table is None else self.eta_table.read(batch)

    def search(
        self, x: Tensor, batch: PackedBatch, loss: InnerLoss, at_clean: Optional[CleanGradient] = None
    ) -> Perturbation:
        """The perturbation of one piece of the batch; arguments as `Adversary.search` has them."""
        adaptive = self.adaptive
        is_probe = adaptive is not None and adaptive.is_probe_due
        num_gradients = None if adaptive is None or is_probe else adaptive.num_gradients
        found = self.adversary.search(x, batch, loss, self.start_of_eta(batch), at_clean, num_gradients, is_probe)
        self.record(found, batch)
        if is_probe:
            trace, moves = found.trace, self.adversary.moves
            ends = [trace.end_with(moves, count) for count in range(1, len(trace.losses) + 1)]
            losses = [trace.losses[0], *self.adversary.losses_at(x, loss, *ends)]
            self._record.probes.append((trace.agreements(), torch.stack(losses).to(wide(x.dtype))))
        return found

    def record(self, found: Perturbation, batch: PackedBatch) -> None:
        """Counts what was found for one piece."""
        record = self._record
        if self.eta_table is not None:
            active = found.trace.around.active
            self.eta_table.accumulate(found.eta, batch, active, joins_last=bool(record.nonfinite_steps))
        record.add(found, batch, norm_sums(found, batch))

    def finish(self, whole: GlobalBatch) -> tuple[dict[str, Tensor], Optional[NonFiniteGradient]]:
        """The batch's metrics, and the inner gradients that were not finite on any rank, if there are some.

        All ranks call it together."""
        record = self._record
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
            metrics.update(self._learn(whole))
        if self.adaptive is not None:
            num_skipped = self.num_steps - record.num_gradients
            metrics["num_gradients"] = torch.tensor(float(record.num_gradients))
            metrics["gradients_skipped"] = torch.tensor(float(num_skipped))
        return metrics, fault

    def _learn(self, whole: GlobalBatch) -> dict[str, Tensor]:
        """A probe's lesson: how many gradients are enough, and which share of the exact gain so many reach."""
        agreements, losses = zip(*self._record.probes, strict=True)
        num_gradients = self.adaptive.learn(gather_rows(torch.cat(agreements), whole.rows))
        # After 0, 1, ..., N gradients.
        losses = gather_unequal(torch.stack(losses)).sum(dim=0)
        # Where the exact search gains nothing there is nothing to have a share of.
        share = (losses[num_gradients] - losses[0]) / (losses[-1] - losses[0])
        return {"reuse_num_gradients": torch.tensor(float(num_gradients)), "reuse_gain_share": share}

    def commit(self) -> None:
        """After an optimizer step: what the searches found enters the eta table."""
        if self.eta_table is not None:
            self.eta_table.commit(gather_unequal)
        if self.adaptive is not None:
            self.adaptive.commit()
        self.adversary.moves.commit()

    def discard(self) -> None:
        """After a skipped batch: what its search found is forgotten."""
        if self.eta_table is not None:
            self.eta_table.discard()
        self.adversary.moves.discard()

    def stateful(self) -> list[EtaTable | AdaptiveReuse | Search]:
        """Owners of what a checkpoint keeps."""
        return [owner for owner in (self.eta_table, self.adaptive, self.adversary.moves) if owner is not None]


@dataclass
class _Record:
    """What the pieces of a batch add up to, on this rank."""

    nonfinite_steps: list[Tensor] = field(default_factory=list)
    epsilon_token: list[Tensor] = field(default_factory=list)
    probes: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """(b, N) agreements and (N + 1,) losses, summed over sentences, after 0 to N gradients"""
    num_gradients: int = 0
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _counts: dict[str, int | Tensor] = field(default_factory=dict)

    def add(self, found: Perturbation, batch: PackedBatch, norms: dict[str, tuple[Tensor, int | Tensor]]) -> None:
        self.nonfinite_steps.append(found.nonfinite_step)
        self.num_gradients = len(found.trace.losses)
        if self.num_gradients > 1:
            self._count("inner_gain", found.gain * batch.num_sentences, batch.num_sentences)
        for name, (total, count) in norms.items():
            self._count(name, total, count)
        self._count("delta_rms", found.delta.square().sum(), found.delta.numel())
        if found.eta is not None:
            self._count("eta_rms", found.eta.square().sum(), found.eta.numel())
            if found.epsilon_token is not None:
                self.epsilon_token.append(found.epsilon_token)

    def _count(self, name: str, total: Tensor, count: int | Tensor) -> None:
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + count

    def metrics(self) -> dict[str, Tensor]:
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        return {name: mean.sqrt() if name.endswith("_rms") else mean for name, mean in means.items()}
