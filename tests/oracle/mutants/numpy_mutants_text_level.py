"""The transcriptions of the text-level systems with one plausible mistake each, and the cases that must show it."""

from dataclasses import replace

import numpy as np

from tests.oracle.texts.bat import BATPairwise, BATTriplet, at_least_zero
from tests.oracle.texts.text_level import A2T, ADA, SAFER, ADASoft, BaseAdv, BaseAdvSoft, classify, log_softmax


class CleanTextsToo(SAFER):
    def total(self, parameters, batch, draws):
        clean = self.cross_entropies(parameters, self.clean(parameters, batch, draws), batch)
        return (super().total(parameters, batch, draws) + self.mean(clean)) / 2


class MissingFickleTextsDropped(SAFER):
    def total(self, parameters, batch, draws):
        losses = self.cross_entropies(parameters, self.variant(parameters, batch, draws, "fickle"), batch)
        return self.masked_mean(losses, [e.fickle is not None for e in batch])


class MissingFickleTextsAreZero(SAFER):
    def total(self, parameters, batch, draws):
        return self.mean(self.cross_entropies(parameters, self.variant(parameters, batch, draws, "fickle"), batch))


class TheSentenceInItsPlace(SAFER):
    def total(self, parameters, batch, draws):
        return super().total(parameters, [replace(e, fickle=None) for e in batch], replace(draws, fickle=draws.clean))


class WithoutDropout(SAFER):
    def encoded(self, parameters, sentence, masks):
        return super().encoded(parameters, sentence, (None, None))


class MeanOverAllRows(BaseAdv):
    def masked_mean(self, row_losses, is_counted):
        return self.mean(row_losses)


class SumOfAttackedRows(BaseAdv):
    def masked_mean(self, row_losses, is_counted):
        return sum(row_losses)


class OneCountedMore(BaseAdv):
    """1 + count for max(1, count)."""

    def masked_mean(self, row_losses, is_counted):
        return sum(row_losses) / (1 + sum(is_counted))


class MissingTextsAreTheSentence(BaseAdv):
    def total(self, parameters, batch, draws):
        whole = [replace(e, adversarial=e.adversarial or e.sentence) for e in batch]
        return super().total(parameters, whole, draws)


class FoolsTheLabel(BaseAdv):
    """Trained towards another class than the true one."""

    def cross_entropy(self, parameters, encoded, label):
        return super().cross_entropy(parameters, encoded, (label + 1) % 5)


class HardTargets(BaseAdvSoft):
    def victim_probabilities(self, text):
        found = super().victim_probabilities(text)
        return np.eye(len(found))[found.argmax()]


class VictimsLogits(BaseAdvSoft):
    def victim_probabilities(self, text):
        return np.log(super().victim_probabilities(text))


class TargetsExchanged(BaseAdvSoft):
    """-sum of p log p_victim."""

    def soft_cross_entropy(self, probabilities, logits):
        return -(np.exp(log_softmax(logits)) * np.log(probabilities)).sum()


class KullbackLeiblerReversed(BaseAdvSoft):
    """KL(p || p_victim)."""

    def soft_cross_entropy(self, probabilities, logits):
        found = log_softmax(logits)
        return (np.exp(found) * (found - np.log(probabilities))).sum()


class MeanOverClasses(BaseAdvSoft):
    def soft_cross_entropy(self, probabilities, logits):
        return super().soft_cross_entropy(probabilities, logits) / len(probabilities)


class VictimOfTheSentence(BaseAdvSoft):
    """p_victim(x)."""

    def attacked_losses(self, parameters, batch, draws):
        of_text = {id(e.adversarial): e.sentence for e in batch}
        found = self.victim_probabilities
        self.victim_probabilities = lambda text: found(of_text[id(text)])
        try:
            return super().attacked_losses(parameters, batch, draws)
        finally:
            self.victim_probabilities = found


class TheModelItselfIsTheVictim(BaseAdvSoft):
    def attacked_losses(self, parameters, batch, draws):
        kept, self.victim = self.victim, {name: value.real for name, value in parameters.items()}
        try:
            return super().attacked_losses(parameters, batch, draws)
        finally:
            self.victim = kept


class HalfOfBoth(ADA):
    def combined(self, clean, attacked, batch):
        return super().combined(clean, attacked, batch) / 2


class MeanOverAttackedAlone(ADA):
    """A batch's few attacked texts as heavy as all of its clean ones."""

    def combined(self, clean, attacked, batch):
        return super().combined(clean, attacked * len(batch) / max(1, sum(self.is_attacked(batch))), batch)


class MeanOverAllTexts(ADA):
    def combined(self, clean, attacked, batch):
        num_texts = len(batch) + sum(self.is_attacked(batch))
        return super().combined(clean, attacked, batch) * len(batch) / num_texts


