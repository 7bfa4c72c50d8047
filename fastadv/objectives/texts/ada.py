"""Adversarial data augmentation (Si et al. 2021): texts that fooled a victim join the training set.

| paper | here |
|---|---|
| x' with the class of x | `targets: hard` |
| soft labels | `targets: soft`, `victim`: p_victim(x') for x'; x keeps its class |
"""

from typing import Optional

from torch import Tensor

from fastadv.config.bounds import NotNegative
from fastadv.objectives.base import Views
from fastadv.objectives.texts.attacked_texts import AttackedTexts, Targets


class ADA(AttackedTexts):
    """L = (sum of CE(x) + w * sum of CE(x')) / B, the second sum over the rows that have an x'.

    Args:
        weight_adversarial: w. The others are those of AttackedTexts.
    """

    def __init__(
        self,
        hidden_size: int,
        classifier,
        *,
        weight_adversarial: NotNegative = 1.0,
        targets: Targets = "hard",
        victim: Optional[str] = None,
    ):
        super().__init__(hidden_size, classifier, targets=targets, victim=victim)
        self.weight_adversarial = weight_adversarial

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        return self.augmented(views, self.weight_adversarial)
