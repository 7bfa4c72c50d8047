"""Balanced Adversarial Training (Chen et al. 2022): fickle texts are pulled to the sentence, obstinate ones pushed off.

| paper | here |
|---|---|
| x_f, a text of synonyms, whose class stays | variant "fickle" |
| x_o, a text with an antonym, whose class flips | variant "obstinate", counted where `obstinate_labels` has the class |
| d, 1 - cosine | `distance_of`: of [CLS] vectors, or of the mean or the maximum of token states |
| alpha, beta of BAT-Pairwise | `weight_fickle`, `weight_obstinate` |
| lambda of BAT-Triplet | `weight_triplet` |
| m | `margin` |

Both texts are drawn from `data.word_sets` anew every epoch (`fastadv/data/variants/substitution.py`). L_ML is printed
as log f(y | x) and meant as minus that.
"""

from dataclasses import replace
from typing import Annotated, List, Literal, Optional

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from fastadv.config.bounds import NotNegative
from fastadv.data.packing import PackedBatch
from fastadv.encoder.attention.layout import pad, padding_of
from fastadv.encoder.pooling import mean_pool
from fastadv.errors import UserError
from fastadv.objectives.base import RunFacts, Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import Needs

DistanceOf = Literal["cls", "mean", "max"]


Margin = Annotated[float, Interval(ge=0, le=2)]
"""Between two cosine distances, each 1 - cosine"""


class BAT(ClassificationObjective):
    """What both losses have: d(x, x_f), d(x, x_o), and which rows count.

    Args:
        hidden_size: D of the pooled vectors.
        classifier: h (B, D) → logits (B, C), given by the run.
        margin: m; at a distance of m or more an obstinate text is far enough.
        distance_of: what the distance is between: cls (h, under encoder.pooling cls the paper's [CLS] vector), or the
            mean or the largest entries of the token states.
        obstinate_labels: classes that an antonym turns into another: entailment and contradiction, or duplicates; null:
            all.
    """

    needs = Needs(labels=True, variants=("fickle", "obstinate"))

    def __init__(
        self,
        hidden_size: int,
        classifier,
        *,
        margin: Margin = 1.0,
        distance_of: DistanceOf = "cls",
        obstinate_labels: Optional[List[str]] = None,
    ):
        super().__init__(hidden_size, classifier)
        if not 0 <= margin <= 2:
            raise UserError(f"objective_options.margin: {margin} given, must be in [0, 2], as 1 - cosine is")
        self.margin, self.distance_of, self.obstinate_labels = margin, distance_of, obstinate_labels
        self.needs = replace(self.needs, tokens=distance_of != "cls")
        # Whether each class counts, once the run's classes are known; None: all do. No parameter and no buffer: the
        # names are the config's.
        self._is_flipped: Optional[Tensor] = None

    def begin(self, run: RunFacts) -> None:
        if self.obstinate_labels is None:
            return
        names = run.label_names
        unknown = next((name for name in self.obstinate_labels if name not in names), None)
        if unknown is not None:
            raise UserError(
                f"objective_options.obstinate_labels: {unknown!r} is none of the classes; they are {', '.join(names)}"
            )
        self._is_flipped = torch.tensor([name in self.obstinate_labels for name in names])

    def distance(self, views: Views, name: str) -> Tensor:
        """(B,) 1 - cosine of x and its variant ``name``, in float32 at least; of meaning where there is one."""
        variant = views.variants[name]
        if self.distance_of == "cls":
            pair = views.pooled, variant.pooled
        else:
            pair = (
                _pooled(views.tokens, views.batch, self.distance_of),
                _pooled(variant.tokens, variant.batch, self.distance_of),
            )
        ours, theirs = (F.normalize(v.to(torch.promote_types(v.dtype, torch.float32)), dim=1) for v in pair)
        # 1 - cos of unit vectors, without the difference that leaves few digits of it where they are close.
        return (ours - theirs).square().sum(1) / 2

    def is_flipped(self, views: Views) -> Tensor:
        """(B,) bool, whose obstinate text counts."""
        is_present = views.variants["obstinate"].is_present
        if self.obstinate_labels is None:
            return is_present
        self._is_flipped = self._is_flipped.to(views.labels.device)
        return is_present & self._is_flipped[views.labels]


