"""FreeLB's passes transcribed from METHODS.md sections 1 and 4 into numpy float64: n passes that all train.

Of the page alone, and sharing nothing with fastadv: a batch is a list of examples, what concerns its tokens a list of
(n, E) arrays, one an example. Every step is a method of its own, which a mutant overrides.

    delta_1 = U(-1, 1) sigma / sqrt(len E), projected;  delta_(t+1) = Pi(delta_t + alpha dir(g_t)), l2 of a sentence
    L_C     = mean over the n passes of the mean over rows of CE(f(X + delta_t)), all under one dropout mask
"""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.sentences.ball import direction, project
from tests.oracle.sentences.contrastive import log_sum_exp
from tests.oracle.toy_encoder import EMBEDDING_SIZE, HIDDEN_SIZE, Masks, Sentence


@dataclass(frozen=True)
class Example:
    sentence: Sentence
    label: int
    row: int
    """of the training data"""


@dataclass(frozen=True)
class PassOptions:
    num_passes: int = 3
    alpha: float = 0.15
    sigma: float = 0.4
    """gamma_0"""
    epsilon: Optional[float] = None
    """None is no ball"""


@dataclass(frozen=True)
class Draws:
    """Random numbers of one step, made by the other side."""

    uniform: list
    """one (n, E) array of U(-1, 1) an example"""
    clean: Optional[Masks] = None
    """of X and of the clean pass; None is no dropout"""
    passes: Optional[Masks] = None
    """of the encoder in every pass; X has its mask already, so only ``inner`` is of meaning"""
    negatives: Optional[list] = None
    """CARL's: rows of the banks, one list an example, or None for an example that has none"""


def make_classifier_parameters(num_classes, seed=2):
    rng = np.random.default_rng(seed)
    return {
        "class_weight": rng.normal(size=(num_classes, HIDDEN_SIZE)),
        "class_bias": rng.normal(size=num_classes) * 0.2,
    }


class FreeLB:
    """L = L_C; ``parameters`` are the toy encoder's without a head, and the classifier's."""

    def __init__(self, options, parameters):
        self.options = options
        self.parameters = parameters

    def embedded(self, batch, draws, parameters=None):
        """X of every example; one for all passes."""
        masks = [None] * len(batch) if draws.clean is None else draws.clean.embedding
        parameters = self.parameters if parameters is None else parameters
        return [toy_encoder.embed(parameters, e.sentence, m) for e, m in zip(batch, masks, strict=True)]

    def encoded(self, xs, masks, parameters=None):
        """h of every example."""
        inner = [None] * len(xs) if masks is None else masks.inner
        parameters = self.parameters if parameters is None else parameters
        return [toy_encoder.forward(parameters, x, m)[0] for x, m in zip(xs, inner, strict=True)]

    def logits(self, parameters, h):
        return parameters["class_weight"] @ h + parameters["class_bias"]

    def cross_entropy(self, parameters, h, label):
        logits = self.logits(parameters, h)
        return log_sum_exp(logits) - logits[label]

    # The passes

    def start(self, x, uniform):
        """Divided by the root of all entries of the sentence, not of one token."""
        return project(self.options.sigma * uniform / np.sqrt(x.size), self.options.epsilon, "l2")

    def gradient(self, point, label, mask):
        """Of one example's cross-entropy by its embeddings."""
        h, saved = toy_encoder.forward(self.parameters, point, mask)
        logits = self.logits(self.parameters, h)
        probabilities = np.exp(logits - log_sum_exp(logits))
        probabilities[label] -= 1
        return toy_encoder.backward(self.parameters, saved, self.parameters["class_weight"].T @ probabilities, mask)

    def moved(self, delta, gradient):
        return project(delta + self.options.alpha * direction(gradient, "l2"), self.options.epsilon, "l2")

    def deltas(self, batch, draws):
        """delta_1 ... delta_n, a list of arrays each; after the last pass nothing moves."""
        xs = self.embedded(batch, draws)
        inner = [None] * len(batch) if draws.passes is None else draws.passes.inner
        found = [[self.start(x, u) for x, u in zip(xs, draws.uniform, strict=True)]]
        for _ in range(self.options.num_passes - 1):
            moved = []
            for example, x, delta, mask in zip(batch, xs, found[-1], inner, strict=True):
                moved.append(self.moved(delta, self.gradient(x + delta, example.label, mask)))
            found.append(moved)
        return found

    # The loss, deltas held constant

    def passes(self, batch, deltas, draws, parameters):
        """h of every example, of every pass."""
        xs = self.embedded(batch, draws, parameters)
        return [
            self.encoded([x + d for x, d in zip(xs, delta, strict=True)], draws.passes, parameters) for delta in deltas
        ]

    def classification(self, batch, of_passes, parameters):
        """L_C."""
        means = []
        for hs in of_passes:
            losses = [self.cross_entropy(parameters, h, e.label) for e, h in zip(batch, hs, strict=True)]
            means.append(sum(losses) / len(losses))
        return self.over_passes(means)

    def over_passes(self, means):
        return sum(means) / len(means)

    def terms(self, batch, deltas, draws, parameters):
        """What the loss adds up, by name."""
        of_passes = self.passes(batch, deltas, draws, parameters)
        return {"classification": self.classification(batch, of_passes, parameters)}

    def loss(self, batch, deltas, draws, parameters=None):
        parameters = self.parameters if parameters is None else parameters
        return sum(self.terms(batch, deltas, draws, parameters).values())

    def step(self, batch, draws):
        """One training step up to its end: (loss, deltas)."""
        deltas = self.deltas(batch, draws)
        return self.loss(batch, deltas, draws), deltas


def random_draws(batch, seed=0, with_dropout=True, num_negatives=0, num_rows=0):
    """For the transcription alone."""
    rng = np.random.default_rng(seed)

    def masks(width):
        return [rng.choice([0.0, 4 / 3], p=[0.25, 0.75], size=(e.sentence.length, width)) for e in batch]

    uniform = [rng.uniform(-1, 1, size=(e.sentence.length, EMBEDDING_SIZE)) for e in batch]
    clean = passes = None
    if with_dropout:
        clean = Masks(masks(EMBEDDING_SIZE), masks(toy_encoder.INNER_SIZE))
        passes = Masks(None, masks(toy_encoder.INNER_SIZE))
    negatives = [list(rng.integers(num_rows, size=num_negatives)) for _ in batch] if num_negatives else None
    return Draws(uniform, clean, passes, negatives)
