"""SCAL (Miao et al. 2021): fine-tuning with a one-step attack, whose view is also a contrastive positive.

| paper | here |
|---|---|
| x_adv (eq. 2, 6) | `perturbation.method: fgm` or `fgsm` on CE, at the clean pass |
| L_CE of both | half each |
| L_con(z, {z_adv}) | `ContrastiveObjective.contrast`, z = head(h) |
| alpha, below 1 | `weight_contrastive`; the paper prints no number, 0.5 is ours |
| + CL (no attack) | `attack: false`: CE(x) + alpha * L_con(z, {z+}), z+ a second dropout mask |
| + AT (no contrast) | `weight_contrastive: 0` |
"""

from typing import Literal

from torch import Tensor, nn

from fastadv.config.bounds import NotNegative, Positive
from fastadv.errors import UserError
from fastadv.objectives.base import Views
from fastadv.objectives.classes.classification import Classifies
from fastadv.objectives.needs import AdversarialView, Needs
from fastadv.objectives.sentences.contrastive import ContrastiveObjective


class SCAL(Classifies, ContrastiveObjective):
    """L = (CE(x) + CE(x_adv)) / 2 + alpha * L_con(z, {z_adv}), SCAL's loss (METHODS 4).

    Args:
        hidden_size: D of the pooled vectors.
        classifier: h (B, D) → logits (B, C), given by the run.
        weight_contrastive: alpha. The others are those of ContrastiveObjective.
        attack: false leaves the attack out (the paper's + CL).
    """

    needs = Needs(labels=True, positive=True)
    num_contrasts = 1

    def __init__(
        self,
        hidden_size: int,
        classifier: nn.Module,
        *,
        weight_contrastive: NotNegative = 0.5,
        attack: bool = True,
        temperature: Positive = 0.05,
        head: Literal["mlp", "bn_mlp", "none"] = "mlp",
        mask_duplicates: bool = True,
    ):
        super().__init__(hidden_size, temperature=temperature, head=head, mask_duplicates=mask_duplicates)
        if weight_contrastive < 0:
            raise UserError(f"objective_options.weight_contrastive: {weight_contrastive} given, must be 0 or more")
        self.classifier = classifier
        self.weight_contrastive = weight_contrastive
        if attack:
            self.needs = Needs(labels=True, adversarial=AdversarialView(keys=True))

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        loss = clean = self.cross_entropy(views.pooled, views)
        terms = {"loss_clean": clean.detach()}
        if self.needs.adversarial is not None:
            adversarial = self.cross_entropy(views.adversarial_pooled, views)
            loss = (clean + adversarial) / 2
            terms["loss_adversarial"] = adversarial.detach()
        if self.weight_contrastive > 0:
            keys = views.adversarial_keys if self.needs.adversarial is not None else views.positive_keys
            contrastive = self.contrast(views.query, views.sentence_ids, keys)
            loss = loss + self.weight_contrastive * contrastive
            terms["loss_contrastive"] = contrastive.detach()
        return loss, terms
