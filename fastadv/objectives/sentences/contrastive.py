"""The contrastive loss L_con and the base of the objectives made of it (METHODS 2, RobustSentEmbed eq. 9)."""

from typing import Literal

import torch
from torch import Tensor, nn

from fastadv.config.bounds import Positive
from fastadv.encoder.heads import make_head
from fastadv.errors import UserError
from fastadv.objectives.base import Keys, Objective, Views
from fastadv.objectives.needs import Needs
from fastadv_kernels import info_nce

MultiPositive = Literal["sum", "mean", "separate"]


class ContrastiveObjective(Objective):
    """An objective whose inner loss is L_con(z(X + delta + eta), {z+}) and whose outer loss adds up such terms.

    Args:
        hidden_size: D of the pooled vectors.
        temperature: tau.
        head: from pooled vectors to z: mlp (Linear, tanh), bn_mlp, or none.
        multi_positive: several positives inside one logarithm, averaged over one denominator, or each with its own.
        mask_duplicates: equal sentences are not each other's negatives.
        weight_hard_negative: times a sentence's own given hard negative counts in its denominator (SimCSE's alpha).
    """

    needs = Needs(positive=True)

    def __init__(
        self,
        hidden_size: int,
        *,
        temperature: Positive = 0.05,
        head: Literal["mlp", "bn_mlp", "none"] = "mlp",
        multi_positive: MultiPositive = "sum",
        mask_duplicates: bool = True,
        weight_hard_negative: Positive = 1.0,
    ):
        super().__init__(hidden_size)
        if not temperature > 0:
            raise UserError(f"objective_options.temperature: {temperature} given, must be above 0")
        if not weight_hard_negative > 0:
            raise UserError(f"objective_options.weight_hard_negative: {weight_hard_negative} given, must be above 0")
        self.temperature = temperature
        self.weight_hard_negative = weight_hard_negative
        self.multi_positive = multi_positive
        self.mask_duplicates = mask_duplicates
        self.head = make_head(head, hidden_size)

    def project(self, pooled: Tensor, is_inner: bool = False) -> Tensor:
        norms = [m for m in self.head.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
        if not norms or not (is_inner or len(pooled) == 1):
            return self.head(pooled)
        # The running statistics serve: a batch's own would make a row's inner loss depend on its neighbours'
        # perturbations, and a lone row (an epoch's last batch may be one) has none.
        for norm in norms:
            norm.eval()
        try:
            return self.head(pooled)
        finally:
            for norm in norms:
                norm.train()

    def inner_loss(self, views: Views) -> Tensor:
        return self.contrast(views.query, views.sentence_ids, views.positive_keys, reduction="sum")

    def contrast(
        self, query: Tensor, sentence_ids: Tensor, *key_sets: Keys, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """L_con(query, key_sets): row i's positives are its own row of every set, its negatives all other rows.

        Hard negatives given with a set are negatives of every row, a row's own `weight_hard_negative` times (Gao et al.
        2021, eq. 5 and appendix).

        Args:
            query: (B, D).
            sentence_ids: (B,).
            key_sets: one or more sets of M keys over the same sentences in the same order.
            reduction: sum over the B rows, or mean over the global batch's (as `Views.mean` takes it).
        """
        first = key_sets[0]
        # One set has them: that of the given positives.
        given = next((keys for keys in key_sets if keys.hard_negatives is not None), first)
        total = info_nce(
            query,
            torch.stack([keys.vectors for keys in key_sets]),
            temperature=self.temperature,
            row_offset=first.row_offset,
            query_ids=sentence_ids if self.mask_duplicates else None,
            key_ids=first.sentence_ids if self.mask_duplicates else None,
            multi_positive=self.multi_positive,
            hard_negatives=given.hard_negatives,
            hard_negative_ids=given.hard_negative_ids if self.mask_duplicates else None,
            own_hard_negative_weight=self.weight_hard_negative,
            reduction="sum",
        )
        return total if reduction == "sum" else total / first.rows_a_rank
