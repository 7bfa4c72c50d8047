"""Fine-tuning: cross-entropy of the clean pass, what every robust classifier is compared with."""

from torch import Tensor

from fastadv.objectives.base import Views
from fastadv.objectives.classes.classification import ClassificationObjective


class FineTuning(ClassificationObjective):
    """L = CE(x). No perturbation is searched."""

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.cross_entropy(views.pooled, views)
        return loss, {"loss_clean": loss.detach()}
