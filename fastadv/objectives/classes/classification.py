"""What the supervised systems share: cross-entropy of a classification head on h (METHODS 4)."""

import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.objectives.base import Objective, Views
from fastadv.objectives.needs import Needs


class Classifies:
    """The part of an objective that has ``classifier``, h (B, D) → logits (B, C), the head that is exported.

    Its inner loss is the cross-entropy at the perturbed point. The head has no dropout of its own, so that inner steps
    and clean passes share one function.
    """

    classifier: nn.Module

    def inner_loss(self, views: Views) -> Tensor:
        return F.cross_entropy(self.classifier(views.pooled), views.labels, reduction="sum")

    def row_losses(self, views: Views) -> Tensor:
        return F.cross_entropy(self.classifier(views.pooled), views.labels, reduction="none")

    def cross_entropy(self, pooled: Tensor, views: Views) -> Tensor:
        """Mean over the global batch of -log p(label) at ``pooled`` (B, D): of the clean or the adversarial pass."""
        return views.mean(F.cross_entropy(self.classifier(pooled), views.labels, reduction="none"))


class ClassificationObjective(Classifies, Objective):
    """An objective without contrast: z is h itself, and there is one clean view.

    Args:
        hidden_size: D of the pooled vectors.
        classifier: given by the run, not by the config.
    """

    needs = Needs(labels=True)

    def __init__(self, hidden_size: int, classifier: nn.Module):
        super().__init__(hidden_size)
        self.classifier = classifier

    def project(self, pooled: Tensor, is_inner: bool = False) -> Tensor:
        return pooled
