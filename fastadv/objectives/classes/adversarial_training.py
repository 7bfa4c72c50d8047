"""Adversarial training on cross-entropy: FGSM, FGM, PGD and FreeLB, which are four searches under one loss.

| system | here |
|---|---|
| FGSM (Goodfellow et al. 2015), FGM (Miyato et al. 2017) | `perturbation.method: fgsm`, `fgm`; half the loss clean |
| PGD (Madry et al. 2018) | `perturbation.method: pgd`, half the loss clean |
| FreeLB (Zhu et al. 2020) | `perturbation.method: freelb`, weight_clean 0: the mean of n passes that all train |

FGSM's and PGD's radii and steps are printed in none of the five papers; those of the configs are ours.
"""

from dataclasses import replace

from torch import Tensor

from fastadv.config.bounds import Share
from fastadv.errors import UserError
from fastadv.objectives.base import Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import AdversarialView, Needs


class AdversarialTraining(ClassificationObjective):
    """L = w * CE(x) + (1 - w) * CE(x_adv). With w = 0.5 and FGM it is SCAL's ablation + AT.

    Args:
        weight_clean: w; at 0 no clean pass is made.
    """

    needs = Needs(labels=True, adversarial=AdversarialView())

    def __init__(self, hidden_size: int, classifier, *, weight_clean: Share = 0.5):
        super().__init__(hidden_size, classifier)
        if not 0 <= weight_clean <= 1:
            raise UserError(f"objective_options.weight_clean: {weight_clean} given, must be in [0, 1]")
        self.weight_clean = weight_clean
        self.needs = replace(self.needs, clean=weight_clean > 0)

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        adversarial = self.cross_entropy(views.adversarial_pooled, views)
        terms = {"loss_adversarial": adversarial.detach()}
        if not self.needs.clean:
            return adversarial, terms
        clean = self.cross_entropy(views.pooled, views)
        terms["loss_clean"] = clean.detach()
        return self.weight_clean * clean + (1 - self.weight_clean) * adversarial, terms
