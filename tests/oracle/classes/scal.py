"""SCAL and its two ablations transcribed from METHODS.md sections 1, 2 and 4 into numpy.

z = tanh(head_weight h + head_bias), or h without a head. The attack is FGM's or FGSM's on cross-entropy.
"""

import numpy as np

from tests.oracle.classes.classification import NO_MASKS, Attacked, FineTuning
from tests.oracle.sentences.contrastive import contrastive_mean
from tests.oracle.transcription import added


def project_head(parameters, vectors):
    """z of each h."""
    if "head_weight" not in parameters:
        return vectors
    return [np.tanh(parameters["head_weight"] @ h + parameters["head_bias"]) for h in vectors]


class Contrast(FineTuning):
    """What has a contrastive term beside cross-entropy."""

    def contrast(self, anchors, keys, batch, parameters=None):
        """L_con(z, {z'}) of h and h'."""
        parameters = self.parameters if parameters is None else parameters
        options, ids = self.options, [sentence.identity for sentence in batch]
        z, z_keys = (project_head(parameters, vectors) for vectors in (anchors, keys))
        return contrastive_mean(z, [z_keys], ids, options.temperature, "sum", options.mask_duplicates)


class SCAL(Contrast, Attacked):
    """L = 1/2 (CE(x) + CE(x_adv)) + alpha L_con(z, {z_adv})."""

    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        x = self.embedded(batch, views.clean, parameters)
        clean = self.vectors(x, views.clean, parameters)
        attacked = self.vectors(added(x, delta), views.adversarial, parameters)
        return self.of_vectors(clean, attacked, batch, parameters)

    def of_vectors(self, clean, attacked, batch, parameters):
        losses = (self.mean_cross_entropy(h, batch, parameters) for h in (clean, attacked))
        return sum(losses) / 2 + self.options.weight_contrastive * self.contrast(clean, attacked, batch, parameters)


class SCALWithoutAttack(Contrast):
    """+ CL: L = CE(x) + alpha L_con(z, {z+}), z+ under a second dropout mask."""

    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        clean, positive = (
            self.vectors(self.embedded(batch, masks, parameters), masks, parameters)
            for masks in (views.clean, views.positive)
        )
        return self.of_vectors(clean, positive, batch, parameters)

    def of_vectors(self, clean, positive, batch, parameters):
        contrast = self.contrast(clean, positive, batch, parameters)
        return self.mean_cross_entropy(clean, batch, parameters) + self.options.weight_contrastive * contrast


class SCALWithoutContrast(SCAL):
    """+ AT: L = 1/2 (CE(x) + CE(x_adv))."""

    def of_vectors(self, clean, attacked, batch, parameters):
        return sum(self.mean_cross_entropy(h, batch, parameters) for h in (clean, attacked)) / 2
