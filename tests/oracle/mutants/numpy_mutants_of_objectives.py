"""The transcriptions of USCAL and of replaced token detection with one plausible mistake each."""

from dataclasses import replace

import numpy as np

from tests.oracle.sentences.ball import direction
from tests.oracle.sentences.contrastive import contrastive_mean
from tests.oracle.sentences.rtd import RobustSentEmbedWithRTD
from tests.oracle.sentences.uscal import USCAL
from tests.oracle.toy_encoder import LONGEST


class AttackByToken(USCAL):
    """Each token's gradient over its own norm."""

    def attack(self, gradient, radius):
        return radius * np.array([direction(row, "l2") for row in gradient])


class AttackFromNonzeroStart(USCAL):
    def attacked_point(self, x):
        return [x_s + 0.02 * np.cos(np.arange(x_s.size).reshape(x_s.shape)) for x_s in x]


class AttackDescends(USCAL):
    def attack(self, gradient, radius):
        return -super().attack(gradient, radius)


class AttackInTheConfiguredNorm(USCAL):
    def attack(self, gradient, radius):
        return radius * direction(gradient, self.options.norm)


class RadiusWithoutRoot(USCAL):
    def radius(self, sentence, x):
        rows = x[self.perturbed(sentence)]
        return super().radius(sentence, x) / max(rows.size, 1) ** 0.5


class BothPositivesInOneLogarithm(USCAL):
    def outer_loss(self, z, z_positive, z_adversarial, ids):
        o = self.options
        return contrastive_mean(z, [z_positive, z_adversarial], ids, o.temperature, "sum", o.mask_duplicates)


class AdversarialViewIsTheAnchor(USCAL):
    def outer_loss(self, z, z_positive, z_adversarial, ids):
        return super().outer_loss(z, z_positive, z_adversarial, ids) + self.options.weight_adversarial * (
            contrastive_mean(z_adversarial, [z], ids, self.options.temperature)
            - contrastive_mean(z, [z_adversarial], ids, self.options.temperature)
        )


class AdversarialViewOfTheKey(USCAL):
    """The attack on X added to X+."""

    def outer_loss(self, z, z_positive, z_adversarial, ids):
        return super().outer_loss(z_positive, z, z_adversarial, ids)


class RestoredTokensCountAsReplaced(RobustSentEmbedWithRTD):
    def labels(self, original, tokens, masked):
        return masked


class LabelsSwapped(RobustSentEmbedWithRTD):
    def labels(self, original, tokens, masked):
        return tokens == original


class EveryTokenRefilled(RobustSentEmbedWithRTD):
    def refilled(self, original, masked, fills):
        return fills


class PositionZeroKept(RobustSentEmbedWithRTD):
    def first_layer(self, mapped, vector):
        return mapped


class VectorAddedAtPositionZero(RobustSentEmbedWithRTD):
    def first_layer(self, mapped, vector):
        return super().first_layer(mapped, mapped[0] + vector)


class VectorIsConstant(RobustSentEmbedWithRTD):
    """No gradient of L_RTD reaches f."""

    def first_layer(self, mapped, vector):
        return super().first_layer(mapped, vector.real)


class EtaLeftOutOfDetection(RobustSentEmbedWithRTD):
    def embedded_by_discriminator(self, parameters, tokens, eta):
        return super().embedded_by_discriminator(parameters, tokens, 0.0 * eta)


class DiscriminatorEmbedsTheOriginal(RobustSentEmbedWithRTD):
    def refilled(self, original, masked, fills):
        self._original = original
        return super().refilled(original, masked, fills)

    def embedded_by_discriminator(self, parameters, tokens, eta):
        return super().embedded_by_discriminator(parameters, self._original, eta)


class MeanOverPaddedTokens(RobustSentEmbedWithRTD):
    def reduced(self, losses):
        return sum(loss for of_sentence in losses for loss in of_sentence) / (LONGEST * len(losses))


class MeanOfSentenceMeansOfLoss(RobustSentEmbedWithRTD):
    def reduced(self, losses):
        return sum(sum(of_sentence) / len(of_sentence) for of_sentence in losses) / len(losses)


class VectorOfTheHead(RobustSentEmbedWithRTD):
    def __init__(self, options, parameters, table):
        super().__init__(replace(options, rtd_input="z"), parameters, table)


FGM, FGSM = ("uscal-fgm-plain", "uscal-fgm-reuse-none"), ("uscal-fgsm-plain", "uscal-fgsm-reuse-none")
RTD = ("rtd-plain", "rtd-no-dropout")
MUTANTS = {
    AttackByToken: FGM,
    AttackFromNonzeroStart: FGM + FGSM,
    AttackDescends: FGM + FGSM,
    AttackInTheConfiguredNorm: FGM + FGSM,
    RadiusWithoutRoot: ("uscal-fgm-relative", "uscal-fgm-spare-special-relative"),
    BothPositivesInOneLogarithm: FGM + FGSM,
    AdversarialViewIsTheAnchor: FGM + FGSM,
    AdversarialViewOfTheKey: FGM + FGSM,
    RestoredTokensCountAsReplaced: RTD,
    LabelsSwapped: RTD,
    EveryTokenRefilled: RTD,
    PositionZeroKept: RTD,
    VectorAddedAtPositionZero: RTD,
    VectorIsConstant: RTD,
    EtaLeftOutOfDetection: RTD,
    DiscriminatorEmbedsTheOriginal: RTD,
    MeanOverPaddedTokens: RTD,
    MeanOfSentenceMeansOfLoss: RTD,
    VectorOfTheHead: RTD,
}
