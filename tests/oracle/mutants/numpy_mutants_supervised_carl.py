"""The transcription of CARL with one plausible mistake each, and the cases that must show it."""

from dataclasses import replace

import numpy as np

from tests.oracle.classes.carl import ADVERSARIAL, CARL, ORIGINAL
from tests.oracle.classes.free_passes import FreeLB
from tests.oracle.sentences.contrastive import log_sum_exp


class NegativesOfTheSameBank(CARL):
    def negatives(self, side, rows):
        return self.banks[side][rows]


class NegativesShifted(CARL):
    """The bank's next row in place of the row."""

    def negatives(self, side, rows):
        return super().negatives(side, [(row + 1) % len(self.written) for row in rows])


class FirstNegativesOnly(CARL):
    def negatives(self, side, rows):
        return super().negatives(side, rows[:-1])


class NegativesOfTheFirstRowForAll(CARL):
    def contrast(self, pairs, draws):
        first = draws.negatives[0]
        return super().contrast(pairs, replace(draws, negatives=[rows and first for rows in draws.negatives]))


class PositiveInTheSum(CARL):
    """InfoNCE's usual denominator."""

    def softmax(self, positive, negatives):
        return log_sum_exp([positive, *negatives]) - positive


class MeanOfNegativesInSoftmax(CARL):
    def softmax(self, positive, negatives):
        return log_sum_exp(negatives) - np.log(len(negatives)) - positive


class OtherSideIsConstant(CARL):
    """The positive's gradient reaches the anchor alone."""

    def exponents(self, side, anchor, other, rows):
        return super().exponents(side, anchor, other.real, rows)


class CleanPassIsConstant(CARL):
    def representations(self, *arguments):
        originals, adversarials = super().representations(*arguments)
        return [r.real for r in originals], adversarials


class TermAnchoredOnOriginalOnly(CARL):
    def contrast(self, pairs, draws):
        return {"original": super().contrast(pairs, draws)["original"]}


class HalfOfBothTerms(CARL):
    def contrast(self, pairs, draws):
        return {name: value / 2 for name, value in super().contrast(pairs, draws).items()}


class ContrastSharedByPasses(CARL):
    """L_D weighed as one of the n passes."""

    def contrast(self, pairs, draws):
        return {name: value / self.options.num_passes for name, value in super().contrast(pairs, draws).items()}


class ContrastOfTheFirstPass(CARL):
    def representations(self, batch, of_passes, draws, parameters):
        return super().representations(batch, of_passes[:1], draws, parameters)


class CleanPassUnderThePassesMask(CARL):
    def representations(self, batch, of_passes, draws, parameters):
        return super().representations(batch, of_passes, replace(draws, clean=self._mixed(draws)), parameters)

    @staticmethod
    def _mixed(draws):
        return None if draws.clean is None else replace(draws.clean, inner=draws.passes.inner)


class Unnormalised(CARL):
    def normalised(self, vector):
        return vector


class TemperatureMultiplied(CARL):
    def score_exponent(self, a, b):
        return (a * b).sum() * self.options.temperature


class SumOverRows(CARL):
    def contrast(self, pairs, draws):
        return {name: value * len(pairs) for name, value in super().contrast(pairs, draws).items()}


class MeanOverNegatives(CARL):
    def nce(self, positive, negatives, z):
        own = super().nce(positive, [], z) if not negatives else self._positive_part(positive, negatives, z)
        return own + (super().nce(positive, negatives, z) - own) / len(negatives)

    def _positive_part(self, positive, negatives, z):
        return np.log1p(len(negatives) * z / len(self.written) / np.exp(positive))


class NoiseWithoutCount(CARL):
    """Z / n for m Z / n."""

    def nce(self, positive, negatives, z):
        return super().nce(positive, negatives, z / len(negatives))


class NoiseWithoutBankSize(CARL):
    def nce(self, positive, negatives, z):
        return super().nce(positive, negatives, z * len(self.written))


class ZOfTheNegativesAlone(CARL):
    def fix_z(self, pairs, draws):
        if self.z[0] is None:
            for side in (ORIGINAL, ADVERSARIAL):
                scores = [
                    np.exp(e)
                    for pair, rows in zip(pairs, draws.negatives, strict=True)
                    if rows is not None
                    for e in self.exponents(side, pair[side], pair[1 - side], rows)[1]
                ]
                self.z[side] = len(self.written) * sum(scores) / len(scores)


class ZOfEveryBatch(CARL):
    def fix_z(self, pairs, draws):
        self.z = [None, None]
        super().fix_z(pairs, draws)


