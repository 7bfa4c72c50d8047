"""Base_adv, hard and soft: training on texts that fooled a victim and on nothing else (TaiChi, table 4).

| paper | here |
|---|---|
| Base_adv, the class of x for x' | `targets: hard` |
| Base_adv (soft), the victim's logits as soft labels | `targets: soft`, `victim`: p_victim(x') |
"""

from torch import Tensor

from fastadv.objectives.base import Views
from fastadv.objectives.needs import Needs
from fastadv.objectives.texts.attacked_texts import AttackedTexts


class BaseAdv(AttackedTexts):
    """L = CE(x'), the mean over the rows that have an x'; of a batch that has none it is 0. No clean pass is made."""

    needs = Needs(labels=True, clean=False, variants=("adversarial",))

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        is_present = views.variants["adversarial"].is_present
        loss = views.masked_mean(self.attacked_losses(views), is_present)
        return loss, {"loss_adversarial": loss.detach()}
