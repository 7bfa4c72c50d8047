"""USCAL transcribed from METHODS.md sections 1-2 into numpy: one attack step from zero, two single-set losses."""

import numpy as np

from tests.oracle.sentences.ball import direction
from tests.oracle.sentences.contrastive import contrastive_mean
from tests.oracle.transcription import Found, RobustSentEmbed


class USCAL(RobustSentEmbed):
    """L_con(z, {z+}) + alpha L_con(z, {z_adv}); delta = eps g/||g||_2 (FGM) or eps sign(g) (FGSM) a sentence."""

    def radius(self, sentence, x):
        """eps of a sentence; the relative one is kappa RMS(X_s) n^(1/2) in FGM's l2 ball, kappa RMS(X_s) in FGSM's."""
        options = self.options
        if options.epsilon_relative is None:
            return options.epsilon
        rows = x[self.perturbed(sentence)]
        if rows.size == 0:
            return 0.0
        exponent = 0.5 if options.method == "fgm" else 0.0
        return options.epsilon_relative * np.sqrt((rows * rows).mean()) * rows.size**exponent

    def attack(self, gradient, radius):
        if self.options.method == "fgm":
            return radius * direction(gradient, "l2")
        return radius * np.sign(gradient)

    def search(self, x, batch, keys, uniform, masks=None):
        gradients = self.inner_gradient(self.attacked_point(x), batch, keys, masks)
        delta = [
            self.attack(g, self.radius(sentence, x_s)) for sentence, x_s, g in zip(batch, x, gradients, strict=True)
        ]
        inner_loss = self.inner_loss(self.vectors(self.attacked_point(x), masks), keys, batch)
        return Found(delta, delta, delta, None, inner_loss)

    def attacked_point(self, x):
        """Where the gradient is taken: the attack starts from zero."""
        return x

    def outer_loss(self, z, z_positive, z_adversarial, ids):
        o = self.options
        clean = contrastive_mean(z, [z_positive], ids, o.temperature, "sum", o.mask_duplicates)
        attacked = contrastive_mean(z, [z_adversarial], ids, o.temperature, "sum", o.mask_duplicates)
        return clean + o.weight_adversarial * attacked
