"""RobustSentEmbed (Rafiei Asl et al. 2024): the view at the worst small perturbation, as a positive and as an anchor.

| paper | here |
|---|---|
| X, X+ under m1, m2 | the two clean views |
| delta_f (eq. 7), eta (eq. 2-4) | `fastadv/perturbation`; z_adv = f(X + delta_f), eta serves the search and RTD only |
| L_con (eq. 9) | `ContrastiveObjective.contrast` |
| L_RTD (eq. 8), G, D | `rtd.py`; the step adds it with its weight |
| lambda_1, lambda_2 | `weight_adversarial`, 1/128, and `weight_rtd`, 0.005 |
"""

from dataclasses import replace
from typing import Literal

from torch import Tensor

from fastadv.config.bounds import NotNegative, Share
from fastadv.objectives.base import Views
from fastadv.objectives.needs import AdversarialView, DetectionOptions, Needs
from fastadv.objectives.sentences.contrastive import ContrastiveObjective


class RobustSentEmbed(ContrastiveObjective):
    """L = L_con(z, {z+, z_adv}) + lambda_1 * L_con(z_adv, {z+}) + lambda_2 * L_RTD.

    RobustSentEmbed eq. 8-10 and Algorithm 1.

    Args:
        weight_adversarial: lambda_1. What is not named here is an option of ContrastiveObjective.
        weight_rtd: lambda_2; at 0 replaced token detection is not run.
        rtd_generator: refills masked tokens: none (no replaced token detection), unigram (by their frequency in the
            training data), or a folder or name of a masked language model with the encoder's vocabulary.
        rtd_mask_ratio: probability with which each token that is not special is masked; one a sentence at least.
        rtd_fill: masked tokens are drawn from the generator's probabilities, or are the likeliest.
        rtd_reduction: L_RTD is the mean or the sum over real tokens.
        rtd_input: what the discriminator is given at position 0: the pooled vector h, or z behind the head.
    """

    needs = Needs(positive=True, adversarial=AdversarialView(keys=True))
    num_contrasts = 3

    def __init__(
        self,
        hidden_size: int,
        *,
        weight_adversarial: NotNegative = 1 / 128,
        weight_rtd: NotNegative = 0.005,
        rtd_generator: str = "none",
        rtd_mask_ratio: Share = 0.3,
        rtd_fill: Literal["sample", "argmax"] = "sample",
        rtd_reduction: Literal["mean", "sum"] = "mean",
        rtd_input: Literal["h", "z"] = "h",
        **options,
    ):
        super().__init__(hidden_size, **options)
        self.weight_adversarial = weight_adversarial
        if rtd_generator != "none" and weight_rtd > 0:
            detection = DetectionOptions(rtd_generator, weight_rtd, rtd_mask_ratio, rtd_fill, rtd_reduction, rtd_input)
            self.needs = replace(self.needs, detection=detection)

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        keys = self.positive_sets(views)
        contrastive = self.contrast(views.query, views.sentence_ids, *keys, views.adversarial_keys)
        adversarial = self.contrast(views.adversarial, views.sentence_ids, views.positive_keys)
        loss = contrastive + self.weight_adversarial * adversarial
        terms = {"loss_contrastive": contrastive.detach(), "loss_adversarial": adversarial.detach()}
        return self.with_text_terms(loss, terms, views)
