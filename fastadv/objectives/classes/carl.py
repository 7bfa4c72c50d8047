"""CARL (Contrastive Adversarial Representation Learning): FreeLB, and a contrast of both representations of a text.

    R, R_adv = h of the clean pass and of the last of FreeLB's passes, L2-normalised        s(a, b) = exp(a . b / tau)
    L_o      = R against R_adv, negatives out of the adversarial bank     L_a = R_adv against R, out of the original one
    L        = mean over passes of CE(x_adv) + L_o + L_a

| paper | here |
|---|---|
| R_i, R_adv_i (section 3.2) | `views.pooled`, `views.adversarial_pooled`: the vectors that enter the classifier |
| h_theta (eq. 4), tau | exp of the dot product over `temperature` |
| B_orig, B_adv, M (eq. 5) | `MemoryBanks`, `momentum` |
| K or m negatives | `num_negatives`, rows of other classes; one draw serves both terms, as v_n of eq. 2 does |
| L_D = L_o + L_a (eq. 2, 3) | `CARL._contrast`: `softmax` as printed, the positive outside the sum, or `nce` |
| the start of L_D (table 3) | `start_step`: optimizer steps done before the first with L_D |

What the paper leaves open. Z is each bank's own, and its mean score is over all of the first batch that has negatives,
the positives' among them, as in Tian et al. (2020), whom the paper adapts. With `negatives: per_batch` the rows of one
class share a draw. A row without a negative has L_o = L_a = 0. A row that stands twice in a batch is written twice.
"""

import logging
import math
from dataclasses import replace
from typing import Annotated, Literal, Optional

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from fastadv.config.bounds import Positive, ShareBelow1
from fastadv.objectives.base import LossSizes, RunFacts, Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.classes.memory_bank import MemoryBanks, Negatives, Sharing
from fastadv.objectives.needs import AdversarialView, Needs
from fastadv.objectives.ranks import ALONE, Ranks

logger = logging.getLogger(__name__)

_SIDES = (("original", 0), ("adversarial", 1))
"""of anchors; their negatives lie on the other"""


class _NeedsByStep:
    """Needs of the class, and of an object those of its next batch: before the filling epoch nothing reads R."""

    _needs = Needs(labels=True, adversarial=AdversarialView(methods=("freelb",), raised_term="loss_classification"))

    def __get__(self, objective: "CARL | None", owner: type) -> Needs:
        return self._needs if objective is None else replace(self._needs, clean=objective.reads_clean_pass)


