"""Training on the worst edited copy of each text, chosen among its proposals by the cross-entropy (METHODS 8).

| symbol | here |
|---|---|
| x~^{k*}, the worst of K proposals | `perturbation.text`; `views.text` |
| lambda | `weight_kl` |
| x_adv = X + delta, where asked for | `weight_adversarial` above 0; FreeLB on top by `perturbation.method: freelb` |
"""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.config.bounds import NotNegative
from fastadv.objectives.base import Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.classes.smart import symmetric_kl
from fastadv.objectives.needs import AdversarialView, Needs, TextView


class TextAdversarial(ClassificationObjective):
    """L = CE(x) + CE(x~) + lambda * mean (KL(p || p~) + KL(p~ || p)) + w * CE(x_adv); ours, METHODS 8.

    Args:
        weight_kl: lambda, of the symmetric divergence between the probabilities p of a text and p~ of its copy.
        weight_adversarial: w, of the cross-entropy at a perturbation of the embeddings; at 0 none is searched. Under
            `reuse: free` it is the mean over all passes.
    """

    needs = Needs(labels=True, text=TextView())

    def __init__(
        self,
        hidden_size: int,
        classifier: nn.Module,
        *,
        weight_kl: NotNegative = 1.0,
        weight_adversarial: NotNegative = 0.0,
    ):
        super().__init__(hidden_size, classifier)
        self.weight_kl, self.weight_adversarial = weight_kl, weight_adversarial
        if weight_adversarial > 0:
            self.needs = replace(self.needs, adversarial=AdversarialView(raised_term="loss_adversarial"))

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        logits, edited = self.classifier(views.pooled), self.classifier(views.text.pooled)
        clean, text = (views.mean(F.cross_entropy(each, views.labels, reduction="none")) for each in (logits, edited))
        kl = views.mean(symmetric_kl(logits, edited))
        # Where several passes train, these terms are the last one's.
        loss = views.last_pass * (clean + text + self.weight_kl * kl)
        terms = {"loss_clean": clean.detach(), "loss_text": text.detach(), "loss_kl": kl.detach()}
        if self.needs.adversarial is not None:
            adversarial = self.cross_entropy(views.adversarial_pooled, views)
            loss = loss + self.weight_adversarial * adversarial
            terms["loss_adversarial"] = adversarial.detach()
        return loss, terms
