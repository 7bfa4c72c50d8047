"""Fine-tuning, adversarial training and FreeLB transcribed from METHODS.md sections 1 and 4 into numpy float64.

Of the toy encoder's h (D,):

    logits = out_weight tanh(dense_weight h + dense_bias) + out_bias          (C,)
    CE     = logsumexp(logits) - logits[label]

What the page leaves open, and what is taken here:
    * the attack is searched on the SUM over rows of CE, so that the size of the batch cancels;
    * FreeLB has no clean pass: its loss is the mean of its passes', the first of which stands at the start.

Shapes: dense_weight (D, D), dense_bias (D,), out_weight (C, D), out_bias (C,).
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.sentences.contrastive import log_sum_exp
from tests.oracle.sentences.uscal import USCAL
from tests.oracle.transcription import Found, Options, RobustSentEmbed, StepResult, Views, added

NUM_CLASSES = 5
NO_MASKS = Views()


@dataclass(frozen=True)
class ClassifierOptions(Options):
    """The named choices of METHODS.md section 4 beside those of section 1."""

    start: str = "token"
    """of delta: U(-sigma, sigma)/sqrt(E), sentence: U(-sigma, sigma)/sqrt(len E), normal: N(0, sigma^2)"""
    weight_clean: float = 0.3
    """w of adversarial training"""
    weight_contrastive: float = 0.7
    """alpha of SCAL"""
    weight_smoothness: float = 1.0
    """lambda_s of SMART"""
    weight_momentum: float = 1.0
    """mu of SMART"""
    total_steps: int = 20
    """of the run, for SMART's average"""


@dataclass(frozen=True)
class FreeFound(Found):
    passes: tuple = ()
    """delta of each pass of FreeLB"""


def make_classifier_parameters(seed=5):
    """Logits of some 1 to 3, so that no probability is near 0 or 1."""
    rng = np.random.default_rng(seed)
    hidden = toy_encoder.HIDDEN_SIZE
    return {
        "dense_weight": rng.normal(size=(hidden, hidden)) * 0.8,
        "dense_bias": rng.normal(size=hidden) * 0.2,
        "out_weight": rng.normal(size=(NUM_CLASSES, hidden)) * 1.2,
        "out_bias": rng.normal(size=NUM_CLASSES) * 0.3,
    }


def classify(parameters, h):
    """Logits (C,) of h (D,)."""
    hidden = np.tanh(parameters["dense_weight"] @ h + parameters["dense_bias"])
    return parameters["out_weight"] @ hidden + parameters["out_bias"]


def gradient_by_h(parameters, h, grad_logits):
    """d loss / dh (D,) from d loss / d logits (C,)."""
    hidden = np.tanh(parameters["dense_weight"] @ h + parameters["dense_bias"])
    return parameters["dense_weight"].T @ ((parameters["out_weight"].T @ grad_logits) * (1 - hidden * hidden))


def log_softmax(logits):
    return logits - log_sum_exp(logits)


def cross_entropy(logits, label):
    return -log_softmax(logits)[label]


def cross_entropy_gradient(logits, label):
    """softmax - onehot, the label's own as minus the sum of the others: no digit is lost where it nears 1."""
    gradient = np.exp(log_softmax(logits))
    gradient[label] = 0.0
    gradient[label] = -gradient.sum()
    return gradient


def without_head(parameters):
    """The encoder's parameters, so that its forward ends at h."""
    return {name: values for name, values in parameters.items() if not name.startswith("head_")}


class FineTuning(USCAL):
    """L = CE(x), the mean over rows. Nothing is searched."""

    def vectors(self, xs, masks=None, parameters=None):
        """h of every sentence."""
        parameters = self.parameters if parameters is None else parameters
        return super().vectors(xs, masks, without_head(parameters))

    def mean_cross_entropy(self, vectors, batch, parameters=None):
        parameters = self.parameters if parameters is None else parameters
        pairs = zip(vectors, batch, strict=True)
        return sum(cross_entropy(classify(parameters, h), sentence.label) for h, sentence in pairs) / len(batch)

    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        x = self.embedded(batch, views.clean, parameters)
        return self.mean_cross_entropy(self.vectors(x, views.clean, parameters), batch, parameters)

    def step(self, batch, uniform, views=NO_MASKS):
        return StepResult(None, self.table, self.loss(batch, None, views))


