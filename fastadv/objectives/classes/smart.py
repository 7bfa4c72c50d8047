"""SMART (Jiang et al. 2020): what a classifier says must not change under small noise, nor from one step to the next.

| paper | here |
|---|---|
| l_s, symmetric KL | `symmetric_kl` on logits |
| x~ from N(x, sigma^2), one step in the linf ball | `perturbation.method: pgd`, `norm: linf`, `start: normal` |
| g of l_s(f(x~), f(x)), f(x) constant | `inner_loss`; `views.anchor` is h of x under the masks of x~ |
| lambda_s, mu | `weight_smoothness`, `weight_momentum`, 1 both |
| theta~, beta | the average model (`fastadv/engine/step/average.py`), `decay_of_average` |

Printed are sigma = epsilon = 1e-5 and a step of 1e-3, on embeddings about 0.5 large. In the outer loss both sides of
l_s have a gradient, but for the average model's.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.config.bounds import NotNegative
from fastadv.errors import UserError
from fastadv.objectives.base import RunFacts, Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import AdversarialView, Needs

DECAY_AT_FIRST, DECAY = 0.99, 0.999
"""of the average, in the first tenth of the run and after it"""


class SMART(ClassificationObjective):
    """L = CE(x) + lambda_s * mean l_s(f(X + delta), f(X)) + mu * mean l_s(f(X), f(X; average)) (METHODS 4).

    Args:
        weight_smoothness: lambda_s; at 0 nothing is searched.
        weight_momentum: mu; at 0 there is no average model.
    """

    needs = Needs(labels=True, adversarial=AdversarialView(anchor=True), average=True)

    def __init__(
        self,
        hidden_size: int,
        classifier: nn.Module,
        *,
        weight_smoothness: NotNegative = 1.0,
        weight_momentum: NotNegative = 1.0,
    ):
        super().__init__(hidden_size, classifier)
        for name, weight in (("weight_smoothness", weight_smoothness), ("weight_momentum", weight_momentum)):
            if weight < 0:
                raise UserError(f"objective_options.{name}: {weight} given, must be 0 or more")
        self.weight_smoothness, self.weight_momentum = weight_smoothness, weight_momentum
        searched = self.needs.adversarial if weight_smoothness > 0 else None
        self.needs = replace(self.needs, adversarial=searched, average=weight_momentum > 0)
        self._total_steps = 0

    def begin(self, run: RunFacts) -> None:
        self._total_steps = run.total_steps

    def decay_of_average(self, step: int) -> float:
        if self._total_steps == 0:
            raise RuntimeError(
                "SMART's average slows down after a tenth of the run: call begin() before the first step"
            )
        return DECAY_AT_FIRST if 10 * step <= self._total_steps else DECAY

    def inner_loss(self, views: Views) -> Tensor:
        clean = self.classifier(views.anchor).detach()
        return symmetric_kl(self.classifier(views.pooled), clean).sum()

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        logits = self.classifier(views.pooled)
        loss = clean = views.mean(F.cross_entropy(logits, views.labels, reduction="none"))
        terms = {"loss_clean": clean.detach()}
        if self.needs.adversarial is not None:
            smoothness = views.mean(symmetric_kl(self.classifier(views.adversarial_pooled), logits))
            loss = loss + self.weight_smoothness * smoothness
            terms["loss_smoothness"] = smoothness.detach()
        if self.needs.average:
            momentum = views.mean(symmetric_kl(logits, views.average_logits))
            loss = loss + self.weight_momentum * momentum
            terms["loss_momentum"] = momentum.detach()
        return loss, terms


def symmetric_kl(logits: Tensor, others: Tensor) -> Tensor:
    """KL(p || q) + KL(q || p) = sum (p - q)(log p - log q) of each row of (B, C) and (B, C): (B,).

    In float32 at least: two distributions that hardly differ are a difference of nearly equal numbers.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_p, log_q = (values.to(wide).log_softmax(dim=1) for values in (logits, others))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1)