class WeightOnTheCleanTexts(ADA):
    def combined(self, clean, attacked, batch):
        return super().combined(attacked, clean, batch)


class CleanTextsSoftToo(ADASoft):
    def total(self, parameters, batch, draws):
        soft = [
            self.soft_cross_entropy(self.victim_probabilities(e.sentence), classify(parameters, h.pooled))
            for e, h in zip(batch, self.clean(parameters, batch, draws), strict=True)
        ]
        attacked = self.attacked_losses(parameters, batch, draws)
        return self.combined(self.mean(soft), self.mean(attacked), batch)


class MissingAttackedTextsAreTheSentence(A2T):
    def total(self, parameters, batch, draws):
        whole = [replace(e, adversarial=e.adversarial or e.sentence) for e in batch]
        return super().total(parameters, whole, draws)


class WeightsExchanged(BATPairwise):
    def balance(self, fickle, obstinate):
        o = self.options
        self.options = replace(o, weight_fickle=o.weight_obstinate, weight_obstinate=o.weight_fickle)
        try:
            return super().balance(fickle, obstinate)
        finally:
            self.options = o


class TextsExchanged(BATPairwise):
    """Obstinate texts pulled, fickle ones pushed."""

    def balance(self, fickle, obstinate):
        return super().balance(obstinate, fickle)


class PushedTogether(BATPairwise):
    """max(0, d - m)."""

    def push(self, d):
        return at_least_zero(d - self.options.margin)


class WithoutTheHinge(BATPairwise):
    def push(self, d):
        return self.options.margin - d


class SquaredDistance(BATPairwise):
    def pull(self, d):
        return d * d


class MeanOverTheBatch(BATPairwise):
    def masked_mean(self, row_losses, is_counted):
        return self.mean(row_losses)


class MeanOverRowsWithBoth(BATPairwise):
    """One count for both terms."""

    def balance(self, fickle, obstinate):
        both = [a is not None and b is not None for a, b in zip(fickle, obstinate)]
        kept = [[d if is_there else None for d, is_there in zip(of_one, both)] for of_one in (fickle, obstinate)]
        return super().balance(*kept)


class EveryClassFlips(BATPairwise):
    def has_obstinate(self, example):
        return example.obstinate is not None


class OtherClassesFlip(BATPairwise):
    def has_obstinate(self, example):
        return example.obstinate is not None and not super().has_obstinate(example)


class MissingObstinateTextsPushed(BATPairwise):
    """A missing text is the sentence: its distance is 0, its term m."""

    def mean_over_present(self, terms):
        self.num_calls = 1 - getattr(self, "num_calls", 1)
        if self.num_calls == 0:
            return super().mean_over_present(terms)
        return super().mean_over_present([self.options.margin if term is None else term for term in terms])


class CosineItself(BATPairwise):
    def distance(self, a, b):
        return self.cosine(a, b)


class HalfTheCosine(BATPairwise):
    """(1 - cos) / 2, between 0 and 1 as the paper says of the distance."""

    def distance(self, a, b):
        return (1 - self.cosine(a, b)) / 2


class EuclideanDistance(BATPairwise):
    def distance(self, a, b):
        return np.sqrt(((a - b) ** 2).sum())


class SentenceIsConstant(BATPairwise):
    """The gradient reaches the variant alone."""

    def distance(self, a, b):
        return super().distance(a.real, b)


class VariantIsConstant(BATPairwise):
    def distance(self, a, b):
        return super().distance(a, b.real)


class FirstVectorsAlways(BATPairwise):
    def vector(self, encoded):
        return encoded.pooled


class SumOfStates(BATPairwise):
    """No other cosine than the mean's: told apart by nothing but the maximum."""

    def vector(self, encoded):
        return encoded.states.sum(axis=0)


class LargestMagnitude(BATPairwise):
    def vector(self, encoded):
        states = encoded.states
        return states[np.abs(states.real).argmax(axis=0), np.arange(states.shape[1])]


class LastState(BATPairwise):
    def vector(self, encoded):
        return encoded.states[-1]


class CrossEntropyOfAllTexts(BATPairwise):
    """That of fickle texts too, as SAFER has it."""

    def total(self, parameters, batch, draws):
        fickle = self.cross_entropies(parameters, self.variant(parameters, batch, draws, "fickle"), batch)
        return super().total(parameters, batch, draws) + self.mean(fickle)


class HingePerPart(BATTriplet):
    """max(0, d_f) + max(0, m - d_o): the pairwise terms."""

    def row(self, fickle, obstinate):
        return super().row(fickle, None) + super().row(None, obstinate)


class RowsWithBothAlone(BATTriplet):
    def row(self, fickle, obstinate):
        return 0.0 if fickle is None or obstinate is None else super().row(fickle, obstinate)


class MeanOverRowsWithAny(BATTriplet):
    def balance(self, fickle, obstinate):
        num_any = sum(f is not None or o is not None for f, o in zip(fickle, obstinate))
        return super().balance(fickle, obstinate) * len(fickle) / max(1, num_any)


