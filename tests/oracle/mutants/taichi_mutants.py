"""TaiChi's transcription with one plausible mistake each; `MUTANTS` names the cases in which each must show."""

import numpy as np

from tests.oracle.texts.taichi import ADVERSARIAL, CLEAN, TaiChi, divergence, log_softmax


class ContrastAndDivergenceTwice(TaiChi):
    """Backward called twice on four of the six terms, as in the public code."""

    def terms(self, *args):
        terms = super().terms(*args)
        return {name: value if name.startswith("ce_") else 2 * value for name, value in terms.items()}


class CrossEntropyTwice(TaiChi):
    def mean_cross_entropy(self, *args):
        return 2 * super().mean_cross_entropy(*args)


class DivergenceReversed(TaiChi):
    def mean_divergence(self, ones, others, rows):
        return super().mean_divergence(others, ones, rows)


class DivergenceOfBothSides(TaiChi):
    def mean_divergence(self, ones, others, rows):
        return (super().mean_divergence(ones, others, rows) + super().mean_divergence(others, ones, rows)) / 2


class DivergenceAsPrintedWithoutItsSign(TaiChi):
    """sum p log(q/p)."""

    def mean_divergence(self, ones, others, rows):
        return -super().mean_divergence(ones, others, rows)


class OtherNetworkIsConstant(TaiChi):
    """No gradient reaches q."""

    def mean_divergence(self, ones, others, rows):
        return super().mean_divergence(ones, [logits.real for logits in others], rows)


class OwnNetworkIsConstant(TaiChi):
    def mean_divergence(self, ones, others, rows):
        return super().mean_divergence([logits.real for logits in ones], others, rows)


class DivergenceOfLogitsNotLogProbabilities(TaiChi):
    def mean_divergence(self, ones, others, rows):
        pairs = zip(ones, others, strict=True)
        return self.mean([(np.exp(log_softmax(p)) * (p - q)).sum() for p, q in pairs], rows)


class DivergenceMeanOverEntries(TaiChi):
    """Divided by the classes too."""

    def mean_divergence(self, ones, others, rows):
        return super().mean_divergence(ones, others, rows) / 5


class BothDivergencesAtTheText(TaiChi):
    def kl_adversarial(self, rows, views):
        ones, others = ([views.logits(net, "x", i) for i in self.paired(rows)] for net in (ADVERSARIAL, CLEAN))
        return self.mean_divergence(ones, others, rows)


class BothDivergencesFromTheCleanNetwork(TaiChi):
    def kl_adversarial(self, rows, views):
        ones, others = ([views.logits(net, "x'", i) for i in self.paired(rows)] for net in (CLEAN, ADVERSARIAL))
        return self.mean_divergence(ones, others, rows)


class DivergenceOfAllRows(TaiChi):
    """KL_clean needs no pair; it is computed of every text."""

    def kl_clean(self, rows, views):
        ones, others = ([views.logits(net, "x", i) for i in range(len(rows))] for net in (CLEAN, ADVERSARIAL))
        return self.mean_divergence(ones, others, rows)


class KeysExchanged(TaiChi):
    """The attacked text is CTR_clean's anchor, and the text CTR_adv's."""

    def contrast(self, anchors, keys, rows):
        return super().contrast(keys, anchors, rows)


class KeysOfTheOtherNetwork(TaiChi):
    def ctr_clean(self, rows, views):
        anchors, keys = ([views.h(*of, i) for i in self.paired(rows)] for of in ((CLEAN, "x"), (ADVERSARIAL, "x'")))
        return self.contrast(anchors, keys, rows)


class NegativesAmongTheAnchors(TaiChi):
    """CTR_adv as it is printed: z'_i against z'_j."""

    def contrast_of(self, i, anchors, keys):
        return super().contrast_of(i, anchors, [keys[j] if j == i else anchors[j] for j in range(len(keys))])


class PositiveInTheDenominator(TaiChi):
    def contrast_of(self, i, anchors, keys):
        scores = [self.similarity(anchors[i], key) / self.options.temperature for key in keys]
        return -np.log(np.exp(scores[i]) / sum(np.exp(scores)))


class SumOfContrasts(TaiChi):
    """Without 1/N, as printed."""

    def contrast(self, anchors, keys, rows):
        return super().contrast(anchors, keys, rows) * len(anchors)


class KeysAreConstant(TaiChi):
    def contrast(self, anchors, keys, rows):
        return super().contrast(anchors, [key.real for key in keys], rows)


class AnchorsAreConstant(TaiChi):
    def contrast(self, anchors, keys, rows):
        return super().contrast([anchor.real for anchor in anchors], keys, rows)


class DistanceAsPrinted(TaiChi):
    """s = ||u - v||, which pulls positives apart."""

    def similarity(self, u, v):
        return -super().similarity(u, v)


class SquaredDistance(TaiChi):
    def similarity(self, u, v):
        return -(super().similarity(u, v) ** 2)


class DotProduct(TaiChi):
    def similarity(self, u, v):
        return (u * v).sum()


class TemperatureForgotten(TaiChi):
    def similarity(self, u, v):
        return super().similarity(u, v) * self.options.temperature


class LonePairAgainstNothing(TaiChi):
    """A row without a negative has -s, not 0."""

    def contrast_of(self, i, anchors, keys):
        if len(keys) == 1:
            return -self.similarity(anchors[i], keys[i]) / self.options.temperature
        return super().contrast_of(i, anchors, keys)


