"""RobustSentEmbed (Rafiei Asl et al. 2024): the view at the worst small perturbation, as a positive and as an anchor.

| paper | here |
|---|---|
| X, X+ under m1, m2 | the two clean views |
| delta_f (eq. 7), eta (eq. 2-4) | `fastadv/perturbation`; z_adv = f(X + delta_f), eta serves the search and RTD only |
| L_con (eq. 9) | `ContrastiveObjective.contrast` |
| lambda_1 | `weight_adversarial`, 1/128 |
"""

from torch import Tensor

from fastadv.errors import UserError

from .base import Views
from .contrastive import ContrastiveObjective


class RobustSentEmbed(ContrastiveObjective):
    """L = L_con(z, {z+, z_adv}) + lambda_1 * L_con(z_adv, {z+}), without replaced token detection.

    RobustSentEmbed eq. 9-10 and Algorithm 1.

    Args:
        weight_adversarial: lambda_1. The others are those of ContrastiveObjective.
    """

    uses_adversary = True

    def __init__(self, hidden_size: int, *, weight_adversarial: float = 1 / 128, **options):
        super().__init__(hidden_size, **options)
        if weight_adversarial < 0:
            raise UserError(f"objective_options.weight_adversarial: {weight_adversarial} given, must be 0 or more")
        self.weight_adversarial = weight_adversarial

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        contrastive = self.contrast(views.query, views.sentence_ids, views.positive_keys, views.adversarial_keys)
        adversarial = self.contrast(views.adversarial, views.sentence_ids, views.positive_keys)
        loss = contrastive + self.weight_adversarial * adversarial
        return loss, {"loss_contrastive": contrastive.detach(), "loss_adversarial": adversarial.detach()}
