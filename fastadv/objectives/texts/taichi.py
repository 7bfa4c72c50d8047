"""TaiChi (Chen et al. 2024): a clean and an adversarial network that learn from each other, on text attacks' pairs.

    L = CE_clean + CTR_clean + CE_adv + CTR_adv + KL_clean + KL_adv

each a mean, each once, with a gradient on both sides.

| paper | here |
|---|---|
| f_clean, f_adv | the network that is exported, and a second of the same start (`Needs.second_network`) |
| x, x' | a text, and its text under an attack that fooled the victim: the variant "adversarial", out of `data.pairs` |
| z (section 3.2) | h, the mean of the last states: `encoder.pooling: mean`. The classifier is a linear map of it |
| L_CE | clean network at x, adversarial network at x', true label of x |
| L_CTR | clean: anchor z(x), keys z(x'); adversarial: anchor z(x'), keys z(x). The positive is over the line alone |
| s, tau | `similarity`: cosine, or neg_l2: -‖u − v‖₂. The printed ‖u − v‖₂ would pull positives apart. `temperature` |
| L_KL | clean: KL(p_clean(x) ‖ p_adv(x)); adversarial: KL(p_adv(x') ‖ p_clean(x')) |

| `ablation` | loss | networks |
|---|---|---|
| none | all six | two |
| no_kl | without the KL: the two ends of the linear average (`fastadv average`) in one run | two |
| no_ctr | without the CTR | two |
| no_adv | CE_clean + CTR_clean + KL(p_clean(x) ‖ p_clean(x')) | one |
| clean | CE_clean + CTR_clean: the paper's CLEAN; so is no_kl's first network, but for joint clipping | one |
| adversarial | CE_adv + CTR_adv: the paper's ADVERSARIAL | one |

What the paper leaves open. A text without a pair is in CE_clean alone; the other terms are means over the paired rows
of the global batch, and 0 where there are none. CTR of a row without another pair in its batch is 0. Equal texts are
each other's negatives. CTR, printed as a sum, is a mean like the others; its keys are those of the global batch.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.config.bounds import Positive
from fastadv.errors import UserError
from fastadv.objectives.base import LossSizes, Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import Needs
from fastadv.objectives.ranks import ALONE

Ablation = Literal["none", "no_kl", "no_ctr", "no_adv", "clean", "adversarial"]


class TaiChi(ClassificationObjective):
    """TaiChi's loss, or an ablation's (METHODS 4).

    Args:
        hidden_size: D of the pooled vectors.
        classifier: h (B, D) → logits (B, C), given by the run.
        ablation: which terms are left out; see the module.
        similarity: s, between vectors: cosine, or neg_l2.
        temperature: tau.
    """

    needs = Needs(labels=True, variants=("adversarial",), second_network=True)

    def __init__(
        self,
        hidden_size: int,
        classifier: nn.Module,
        *,
        ablation: Ablation = "none",
        similarity: Literal["cosine", "neg_l2"] = "cosine",
        temperature: Positive = 1.0,
    ):
        super().__init__(hidden_size, classifier)
        if not temperature > 0:
            raise UserError(f"objective_options.temperature: {temperature} given, must be above 0")
        self.ablation, self.similarity, self.temperature = ablation, similarity, temperature
        self.needs = replace(self.needs, second_network=ablation in ("none", "no_kl", "no_ctr"))
        self._has_contrast = ablation != "no_ctr"
        self.num_gathered = 0 if ablation == "no_ctr" else 2 if self.needs.second_network else 1
        self._has_divergence = ablation in ("none", "no_ctr", "no_adv")

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        attacked = views.variants["adversarial"]
        first = _Network(self.classifier, views.pooled, attacked.pooled)
        clean = adversarial = first
        if self.needs.second_network:
            second = views.second
            adversarial = _Network(self.second_classifier, second.pooled, second.variants["adversarial"].pooled)
        pairs = _Pairs(attacked.is_present, views)
        terms = {}
        if self.ablation != "adversarial":
            of_rows = F.cross_entropy(clean.logits, views.labels, reduction="none")
            terms["loss_clean"] = views.mean(of_rows)
            if self._has_contrast:
                terms["loss_contrast_clean"] = self._contrast(clean.pooled, clean.attacked, pairs)
        if self.ablation not in ("no_adv", "clean"):
            of_rows = F.cross_entropy(adversarial.attacked_logits, views.labels, reduction="none")
            terms["loss_adversarial"] = pairs.mean(of_rows)
            if self._has_contrast:
                terms["loss_contrast_adversarial"] = self._contrast(adversarial.attacked, adversarial.pooled, pairs)
        if self.ablation == "no_adv":
            terms["loss_kl"] = pairs.mean(kl_divergence(clean.logits, clean.attacked_logits))
        elif self._has_divergence:
            terms["loss_kl_clean"] = pairs.mean(kl_divergence(clean.logits, adversarial.logits))
            of_rows = kl_divergence(adversarial.attacked_logits, clean.attacked_logits)
            terms["loss_kl_adversarial"] = pairs.mean(of_rows)
        return sum(terms.values()), {name: value.detach() for name, value in terms.items()}

    def loss_flops(self, sizes: LossSizes) -> dict[str, float]:
        found = super().loss_flops(sizes)
        if self.num_gathered and self.similarity == "cosine":
            # Distances are formed by differences, which are no products.
            found["contrasts"] = 3 * self.num_gathered * sizes.comparison
        return found

    def _contrast(self, anchors: Tensor, keys: Tensor, pairs: "_Pairs") -> Tensor:
        """CTR of ``anchors`` (B, D) and this rank's ``keys`` (B, D): mean over paired rows i of
        log Σ_{paired j ≠ i} exp(s_ij/τ) − s_ii/τ."""
        whole = pairs.views.gather(keys)
        scores = self._scores(anchors, whole.vectors) / self.temperature
        own = whole.row_offset + torch.arange(len(anchors), device=scores.device)
        is_negative = pairs.is_paired_anywhere & ~F.one_hot(own, len(whole.vectors)).bool()
        has_negative = is_negative.any(dim=1)
        # A row without a negative sums over all of them, so that what is not taken is still a number.
        negatives = scores.masked_fill(~is_negative & has_negative[:, None], -torch.inf).logsumexp(dim=1)
        of_rows = negatives - scores.gather(1, own[:, None])[:, 0]
        return pairs.mean(torch.where(has_negative, of_rows, 0.0))

    def _scores(self, anchors: Tensor, keys: Tensor) -> Tensor:
        """s (B, M) of anchors (B, D) and keys (M, D)."""
        anchors, keys = wide(anchors), wide(keys)
        if self.similarity == "cosine":
            return F.normalize(anchors, dim=1) @ F.normalize(keys, dim=1).T
        # By differences: from dot products a small distance would have few correct digits.
        return -torch.cdist(anchors, keys, compute_mode="donot_use_mm_for_euclid_dist")


class _Network(NamedTuple):
    """One network's head, and its h (B, D) at the texts and at the attacked ones."""

    head: nn.Module
    pooled: Tensor
    attacked: Tensor

    @property
    def logits(self) -> Tensor:
        """(B, C)"""
        return self.head(self.pooled)

    @property
    def attacked_logits(self) -> Tensor:
        return self.head(self.attacked)


class _Pairs:
    """Which rows have an attacked text: of this rank (B,), and of all (M,)."""

    def __init__(self, is_paired: Tensor, views: Views):
        self.is_paired, self.views = is_paired, views
        ranks = ALONE if views.ranks is None else views.ranks
        self.is_paired_anywhere = ranks.gather(is_paired.long()).bool()

    def mean(self, row_losses: Tensor) -> Tensor:
        """Over the paired rows of the global batch."""
        return self.views.masked_mean(row_losses, self.is_paired)


def kl_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """(B,) KL(p ‖ q) = Σ p (log p − log q) of two sets of logits (B, C), in float32 at least; both have a gradient."""
    log_p, log_q = (F.log_softmax(wide(values), dim=-1) for values in (logits, other))
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def wide(values: Tensor) -> Tensor:
    """In float32 at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