class CARL(ClassificationObjective):
    """L = L_C + L_o + L_a, CARL eq. 1-6, for `perturbation.method: freelb`.

    Banks are filled by the passes of the epoch before `start_step`; before that epoch no clean pass is made.

    Args:
        hidden_size: D of the pooled vectors.
        classifier: h (B, D) → logits (B, C), given by the run.
        estimator: nce or softmax, the form of L_o and L_a.
        temperature: tau.
        num_negatives: m, drawn with replacement.
        negatives: per_batch draws once for each class in the batch; per_row for each row, and gathers B * m * D.
        momentum: M, what a bank keeps of a row's old vector.
        start_step: the step from which on L_o and L_a count; null: the second epoch's first.
        normalize: R is brought to length 1; raw dot products overflow easily.
    """

    needs = _NeedsByStep()

    def __init__(
        self,
        hidden_size: int,
        classifier,
        *,
        estimator: Literal["nce", "softmax"] = "nce",
        temperature: Positive = 0.07,
        num_negatives: Annotated[int, Ge(1)] = 16000,
        negatives: Sharing = "per_batch",
        momentum: ShareBelow1 = 0.5,
        start_step: Annotated[int, Ge(0)] | None = None,
        normalize: bool = True,
    ):
        super().__init__(hidden_size, classifier)
        self.estimator, self.temperature, self.normalize = estimator, temperature, normalize
        self.num_negatives, self.negatives, self.momentum = num_negatives, negatives, momentum
        self.start_step = start_step
        self.banks: Optional[MemoryBanks] = None
        self.course = _Course()
        self._first_write = self._first_contrast = 0
        # Of each batch since the last optimizer step: what it will write, and whether Z is its own.
        self._pending: list[tuple[Optional[tuple[Tensor, Tensor]], bool]] = []
        self._has_told = False

    def begin(self, run: RunFacts) -> None:
        if run.row_labels is None:
            raise ValueError("CARL needs the class of every row of the training data")
        # A copy, since the run's may be a file that is mapped.
        labels = torch.from_numpy(np.array(run.row_labels, dtype=np.int64))
        self.banks = MemoryBanks(labels, self.momentum, self.normalize, run.ranks)
        self.course = _Course(run.seed)
        self._pending.clear()
        steps_per_epoch = -(-run.batches_per_epoch // run.accumulation_steps)
        self._first_contrast = steps_per_epoch if self.start_step is None else self.start_step
        self._first_write = max(0, self._first_contrast - steps_per_epoch)
        if self._first_contrast >= run.total_steps and run.ranks.rank == 0:
            given = "null, the second epoch's first" if self.start_step is None else str(self.start_step)
            logger.warning(
                "objective_options.start_step = %s: the run ends after step %d, before its contrast begins at step %d; "
                "until there it is FreeLB",
                given,
                run.total_steps,
                self._first_contrast + 1,
            )

    @property
    def reads_clean_pass(self) -> bool:
        """Whether the next batch's loss reads R: from the filling epoch on."""
        return self.course.num_steps >= self._first_write

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.cross_entropy(views.adversarial_pooled, views)
        terms = {"loss_classification": loss.detach()}
        if views.last_pass == 0:
            return loss, terms
        if views.pooled is None:
            self._pending.append((None, False))
            return loss, terms
        own = torch.stack([self._representation(h) for h in (views.pooled, views.adversarial_pooled)], dim=1)
        whole = _ranks(views).gather(own)
        had_z = self.course.has_z
        if self.course.num_steps >= self._first_contrast:
            losses = self._contrast(own, whole, views)
            loss = loss + views.last_pass * sum(losses.values())
            terms.update({name: value.detach() for name, value in losses.items()})
        rows = _ranks(views).gather(views.batch.row_ids).cpu()
        self._pending.append(((rows, whole.detach()), self.course.has_z and not had_z))
        return loss, terms

    def _representation(self, pooled: Tensor) -> Tensor:
        """R (B, D), in float32 at least."""
        wide = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
        return F.normalize(wide, dim=-1) if self.normalize else wide

    def _contrast(self, own: Tensor, whole: Tensor, views: Views) -> dict[str, Tensor]:
        """{L_o, L_a}, means over the global batch, of pairs (R, R_adv): ``own`` (B, 2, D) and ``whole`` (G, 2, D)."""
        labels = _ranks(views).gather(views.labels).cpu()
        negatives = self.banks.draw(labels, self.num_negatives, self.negatives, self.course.generator)
        if not negatives:
            self._tell(labels, _ranks(views).rank)
            return {f"loss_contrast_{name}": own.new_zeros(()) for name, _ in _SIDES}
        rows = torch.cat([entry.rows for entry in negatives])
        logits = [self._logits(whole, side, negatives) for _, side in _SIDES]
        # The positive is the fresh pair, which has one score from either side.
        positive = (whole[:, 0] * whole[:, 1]).sum(-1)[rows.to(whole.device, non_blocking=True)] / self.temperature
        if self.estimator == "nce" and not self.course.has_z:
            self._fix_z(logits, positive.detach(), views)
        # Rows of other ranks count there. They stay in the sum, at 0, for each rank's backward serves all others'.
        first = _ranks(views).row_offset
        is_own = ((rows >= first) & (rows < first + len(own))).to(whole, non_blocking=True)
        losses = {}
        for (name, side), of_side in zip(_SIDES, logits, strict=True):
            row_losses = self._row_losses(positive, of_side, side, views) * is_own
            # Rows without negatives, at 0, belong to the mean.
            losses[f"loss_contrast_{name}"] = views.mean(F.pad(row_losses, (0, len(whole) - len(rows))))
        return losses

    def _logits(self, whole: Tensor, side: int, negatives: list[Negatives]) -> list[Tensor]:
        """(g, m_r) each: log s of anchors on ``side`` with those of their negatives that this rank keeps."""
        return [products / self.temperature for products in self.banks.products(whole[:, side], 1 - side, negatives)]

    def _row_losses(self, positive: Tensor, logits: list[Tensor], side: int, views: Views) -> Tensor:
        """Losses of the rows that have negatives; what the ranks know of a row's negatives meets here."""
        if self.estimator == "softmax":
            return _log_sum_exp(logits, views) - positive
        # P = s / (s + m Z / n): -log P+ = softplus(log mZ/n - log s), -log(1 - P-) = softplus(log s - log mZ/n).
        log_noise = math.log(self.num_negatives) + float(self.course.log_z[side]) - math.log(len(self.banks))
        parts = torch.cat([F.softplus(of_group - log_noise).sum(-1) for of_group in logits])
        return F.softplus(log_noise - positive) + _ranks(views).stack(parts).sum(0)

    def _fix_z(self, logits: list[list[Tensor]], positive: Tensor, views: Views) -> None:
        """Z = n times the mean score of the global batch, positives and negatives, of each side."""
        num_scores = len(positive) * (1 + self.num_negatives)
        for side, of_side in enumerate(logits):
            of_rows = _log_sum_exp([part.detach() for part in of_side], views)
            total = torch.logaddexp(of_rows, positive).double().logsumexp(0)
            self.course.log_z[side] = float(total) - math.log(num_scores) + math.log(len(self.banks))

    def _tell(self, labels: Tensor, rank: int) -> None:
        if not self._has_told and rank == 0:
            self._has_told = True
            logger.warning(
                "objective carl: the batch of step %d, of class %s, has no negatives, for the banks hold no row of "
                "another class; its contrast is 0, and that of such batches to come",
                self.course.num_steps + 1,
                ", ".join(str(label) for label in labels.unique().tolist()),
            )

    def loss_flops(self, sizes: LossSizes) -> dict[str, float]:
        """Those of a step once the contrast has begun."""
        # Both anchors' scores, and their gradients by the anchors; the banks are constants.
        of_negatives = 2 * 2 * 2.0 * sizes.num_sentences * self.num_negatives * sizes.hidden_size
        return {**super().loss_flops(sizes), "negatives": of_negatives}

    def commit(self) -> None:
        for written, _ in self._pending:
            if written is not None:
                self.banks.write(*written)
        self._pending.clear()
        self.course.num_steps += 1

    def discard(self) -> None:
        if self._pending and self._pending.pop()[1]:
            self.course.log_z.fill_(math.nan)

    def stateful(self) -> list:
        return [self.course, self.banks]


class _Course:
    """Where an objective's run stands, beside the banks. The same on all ranks.

    Attributes:
        num_steps: optimizer steps done.
        log_z: (2,) log Z of either anchor's side, NaN until the first batch with negatives.
        generator: draws negatives.
    """

    def __init__(self, seed: int = 0):
        self.num_steps = 0
        self.log_z = torch.full((2,), math.nan, dtype=torch.float64, device="cpu")
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def has_z(self) -> bool:
        return not bool(self.log_z.isnan().any())

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "carl_num_steps": torch.tensor(self.num_steps),
            "carl_log_z": self.log_z,
            "carl_generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.num_steps = int(state["carl_num_steps"])
        self.log_z = state["carl_log_z"].clone()
        self.generator.set_state(state["carl_generator"])


def _ranks(views: Views) -> Ranks:
    return ALONE if views.ranks is None else views.ranks


def _log_sum_exp(logits: list[Tensor], views: Views) -> Tensor:
    """log of the sum of all ranks' exp(logits), of one row after another."""
    parts = []
    for of_group in logits:
        # A rank may keep none of the negatives; its part is then exp(-inf), and still has a graph.
        nothing = of_group.new_full((len(of_group), 1), -math.inf)
        parts.append(torch.cat([of_group, nothing], dim=1).logsumexp(1))
    return _ranks(views).stack(torch.cat(parts)).logsumexp(0)
