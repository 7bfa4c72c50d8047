"""CARL transcribed from METHODS.md section 4 into numpy float64, the drawn negatives given.

    R, R_adv   h of the clean pass and of the last of FreeLB's passes, L2-normalised
    s(a, b)    exp(a . b / tau)
    L_o        R against R_adv, negatives out of the adversarial bank;  L_a  R_adv against R, out of the original one
    L          L_C + L_o + L_a

What the page leaves open, and what is taken here: Z is each bank's own; its mean is over all scores of the first batch
that has negatives, the positives' too (as in Tian et al. 2020, whom the paper adapts); a row without negatives has
L_o = L_a = 0 and counts in the mean; one draw serves both banks; banks are renormalised where R is normalised.
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle.classes.free_passes import FreeLB, PassOptions
from tests.oracle.sentences.contrastive import log_sum_exp
from tests.oracle.toy_encoder import HIDDEN_SIZE

ORIGINAL, ADVERSARIAL = 0, 1


@dataclass(frozen=True)
class CarlOptions(PassOptions):
    estimator: str = "nce"
    temperature: float = 0.07
    momentum: float = 0.5
    normalize: bool = True
    num_negatives: int = 7


class CARL(FreeLB):
    """With its state: two banks of ``num_rows`` rows, which of them were written, and Z once it is fixed."""

    def __init__(self, options, parameters, num_rows):
        super().__init__(options, parameters)
        self.banks = np.zeros((2, num_rows, HIDDEN_SIZE))
        self.written = np.zeros(num_rows, dtype=bool)
        self.z = [None, None]

    def normalised(self, vector):
        """No conjugate: analytic in complex entries."""
        return vector / np.sqrt((vector * vector).sum()) if self.options.normalize else vector

    def representations(self, batch, of_passes, draws, parameters):
        """(R of every example, R_adv of every example)."""
        clean = self.encoded(self.embedded(batch, draws, parameters), draws.clean, parameters)
        return [self.normalised(h) for h in clean], [self.normalised(h) for h in of_passes[-1]]

    def score_exponent(self, a, b):
        return (a * b).sum() / self.options.temperature

    def negatives(self, side, rows):
        """Constants, out of the bank opposite to the anchor on ``side``."""
        return self.banks[1 - side][rows]

    def exponents(self, side, anchor, other, rows):
        """log s of the positive, and of the negatives."""
        return self.score_exponent(anchor, other), [
            self.score_exponent(anchor, row) for row in self.negatives(side, rows)
        ]

    def row_loss(self, side, anchor, other, rows):
        positive, negatives = self.exponents(side, anchor, other, rows)
        if self.options.estimator == "softmax":
            return self.softmax(positive, negatives)
        return self.nce(positive, negatives, self.z[side])

    def softmax(self, positive, negatives):
        """The positive outside the sum, as printed."""
        return log_sum_exp(negatives) - positive

    def nce(self, positive, negatives, z):
        """P = s / (s + m Z / n);  -log P+ - sum log(1 - P-)."""
        noise = len(negatives) * z / len(self.written)
        loss = np.log1p(noise / np.exp(positive))
        for exponent in negatives:
            loss = loss + np.log1p(np.exp(exponent) / noise)
        return loss

    def fix_z(self, pairs, draws):
        """Z = n mean s of the first batch, of each side; then it stays."""
        for side in (ORIGINAL, ADVERSARIAL):
            scores = []
            for pair, rows in zip(pairs, draws.negatives, strict=True):
                if rows is not None and self.options.estimator == "nce":
                    positive, negatives = self.exponents(side, pair[side], pair[1 - side], rows)
                    scores += [np.exp(positive), *np.exp(negatives)]
            if scores and self.z[side] is None:
                self.z[side] = len(self.written) * sum(scores) / len(scores)

    def contrast(self, pairs, draws):
        """{L_o, L_a} of all rows' (R, R_adv)."""
        losses = {}
        for side, name in ((ORIGINAL, "original"), (ADVERSARIAL, "adversarial")):
            parts = [
                0.0 if rows is None else self.row_loss(side, pair[side], pair[1 - side], rows)
                for pair, rows in zip(pairs, draws.negatives, strict=True)
            ]
            losses[name] = sum(parts) / len(pairs)
        return losses

    def terms(self, batch, deltas, draws, parameters):
        of_passes = self.passes(batch, deltas, draws, parameters)
        found = {"classification": self.classification(batch, of_passes, parameters)}
        if draws.negatives is not None:
            pairs = list(zip(*self.representations(batch, of_passes, draws, parameters), strict=True))
            found.update(self.contrast(pairs, draws))
        return found

    def write(self, row, side, vector):
        """B[i] <- M B[i] + (1 - M) R_i, renormalised; the first time B[i] <- R_i."""
        momentum = self.options.momentum if self.written[row] else 0.0
        self.banks[side][row] = self.normalised(momentum * self.banks[side][row] + (1 - momentum) * vector)

    def write_batch(self, batch, originals, adversarials):
        for example, original, adversarial in zip(batch, originals, adversarials, strict=True):
            self.write(example.row, ORIGINAL, original)
            self.write(example.row, ADVERSARIAL, adversarial)
            self.written[example.row] = True

    def step(self, batch, draws, is_written=True):
        """One training step up to its end, the banks written: (loss, deltas)."""
        deltas = self.deltas(batch, draws)
        of_passes = self.passes(batch, deltas, draws, self.parameters)
        originals, adversarials = self.representations(batch, of_passes, draws, self.parameters)
        if draws.negatives is not None:
            self.fix_z(list(zip(originals, adversarials, strict=True)), draws)
        loss = self.loss(batch, deltas, draws)
        # What the loss has read, for whoever differentiates it afterwards.
        self.banks_before = self.banks.copy()
        if is_written:
            self.write_batch(batch, originals, adversarials)
        return loss, deltas
