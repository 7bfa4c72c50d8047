"""The contrastive loss L_con and the base of the objectives made of it (METHODS 2, RobustSentEmbed eq. 9)."""

from dataclasses import replace
from typing import Any, Literal, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.config.bounds import NotNegative, Positive
from fastadv.encoder.heads import make_head
from fastadv.errors import UserError
from fastadv.objectives.base import Keys, LossSizes, Objective, Views
from fastadv.objectives.needs import Needs, TextView
from fastadv_kernels import info_nce

MultiPositive = Literal["sum", "mean", "separate"]


_TEXT_OPTIONS = {"text_positive": "none", "weight_text": 0.0, "weight_flip": 0.0}
"""The options that ask for views of texts, and their defaults."""


def _with_texts(needs: Needs, text_positive: str, weight_text: float, weight_flip: float) -> Needs:
    """``needs`` with the views of texts that the options ask for."""
    if text_positive == "none" and not weight_text > 0 and not weight_flip > 0:
        return needs
    text = TextView(keys=text_positive != "none", is_positive=text_positive == "instead")
    return replace(needs, text=text, flip=weight_flip > 0, positive=not text.is_positive)


class ContrastiveObjective(Objective):
    """An objective whose inner loss is L_con(z(X + delta + eta), {z+}) and whose outer loss adds up such terms.

    Args:
        hidden_size: D of the pooled vectors.
        temperature: tau.
        head: from pooled vectors to z: mlp (Linear, tanh), bn_mlp, or none.
        multi_positive: several positives inside one logarithm, averaged over one denominator, or each with its own.
        mask_duplicates: equal sentences are not each other's negatives.
        weight_hard_negative: times a sentence's own given hard negative counts in its denominator (SimCSE's alpha).
        text_positive: z_text, the sentence's worst proposal (`perturbation.text`), as a positive: none, beside z+, or
            instead of it.
        weight_text: weight of L_con(z_text, {z+}), z_text as an anchor.
        weight_flip: weight of max(0, flip_margin + cos(z, z_flip) - cos(z, z_text)), the mean over sentences that have
            both views; z_flip is the nearest of the copies that say another thing (`perturbation.text.flips`).
        flip_margin: by how much z_flip has to be further from z than z_text is.
        weight_keep: weight of 1 - cos(h, h_0), and of 1 - cos(h_text, h_0) where there is a text view, each the mean
            over sentences; h_0 is the vector of the sentence by the encoder before training, and costs one forward.

    Raises:
        UserError: z_text both in the place of z+ and as an anchor, which is compared with z+.
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
        text_positive: Literal["none", "beside", "instead"] = "none",
        weight_text: NotNegative = 0.0,
        weight_flip: NotNegative = 0.0,
        flip_margin: NotNegative = 0.0,
        weight_keep: NotNegative = 0.0,
    ):
        super().__init__(hidden_size)
        self.temperature = temperature
        self.weight_hard_negative = weight_hard_negative
        self.multi_positive = multi_positive
        self.mask_duplicates = mask_duplicates
        self.head = make_head(head, hidden_size)
        self.text_positive, self.weight_text = text_positive, weight_text
        self.weight_flip, self.flip_margin, self.weight_keep = weight_flip, flip_margin, weight_keep
        is_instead = text_positive == "instead"
        if is_instead and weight_text > 0:
            raise UserError(
                f"objective_options.weight_text = {weight_text}: expected 0 where objective_options.text_positive is "
                "instead: an anchor is compared with z+, which is then not computed"
            )
        self.needs = _with_texts(replace(self.needs, original=weight_keep > 0), text_positive, weight_text, weight_flip)

    @classmethod
    def needs_under(cls, options: Mapping[str, Any]) -> Needs:
        given = (options.get(name, default) for name, default in _TEXT_OPTIONS.items())
        return _with_texts(cls.needs, *given)

    @property
    def num_text_contrasts(self) -> int:
        """Sets of keys that queries are compared with because of the text view, besides those of z+."""
        return (self.text_positive == "beside") + (self.weight_text > 0)

    def loss_flops(self, sizes: LossSizes) -> dict[str, float]:
        parts = super().loss_flops(sizes)
        more = 3 * self.num_text_contrasts * sizes.num_passes * sizes.comparison
        return {name: value + more for name, value in parts.items()}

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

    def row_losses(self, views: Views) -> Tensor:
        return self.contrast(views.query, views.sentence_ids, views.positive_keys, reduction="none")

    def positive_sets(self, views: Views) -> list[Keys]:
        """The key sets of z+ and, where it stands beside z+, of z_text."""
        return [views.positive_keys, *([views.text.keys] if self.text_positive == "beside" else [])]

    def with_text_terms(self, loss: Tensor, terms: dict[str, Tensor], views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """``loss`` and its ``terms`` with those of z_text as an anchor, of z_flip and of h_0, which their weights ask
        for."""
        if self.weight_text > 0:
            anchor = self.contrast(views.text.query, views.sentence_ids, views.positive_keys)
            loss, terms = loss + self.weight_text * anchor, {**terms, "loss_text": anchor.detach()}
        if self.weight_flip > 0:
            near, far = (F.cosine_similarity(views.query, each.query) for each in (views.text, views.flip))
            is_counted = views.text.is_present & views.flip.is_present
            flip = views.masked_mean((self.flip_margin + far - near).clamp(min=0), is_counted)
            loss, terms = loss + self.weight_flip * flip, {**terms, "loss_flip": flip.detach()}
        if self.weight_keep > 0:
            keep = self._distance_to_original(views)
            loss, terms = loss + self.weight_keep * keep, {**terms, "loss_keep": keep.detach()}
        return loss, terms

    def _distance_to_original(self, views: Views) -> Tensor:
        """The mean of 1 - cos(h, h_0), and of 1 - cos(h_text, h_0) over sentences that have an edited copy."""
        if self.original_vectors is None:
            raise ValueError("weight_keep needs original_vectors, which the run sets")
        original = self.original_vectors(views.batch).to(views.pooled.dtype)
        distance = views.mean(1 - F.cosine_similarity(views.pooled, original))
        if views.text is None:
            return distance
        of_text = 1 - F.cosine_similarity(views.text.pooled, original)
        return distance + views.masked_mean(of_text, views.text.is_present)

    def contrast(
        self, query: Tensor, sentence_ids: Tensor, *key_sets: Keys, reduction: Literal["none", "mean", "sum"] = "mean"
    ) -> Tensor:
        """L_con(query, key_sets): row i's positives are its own row of every set, its negatives all other rows.

        Hard negatives given with a set are negatives of every row, a row's own `weight_hard_negative` times (Gao et al.
        2021, eq. 5 and appendix).

        Args:
            query: (B, D).
            sentence_ids: (B,).
            key_sets: one or more sets of M keys over the same sentences in the same order.
            reduction: none: (B,); sum over the B rows, or mean over the global batch's (as `Views.mean` takes it).
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
            reduction="none" if reduction == "none" else "sum",
        )
        return total / first.rows_a_rank if reduction == "mean" else total
