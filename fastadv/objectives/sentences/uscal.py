"""USCAL (Miao et al. 2021): the view under a one-step attack as a second positive, its loss apart.

| paper | here |
|---|---|
| x_emb1, x_emb2 | the two clean views |
| x_adv (eq. 9) | `perturbation.method: fgm` or `fgsm` on L_con by X, the key constant; z_adv = f(X + delta) |
| alpha (eq. 10) | `weight_adversarial`; the paper prints no number, 0.5 is ours |
"""

from torch import Tensor

from fastadv.config.bounds import NotNegative
from fastadv.objectives.base import Views
from fastadv.objectives.needs import AdversarialView, Needs
from fastadv.objectives.sentences.contrastive import ContrastiveObjective


class USCAL(ContrastiveObjective):
    """L = L_con(z, {z+}) + alpha * L_con(z, {z_adv}), USCAL eq. 10.

    Args:
        weight_adversarial: alpha. The others are those of ContrastiveObjective.
    """

    needs = Needs(positive=True, adversarial=AdversarialView(keys=True))

    def __init__(self, hidden_size: int, *, weight_adversarial: NotNegative = 0.5, **options):
        super().__init__(hidden_size, **options)
        self.weight_adversarial = weight_adversarial

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        contrastive = self.contrast(views.query, views.sentence_ids, *self.positive_sets(views))
        adversarial = self.contrast(views.query, views.sentence_ids, views.adversarial_keys)
        loss = contrastive + self.weight_adversarial * adversarial
        terms = {"loss_contrastive": contrastive.detach(), "loss_adversarial": adversarial.detach()}
        return self.with_text_terms(loss, terms, views)
