"""Balanced Adversarial Training transcribed from METHODS.md section 4 into numpy float64, on the toy encoder.

    d(a, b)   = 1 - cos(a, b) of the [CLS] vectors, or of the mean or the largest entries of the token states
    Pairwise  = CE + alpha d(x, x_f) + beta max(0, m - d(x, x_o)), each a masked sum / max(1, count)
    Triplet   = CE + lambda mean over all B of max(0, a_f d_f + a_o (m - d_o)), a = 1 where present

x_o counts for some classes alone (`obstinate_labels`): entailment and contradiction, or duplicates. CE is of x, of
every row. The toy encoder's pooled vector stands for the [CLS] vector.
"""

import numpy as np

from tests.oracle.texts.text_level import FineTuning


def at_least_zero(value):
    return value if value.real > 0 else 0.0


class BAT(FineTuning):
    """What both have: rows' (d_f, d_o), each None where its text is missing or does not count."""

    def vector(self, encoded):
        """(D,) what distances are between."""
        kind, states = self.options.distance_of, encoded.states
        if kind == "cls":
            return encoded.pooled
        if kind == "mean":
            return states.sum(axis=0) / len(states)
        return states[states.real.argmax(axis=0), np.arange(states.shape[1])]

    def cosine(self, a, b):
        return (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())

    def distance(self, a, b):
        return 1 - self.cosine(a, b)

    def has_fickle(self, example):
        return example.fickle is not None

    def has_obstinate(self, example):
        allowed = self.options.obstinate_labels
        return example.obstinate is not None and (allowed is None or example.label in allowed)

    def distances(self, parameters, batch, draws, clean):
        found = []
        for name, is_there in (("fickle", self.has_fickle), ("obstinate", self.has_obstinate)):
            passes = self.variant(parameters, batch, draws, name)
            found.append(
                [
                    self.distance(self.vector(x), self.vector(other)) if is_there(example) else None
                    for x, other, example in zip(clean, passes, batch, strict=True)
                ]
            )
        return found

    def total(self, parameters, batch, draws):
        clean = self.clean(parameters, batch, draws)
        cross_entropy = self.mean(self.cross_entropies(parameters, clean, batch))
        return cross_entropy + self.balance(*self.distances(parameters, batch, draws, clean))


class BATPairwise(BAT):
    def pull(self, d):
        return d

    def push(self, d):
        return at_least_zero(self.options.margin - d)

    def mean_over_present(self, terms):
        is_there = [term is not None for term in terms]
        return self.masked_mean([0.0 if term is None else term for term in terms], is_there)

    def balance(self, fickle, obstinate):
        o = self.options
        pulled = self.mean_over_present([None if d is None else self.pull(d) for d in fickle])
        pushed = self.mean_over_present([None if d is None else self.push(d) for d in obstinate])
        return o.weight_fickle * pulled + o.weight_obstinate * pushed


class BATTriplet(BAT):
    def row(self, fickle, obstinate):
        pulled = 0.0 if fickle is None else fickle
        pushed = 0.0 if obstinate is None else self.options.margin - obstinate
        return at_least_zero(pulled + pushed)

    def balance(self, fickle, obstinate):
        rows = [self.row(*of_row) for of_row in zip(fickle, obstinate, strict=True)]
        return self.options.weight_triplet * self.mean(rows)