class MarginAlways(BATTriplet):
    """a_o masks d_o alone."""

    def row(self, fickle, obstinate):
        return super().row(fickle, 0.0 if obstinate is None else obstinate)


class MarginOfTheFickle(BATTriplet):
    """a_f (d_f + m) - a_o d_o."""

    def row(self, fickle, obstinate):
        pulled = 0.0 if fickle is None else fickle + self.options.margin
        return at_least_zero(pulled - (0.0 if obstinate is None else obstinate))


class TripletExchanged(BATTriplet):
    def row(self, fickle, obstinate):
        return super().row(obstinate, fickle)


class TripletWithoutTheHinge(BATTriplet):
    def row(self, fickle, obstinate):
        return (0.0 if fickle is None else fickle) + (0.0 if obstinate is None else self.options.margin - obstinate)


class TripletOfEveryClass(BATTriplet):
    def has_obstinate(self, example):
        return example.obstinate is not None


class WeightOnAll(BATTriplet):
    """lambda on the cross-entropy too."""

    def total(self, parameters, batch, draws):
        return super().total(parameters, batch, draws) * self.options.weight_triplet


_PAIRWISE = ("bat_pairwise", "bat_pairwise-no-dropout", "bat_pairwise-weighed")
MUTANTS = {
    CleanTextsToo: ("safer", "safer-no-dropout"),
    MissingFickleTextsDropped: ("safer", "safer-no-dropout"),
    MissingFickleTextsAreZero: ("safer",),
    TheSentenceInItsPlace: ("safer", "safer-no-dropout"),
    WithoutDropout: ("safer",),
    MeanOverAllRows: ("base_adv", "base_adv-no-dropout"),
    SumOfAttackedRows: ("base_adv",),
    OneCountedMore: ("base_adv",),
    MissingTextsAreTheSentence: ("base_adv", "base_adv-no-dropout"),
    FoolsTheLabel: ("base_adv",),
    HardTargets: ("base_adv_soft",),
    VictimsLogits: ("base_adv_soft",),
    TargetsExchanged: ("base_adv_soft", "base_adv_soft-no-dropout"),
    KullbackLeiblerReversed: ("base_adv_soft",),
    MeanOverClasses: ("base_adv_soft",),
    VictimOfTheSentence: ("base_adv_soft", "base_adv_soft-no-dropout"),
    TheModelItselfIsTheVictim: ("base_adv_soft", "base_adv_soft-no-dropout"),
    HalfOfBoth: ("ada",),
    MeanOverAttackedAlone: ("ada", "ada-weighed"),
    MeanOverAllTexts: ("ada",),
    WeightOnTheCleanTexts: ("ada-weighed",),
    CleanTextsSoftToo: ("ada_soft", "ada_soft-weighed"),
    MissingAttackedTextsAreTheSentence: ("a2t", "a2t-weighed"),
    WeightsExchanged: _PAIRWISE,
    TextsExchanged: _PAIRWISE,
    PushedTogether: _PAIRWISE,
    WithoutTheHinge: ("bat_pairwise-narrow",),
    SquaredDistance: _PAIRWISE,
    MeanOverTheBatch: _PAIRWISE,
    MeanOverRowsWithBoth: _PAIRWISE,
    EveryClassFlips: ("bat_pairwise-classes", "bat_pairwise-no-class"),
    OtherClassesFlip: ("bat_pairwise-classes", "bat_pairwise-no-class"),
    MissingObstinateTextsPushed: _PAIRWISE,
    CosineItself: _PAIRWISE,
    HalfTheCosine: _PAIRWISE,
    EuclideanDistance: _PAIRWISE,
    SentenceIsConstant: _PAIRWISE,
    VariantIsConstant: _PAIRWISE,
    FirstVectorsAlways: ("bat_pairwise-mean", "bat_pairwise-max"),
    SumOfStates: ("bat_pairwise-max",),
    LargestMagnitude: ("bat_pairwise-max",),
    LastState: ("bat_pairwise-mean", "bat_pairwise-max"),
    CrossEntropyOfAllTexts: _PAIRWISE,
    HingePerPart: ("bat_triplet-narrow",),
    RowsWithBothAlone: ("bat_triplet", "bat_triplet-weighed"),
    MeanOverRowsWithAny: ("bat_triplet",),
    MarginAlways: ("bat_triplet", "bat_triplet-narrow"),
    MarginOfTheFickle: ("bat_triplet",),
    TripletExchanged: ("bat_triplet", "bat_triplet-narrow"),
    TripletWithoutTheHinge: ("bat_triplet-narrow",),
    TripletOfEveryClass: ("bat_triplet-classes", "bat_triplet-no-class"),
    WeightOnAll: ("bat_triplet-weighed",),
}