class OneZForBothBanks(CARL):
    def fix_z(self, pairs, draws):
        super().fix_z(pairs, draws)
        self.z[1] = self.z[0]


class PositiveWithoutNoise(CARL):
    """P+ left at 1: the attraction is gone."""

    def nce(self, positive, negatives, z):
        return super().nce(positive, negatives, z) - np.log1p(len(negatives) * z / len(self.written) / np.exp(positive))


class WrittenBeforeTheLoss(CARL):
    def step(self, batch, draws, is_written=True):
        deltas = self.deltas(batch, draws)
        of_passes = self.passes(batch, deltas, draws, self.parameters)
        self.write_batch(batch, *self.representations(batch, of_passes, draws, self.parameters))
        return super().step(batch, draws, is_written=False)


class MomentumOfTheNew(CARL):
    """(1 - M) B[i] + M R_i."""

    def write(self, row, side, vector):
        kept = self.options
        self.options = replace(kept, momentum=1 - kept.momentum)
        try:
            super().write(row, side, vector)
        finally:
            self.options = kept


class MomentumIgnored(CARL):
    def write(self, row, side, vector):
        self.banks[side][row] = self.normalised(vector)


class FirstWriteWithMomentum(CARL):
    """Seen where nothing renormalises."""

    def write(self, row, side, vector):
        momentum = self.options.momentum
        self.banks[side][row] = self.normalised(momentum * self.banks[side][row] + (1 - momentum) * vector)


class BankNotRenormalised(CARL):
    def write(self, row, side, vector):
        momentum = self.options.momentum if self.written[row] else 0.0
        self.banks[side][row] = momentum * self.banks[side][row] + (1 - momentum) * vector


class BanksSwapped(CARL):
    def write(self, row, side, vector):
        super().write(row, 1 - side, vector)


class BothBanksGetTheOriginal(CARL):
    def write_batch(self, batch, originals, adversarials):
        super().write_batch(batch, originals, originals)


class RepeatedRowWrittenOnce(CARL):
    """The last of a row's two vectors, as a plain scatter has it."""

    def write_batch(self, batch, originals, adversarials):
        last = {example.row: i for i, example in enumerate(batch)}.values()
        super().write_batch([batch[i] for i in last], [originals[i] for i in last], [adversarials[i] for i in last])


class WrittenByPosition(CARL):
    """The place in the batch for the row of the training data."""

    def write_batch(self, batch, originals, adversarials):
        moved = [replace(example, row=i) for i, example in enumerate(batch)]
        super().write_batch(moved, originals, adversarials)


class ContrastLeftOut(CARL):
    def terms(self, *arguments):
        return FreeLB.terms(self, *arguments)


NCE, SOFTMAX = ("carl-nce-plain", "carl-nce-per-row"), ("carl-softmax-plain", "carl-softmax-per-row")
BOTH, RAW = NCE + SOFTMAX, ("carl-nce-raw", "carl-softmax-raw")
SLOW = ("carl-nce-slow", "carl-softmax-slow")
MUTANTS = {
    NegativesOfTheSameBank: BOTH,
    NegativesShifted: BOTH,
    FirstNegativesOnly: BOTH,
    NegativesOfTheFirstRowForAll: BOTH,
    PositiveInTheSum: SOFTMAX,
    MeanOfNegativesInSoftmax: SOFTMAX,
    OtherSideIsConstant: BOTH,
    CleanPassIsConstant: BOTH,
    TermAnchoredOnOriginalOnly: BOTH,
    HalfOfBothTerms: BOTH,
    ContrastSharedByPasses: BOTH,
    ContrastOfTheFirstPass: BOTH,
    CleanPassUnderThePassesMask: BOTH,
    Unnormalised: SLOW,
    TemperatureMultiplied: BOTH,
    SumOverRows: BOTH,
    MeanOverNegatives: NCE,
    NoiseWithoutCount: NCE,
    NoiseWithoutBankSize: NCE,
    ZOfTheNegativesAlone: NCE,
    ZOfEveryBatch: NCE,
    OneZForBothBanks: NCE,
    PositiveWithoutNoise: NCE,
    WrittenBeforeTheLoss: BOTH,
    MomentumOfTheNew: SLOW,
    MomentumIgnored: BOTH,
    FirstWriteWithMomentum: RAW,
    BankNotRenormalised: BOTH,
    BanksSwapped: BOTH,
    BothBanksGetTheOriginal: BOTH,
    RepeatedRowWrittenOnce: BOTH,
    WrittenByPosition: BOTH,
    ContrastLeftOut: BOTH,
}