class BATPairwise(BAT):
    """L = CE(x) + alpha * mean d(x, x_f) + beta * mean max(0, m - d(x, x_o)), each mean over rows that have the text.

    Args:
        weight_fickle: alpha; at 0 no fickle text is drawn.
        weight_obstinate: beta; at 0 no obstinate one. The others are those of BAT.
    """

    def __init__(
        self,
        hidden_size: int,
        classifier,
        *,
        weight_fickle: NotNegative = 1.0,
        weight_obstinate: NotNegative = 1.2,
        margin: Margin = 1.0,
        distance_of: DistanceOf = "cls",
        obstinate_labels: Optional[List[str]] = None,
    ):
        super().__init__(
            hidden_size, classifier, margin=margin, distance_of=distance_of, obstinate_labels=obstinate_labels
        )
        self.weight_fickle, self.weight_obstinate = weight_fickle, weight_obstinate
        weights = {"fickle": weight_fickle, "obstinate": weight_obstinate}
        variants = tuple(name for name, weight in weights.items() if weight > 0)
        self.needs = replace(self.needs, variants=variants)

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.cross_entropy(views.pooled, views)
        terms = {"loss_clean": loss.detach()}
        if "fickle" in self.needs.variants:
            pulled = views.masked_mean(self.distance(views, "fickle"), views.variants["fickle"].is_present)
            loss = loss + self.weight_fickle * pulled
            terms["loss_fickle"] = pulled.detach()
        if "obstinate" in self.needs.variants:
            gaps = (self.margin - self.distance(views, "obstinate")).relu()
            pushed = views.masked_mean(gaps, self.is_flipped(views))
            loss = loss + self.weight_obstinate * pushed
            terms["loss_obstinate"] = pushed.detach()
        return loss, terms


class BATTriplet(BAT):
    """L = CE(x) + lambda * mean over all rows of max(0, a_f * d(x, x_f) + a_o * (m - d(x, x_o))), a = 1 where present.

    Args:
        weight_triplet: lambda. The others are those of BAT.
    """

    def __init__(
        self,
        hidden_size: int,
        classifier,
        *,
        weight_triplet: NotNegative = 1.0,
        margin: Margin = 1.0,
        distance_of: DistanceOf = "cls",
        obstinate_labels: Optional[List[str]] = None,
    ):
        super().__init__(
            hidden_size, classifier, margin=margin, distance_of=distance_of, obstinate_labels=obstinate_labels
        )
        self.weight_triplet = weight_triplet

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        clean = self.cross_entropy(views.pooled, views)
        fickle, obstinate = self.distance(views, "fickle"), self.distance(views, "obstinate")
        zero = fickle.new_zeros(())
        pulled = fickle.where(views.variants["fickle"].is_present, zero)
        pushed = (self.margin - obstinate).where(self.is_flipped(views), zero)
        triplet = views.mean((pulled + pushed).relu())
        loss = clean + self.weight_triplet * triplet
        return loss, {"loss_clean": clean.detach(), "loss_triplet": triplet.detach()}


def _pooled(states: Tensor, batch: PackedBatch, how: DistanceOf) -> Tensor:
    """(B, D) mean or largest entries of the token states (T, D), special tokens included."""
    padding = padding_of(batch)
    if how == "mean":
        return mean_pool(states, batch.lengths, padding)
    padded = pad(states, padding)
    if padding.mask is not None:
        padded = padded.masked_fill(~padding.mask[:, 0, 0, :, None], -torch.inf)
    return padded.amax(1)
