"""SMART transcribed from METHODS.md section 4 into numpy.

What the page leaves open, and what is taken here:
    * in the search f(X) stands under the masks of f(X + delta): the clean pass's (frozen), or none (off);
    * both sides of an outer l_s have a gradient, but for the average model's logits;
    * delta's start is projected before the first gradient, as every start is (section 1);
    * the average starts at the parameters the run starts with, and moves after each optimizer step t = 1 ... total by
      0.99 where t <= total / 10, else by 0.999.
"""

import numpy as np

from tests.oracle.classes.classification import NO_MASKS, Attacked, classify, log_softmax
from tests.oracle.transcription import added


def symmetric_kl(one, other):
    """KL(p || q) + KL(q || p) of two rows of logits (C,)."""
    log_p, log_q = log_softmax(one), log_softmax(other)
    return ((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)).sum()


def symmetric_kl_gradient(one, other):
    """d l_s / d one: p (r - sum p r) + (p - q) with r = log p - log q."""
    log_p, log_q = log_softmax(one), log_softmax(other)
    p, r = np.exp(log_p), log_p - log_q
    return p * (r - (p * r).sum()) + p - np.exp(log_q)


class SMART(Attacked):
    """L = CE(x) + lambda_s mean l_s(f(X + delta), f(X)) + mu mean l_s(f(X; theta), f(X; average))."""

    def __init__(self, options, parameters, table):
        super().__init__(options, parameters, table)
        self.average = {name: values.copy() for name, values in parameters.items()}
        self.num_updates = 0

    def logits(self, vectors, parameters=None):
        parameters = self.parameters if parameters is None else parameters
        return [classify(parameters, h) for h in vectors]

    def what_the_search_is_given(self, x, batch, masks):
        """Logits of f(X), constants."""
        return self.logits(self.vectors(x, masks))

    def gradient_by_logits(self, logits, sentence, row, keys):
        return symmetric_kl_gradient(logits, keys[row])

    def inner_loss(self, vectors, keys, batch):
        return sum(symmetric_kl(*pair) for pair in zip(self.logits(vectors), keys, strict=True))

    def mean_symmetric_kl(self, ones, others):
        return sum(symmetric_kl(*pair) for pair in zip(ones, others, strict=True)) / len(ones)

    def average_logits(self, batch):
        """Of the average model in eval mode, constants."""
        return self.logits(self.vectors(self.embedded(batch, None, self.average), None, self.average), self.average)

    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        x = self.embedded(batch, views.clean, parameters)
        clean = self.vectors(x, views.clean, parameters)
        attacked = self.vectors(added(x, delta), views.adversarial, parameters)
        clean_logits, attacked_logits = (self.logits(h, parameters) for h in (clean, attacked))
        smoothness = self.mean_symmetric_kl(attacked_logits, clean_logits)
        momentum = self.mean_symmetric_kl(clean_logits, self.average_logits(batch))
        o = self.options
        return (
            self.mean_cross_entropy(clean, batch, parameters)
            + o.weight_smoothness * smoothness
            + o.weight_momentum * momentum
        )

    def decay(self, t):
        return 0.99 if t <= self.options.total_steps / 10 else 0.999

    def commit(self):
        """After an optimizer step, which has changed ``parameters``."""
        self.num_updates += 1
        decay = self.decay(self.num_updates)
        self.average = {
            name: decay * values + (1 - decay) * self.parameters[name] for name, values in self.average.items()
        }
