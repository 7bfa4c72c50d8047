"""What training on texts that fooled a classifier shares: Base_adv, ADA and A2T (METHODS 4).

Where the texts come from is the run's business: `data.pairs`, or an attack at the start of an epoch.
"""

from dataclasses import replace
from typing import Literal, Optional

import torch.nn.functional as F
from torch import Tensor

from fastadv.errors import UserError
from fastadv.objectives.base import Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import Needs

Targets = Literal["hard", "soft"]


class AttackedTexts(ClassificationObjective):
    """The part that has cross-entropy of x', the variant "adversarial".

    Args:
        hidden_size: D of the pooled vectors.
        classifier: h (B, D) → logits (B, C), given by the run.
        targets: hard, the class of x; soft, the probabilities that the frozen ``victim`` gives x'.
        victim: a trained classifier of the encoder's own vocabulary and of the same classes, by folder or name; for
            soft targets alone. It is no part of the model and of no checkpoint, and is read again when a run goes on.
    """

    needs = Needs(labels=True, variants=("adversarial",))

    def __init__(self, hidden_size: int, classifier, *, targets: Targets = "hard", victim: Optional[str] = None):
        super().__init__(hidden_size, classifier)
        if targets == "soft" and victim is None:
            raise UserError(
                "objective_options.victim = null: expected a trained classifier where objective_options.targets is soft"
            )
        if targets == "hard" and victim is not None:
            raise UserError(
                f"objective_options.victim = {victim}: expected null where objective_options.targets is hard"
            )
        self.targets = targets
        self.needs = replace(self.needs, victim=victim)

    def attacked_losses(self, views: Views) -> Tensor:
        """(B,) the cross-entropy of each x', of meaning where there is one."""
        variant = views.variants["adversarial"]
        logits = self.classifier(variant.pooled)
        if self.targets == "hard":
            return F.cross_entropy(logits, views.labels, reduction="none")
        if self.victim_probabilities is None:
            raise ValueError("soft targets need victim_probabilities, which the run sets")
        targets = self.victim_probabilities(variant.batch).to(logits.dtype)
        return F.cross_entropy(logits, targets, reduction="none")

    def augmented(self, views: Views, weight: float) -> tuple[Tensor, dict[str, Tensor]]:
        """(sum of CE(x) + weight * sum of CE(x')) / B, and its two terms.

        Attacked texts join the training set: where few rows have one, each counts what a clean text does, no more.
        """
        clean = self.cross_entropy(views.pooled, views)
        if "adversarial" not in views.variants:
            # An epoch before the first attack.
            return clean, {"loss_clean": clean.detach()}
        losses = self.attacked_losses(views)
        attacked = views.mean(losses.where(views.variants["adversarial"].is_present, losses.new_zeros(())))
        return clean + weight * attacked, {"loss_clean": clean.detach(), "loss_adversarial": attacked.detach()}