class MeanOverTheWholeBatch(TaiChi):
    """Terms of pairs are divided by all rows."""

    def mean(self, values, rows):
        return sum(values) / len(rows)


class UnpairedStandForThemselves(TaiChi):
    """A text without a pair enters as its own x'."""

    def paired(self, rows):
        return list(range(len(rows)))

    def terms(self, rows, masks=None, parameters=None):
        from dataclasses import replace

        full = [row if row.attacked is not None else replace(row, attacked=row.text) for row in rows]
        return super().terms(full, {k: v for k, v in (masks or {}).items() if k[1] == "x"}, parameters)


class UnpairedAreDropped(TaiChi):
    """CE_clean is of paired rows alone."""

    def ce_clean(self, rows, views):
        logits = [views.logits(CLEAN, "x", i) for i in self.paired(rows)]
        return self.mean_cross_entropy(logits, [rows[i].label for i in self.paired(rows)], rows)


class AdversarialNetworkReadsTheText(TaiChi):
    def ce_adversarial(self, rows, views):
        logits = [views.logits(ADVERSARIAL, "x", i) for i in self.paired(rows)]
        return self.mean_cross_entropy(logits, [rows[i].label for i in self.paired(rows)], rows)


class CleanNetworkReadsTheAttackedText(TaiChi):
    def ce_adversarial(self, rows, views):
        logits = [views.logits(CLEAN, "x'", i) for i in self.paired(rows)]
        return self.mean_cross_entropy(logits, [rows[i].label for i in self.paired(rows)], rows)


class AttackedUnderTheTextsMasks(TaiChi):
    """Where lengths are equal."""

    def terms(self, rows, masks=None, parameters=None):
        from tests.oracle.toy_encoder import Masks

        masks = dict(masks or {})
        for network in {key[0] for key in masks}:
            own, other = masks[network, "x"], masks[network, "x'"]
            parts = []
            for mine, theirs in ((own.embedding, other.embedding), (own.inner, other.inner)):
                chosen = zip(mine, theirs, strict=True)
                parts.append([a if b is not None and a.shape == b.shape else b for a, b in chosen])
            masks[network, "x'"] = Masks(*parts)
        return super().terms(rows, masks, parameters)


class OneNetworkForBoth(TaiChi):
    def terms(self, rows, masks=None, parameters=None):
        parameters = self.parameters if parameters is None else parameters
        tied = {
            name: parameters[name.replace(f"{ADVERSARIAL}.", f"{CLEAN}.", 1)] if name.startswith(ADVERSARIAL) else v
            for name, v in parameters.items()
        }
        return super().terms(rows, masks, tied)


class SelfDivergenceOfTheAttackedText(TaiChi):
    """KL(p(x') || p(x))."""

    def kl_self(self, rows, views):
        pairs = [[views.logits(CLEAN, text, i) for text in ("x'", "x")] for i in self.paired(rows)]
        return self.mean([divergence(*pair) for pair in pairs], rows)


TWO = ("plain", "no_ctr")
CONTRASTED = ("plain", "no_kl", "adversarial", "distance")
MUTANTS = {
    ContrastAndDivergenceTwice: ("plain", "no_adv", "adversarial"),
    CrossEntropyTwice: ("plain", "no_ctr", "clean", "adversarial"),
    DivergenceReversed: (*TWO, "no_adv"),
    DivergenceOfBothSides: (*TWO, "no_adv"),
    DivergenceAsPrintedWithoutItsSign: (*TWO, "no_adv"),
    OtherNetworkIsConstant: (*TWO, "no_adv"),
    OwnNetworkIsConstant: (*TWO, "no_adv"),
    DivergenceOfLogitsNotLogProbabilities: (*TWO, "no_adv"),
    DivergenceMeanOverEntries: (*TWO, "no_adv"),
    BothDivergencesAtTheText: TWO,
    BothDivergencesFromTheCleanNetwork: TWO,
    DivergenceOfAllRows: TWO,
    KeysExchanged: ("no_adv", "adversarial", "clean"),
    KeysOfTheOtherNetwork: ("plain", "no_kl"),
    NegativesAmongTheAnchors: CONTRASTED,
    PositiveInTheDenominator: CONTRASTED,
    SumOfContrasts: CONTRASTED,
    KeysAreConstant: CONTRASTED,
    AnchorsAreConstant: CONTRASTED,
    DistanceAsPrinted: ("distance", "distance-cold"),
    SquaredDistance: ("distance", "distance-cold"),
    DotProduct: CONTRASTED,
    TemperatureForgotten: ("cold", "distance-cold"),
    LonePairAgainstNothing: CONTRASTED,
    MeanOverTheWholeBatch: ("plain", "no_adv", "adversarial"),
    UnpairedStandForThemselves: ("plain", "no-dropout", "no_adv", "adversarial"),
    UnpairedAreDropped: ("plain", "no_ctr", "no_adv"),
    AdversarialNetworkReadsTheText: ("plain", "adversarial"),
    CleanNetworkReadsTheAttackedText: ("plain", "no_kl"),
    AttackedUnderTheTextsMasks: ("plain", "no_adv", "adversarial"),
    OneNetworkForBoth: ("plain", "no_kl", "no_ctr"),
    SelfDivergenceOfTheAttackedText: ("no_adv",),
}
