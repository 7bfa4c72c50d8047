"""A2T (Yoo and Qi 2021): the model's own texts are attacked at the start of every epoch but the first.

| paper | here |
|---|---|
| clean epochs | `num_clean_epochs` |
| gamma, the share of the training set to be fooled | `share` |
| queries a text | `max_queries` |
| alpha, the weight of attacked texts | `weight_adversarial` |
"""

from dataclasses import replace
from typing import Annotated, Optional

from annotated_types import Ge
from torch import Tensor

from fastadv.config.bounds import NotNegative, PositiveShare
from fastadv.errors import UserError
from fastadv.objectives.base import Views
from fastadv.objectives.needs import EpochAttack, Needs
from fastadv.objectives.texts.attacked_texts import AttackedTexts


class A2T(AttackedTexts):
    """L = (sum of CE(x) + w * sum of CE(x_adv)) / B, the second sum over the rows whose text has been attacked.

    Args:
        hidden_size: D of the pooled vectors.
        classifier: h (B, D) → logits (B, C), given by the run.
        weight_adversarial: w.
        num_clean_epochs: epochs before the first attack.
        share: of the training set; an epoch's attack ends when so many texts fool the model.
        max_queries: of one text.
        recipe: the attack, as `fastadv attack --recipe` knows it.
        word_vectors: a file of `fastadv word-sets --vectors_out`, which the recipe a2t needs.
        attack_data: the folder of `fastadv prepare-attack-data`; null: the usual place.
    """

    needs = Needs(labels=True, variants=("adversarial",), epoch_attack=EpochAttack())

    def __init__(
        self,
        hidden_size: int,
        classifier,
        *,
        weight_adversarial: NotNegative = 1.0,
        num_clean_epochs: Annotated[int, Ge(0)] = 1,
        share: PositiveShare = 0.2,
        max_queries: Annotated[int, Ge(1)] = 200,
        recipe: str = "a2t",
        word_vectors: Optional[str] = None,
        attack_data: Optional[str] = None,
    ):
        super().__init__(hidden_size, classifier)
        if num_clean_epochs < 0:
            raise UserError(f"objective_options.num_clean_epochs: {num_clean_epochs} given, must be 0 or more")
        if not 0 < share <= 1:
            raise UserError(f"objective_options.share: {share} given, must be above 0 and at most 1")
        if max_queries < 1:
            raise UserError(f"objective_options.max_queries: {max_queries} given, must be 1 or more")
        self.weight_adversarial = weight_adversarial
        attack = EpochAttack(recipe, num_clean_epochs, share, max_queries, word_vectors, attack_data)
        self.needs = replace(self.needs, epoch_attack=attack)

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        return self.augmented(views, self.weight_adversarial)