class Attacked(FineTuning):
    """A system that searches delta on cross-entropy, by FGSM, FGM or PGD."""

    def start_delta(self, batch, uniform):
        """``uniform``: U(-1, 1), or N(0, 1) for the normal start."""
        if self.options.start == "token":
            return super().start_delta(batch, uniform)
        return [
            self.keep_perturbed(sentence, self.scale_of_start(sentence) * u)
            for sentence, u in zip(batch, uniform, strict=True)
        ]

    def scale_of_start(self, sentence):
        if self.options.start == "normal":
            return self.options.sigma
        return self.options.sigma / np.sqrt(sentence.length * toy_encoder.EMBEDDING_SIZE)

    def inner_loss(self, vectors, keys, batch):
        return len(batch) * self.mean_cross_entropy(vectors, batch)

    def gradient_by_logits(self, logits, sentence, row, keys):
        """Of the inner loss; ``keys`` is whatever the search was given."""
        return cross_entropy_gradient(logits, sentence.label)

    def inner_gradient(self, points, batch, keys, masks):
        encoder = without_head(self.parameters)
        inner = [None] * len(points) if masks is None else masks.inner
        gradients = []
        for row, (x, mask, sentence) in enumerate(zip(points, inner, batch, strict=True)):
            h, saved = toy_encoder.forward(encoder, x, mask)
            by_logits = self.gradient_by_logits(classify(self.parameters, h), sentence, row, keys)
            by_x = toy_encoder.backward(encoder, saved, gradient_by_h(self.parameters, h, by_logits), mask)
            gradients.append(self.keep_perturbed(sentence, by_x))
        return gradients

    def search(self, x, batch, keys, uniform, masks=None):
        if self.options.method in ("fgm", "fgsm"):
            return super().search(x, batch, keys, uniform, masks)
        return RobustSentEmbed.search(self, x, batch, keys, uniform, masks)

    def chain_weights(self):
        """PGD alone."""
        return 1, 0

    def what_the_search_is_given(self, x, batch, masks):
        return None

    def step(self, batch, uniform, views=NO_MASKS):
        x = self.embedded(batch, views.clean)
        frozen = views.clean if self.options.inner_dropout == "frozen" else None
        found = self.search(x, batch, self.what_the_search_is_given(x, batch, frozen), uniform, frozen)
        return StepResult(found, self.table, self.loss(batch, found.delta, views))


class AdversarialTraining(Attacked):
    """L = w CE(x) + (1 - w) CE(x_adv)."""

    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        x = self.embedded(batch, views.clean, parameters)
        clean = self.vectors(x, views.clean, parameters)
        attacked = self.vectors(added(x, delta), views.adversarial, parameters)
        return self.combined(*(self.mean_cross_entropy(h, batch, parameters) for h in (clean, attacked)))

    def combined(self, clean, attacked):
        w = self.options.weight_clean
        return w * clean + (1 - w) * attacked


class FreeLB(Attacked):
    """L = mean over the passes of CE(f(X + delta_t)), one dropout mask for all; l2 ascent from the sentence's start."""

    def step(self, batch, uniform, views=NO_MASKS):
        x = self.embedded(batch, views.clean)
        sizes = [self.sizes(sentence, x_s) for sentence, x_s in zip(batch, x, strict=True)]
        start = self.start_delta(batch, uniform)
        delta = [self.project_delta(d, size) for d, size in zip(start, sizes, strict=True)]
        passes = []
        for t in range(1, self.num_passes() + 1):
            passes.append(delta)
            if self.moves_after(t):
                gradients = self.inner_gradient(self.searched_at(x, delta), batch, None, views.adversarial)
                delta = self.pgd_step(delta, gradients, sizes)
        first_loss = self.inner_loss(self.vectors(added(x, passes[0]), views.adversarial), None, batch)
        found = FreeFound(delta, delta, passes[-1], None, first_loss, tuple(passes))
        return StepResult(found, self.table, self.loss(batch, passes, views))

    def num_passes(self):
        return self.options.num_pgd_steps

    def moves_after(self, t):
        return t < self.num_passes()

    def searched_at(self, x, delta):
        return added(x, delta)

    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        """``delta``: that of each pass, in order."""
        x = self.embedded(batch, views.clean, parameters)
        losses = [
            self.mean_cross_entropy(self.vectors(added(x, d), views.adversarial, parameters), batch, parameters)
            for d in delta
        ]
        return sum(losses) / len(losses)
