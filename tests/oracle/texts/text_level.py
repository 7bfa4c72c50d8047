"""SAFER, Base_adv, ADA and A2T transcribed from METHODS.md section 4 into numpy float64, on the toy encoder.

Of the page alone, and sharing nothing with fastadv: a batch is a list of examples, each a sentence with its class and
the other texts that an objective may want of it; a text that could not be made is None. Of the toy encoder's h (D,)

    logits = out_weight tanh(dense_weight h + dense_bias) + out_bias          (C,)
    CE(x)  = logsumexp(logits) - logits[label]

    SAFER            CE(x_f), every row; where nothing could be replaced x_f is x
    Base_adv         CE(x') with the true label, over the rows that have an x'
    Base_adv (soft)  CE(x', p_victim(x')) = -sum_c p_victim(c | x') log p(c | x'), the victim a constant without dropout
    ADA, A2T         CE(x) and CE(x'), true label: a text counts as much as any other, clean or attacked
    ADA (soft)       CE(x) with the true label, CE(x', p_victim(x'))

What the page leaves open, and what is taken here:
    * ADA and A2T add attacked texts to the training set, so both sums are over the number B of clean ones;
    * Base_adv's training set has attacked texts alone, so its mean is over those there are, and of none it is 0.

Every step is a method of its own, which a mutant overrides.
"""

from dataclasses import dataclass, replace
from typing import Optional

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.classes.classification import classify, log_softmax, make_classifier_parameters
from tests.oracle.toy_encoder import EMBEDDING_SIZE, INNER_SIZE, Masks, Sentence

VARIANTS = ("fickle", "obstinate", "adversarial")


@dataclass(frozen=True)
class Example:
    sentence: Sentence
    label: int
    fickle: Optional[Sentence] = None
    obstinate: Optional[Sentence] = None
    adversarial: Optional[Sentence] = None


@dataclass(frozen=True)
class TextOptions:
    weight_adversarial: float = 1.0
    """of ADA's and A2T's CE(x')"""
    weight_fickle: float = 1.0
    """alpha of BAT-Pairwise"""
    weight_obstinate: float = 1.2
    """beta of it"""
    weight_triplet: float = 1.0
    """lambda of BAT-Triplet"""
    margin: float = 1.0
    distance_of: str = "cls"
    obstinate_labels: Optional[tuple] = None
    """classes whose obstinate texts count; None: all"""


@dataclass(frozen=True)
class Draws:
    """Dropout factors of the passes, each a `Masks` with an array for every row of the batch; None is no dropout.

    The row of a missing text has the masks that x got in its place.
    """

    clean: Optional[Masks] = None
    fickle: Optional[Masks] = None
    obstinate: Optional[Masks] = None
    adversarial: Optional[Masks] = None

    def of(self, name, row):
        """(embedding mask, inner mask) of one row of one pass."""
        masks = getattr(self, name)
        return (None, None) if masks is None else (masks.embedding[row], masks.inner[row])


@dataclass(frozen=True)
class Encoded:
    pooled: np.ndarray
    """(D,) h"""
    states: np.ndarray
    """(n, D) last token states"""


def make_model_parameters(seed=0):
    """Of encoder and classifier."""
    return {**toy_encoder.make_parameters(seed, head="none"), **make_classifier_parameters(seed + 5)}


def make_victim_parameters():
    return make_model_parameters(seed=40)


class FineTuning:
    """L = CE(x), the mean over rows; what the others are made of."""

    def __init__(self, options, parameters, victim=None):
        self.options, self.parameters, self.victim = options, parameters, victim

    def encoded(self, parameters, sentence, masks):
        """One pass of one text."""
        of_embedding, inner = masks
        h, saved = toy_encoder.forward(parameters, toy_encoder.embed(parameters, sentence, of_embedding), inner)
        return Encoded(h, np.arctan(saved[3]))

    def clean(self, parameters, batch, draws):
        return [self.encoded(parameters, e.sentence, draws.of("clean", i)) for i, e in enumerate(batch)]

    def variant(self, parameters, batch, draws, name):
        """One `Encoded` a row, None for a missing text."""
        texts = [getattr(example, name) for example in batch]
        return [
            None if text is None else self.encoded(parameters, text, draws.of(name, i)) for i, text in enumerate(texts)
        ]

    def cross_entropy(self, parameters, encoded, label):
        return -log_softmax(classify(parameters, encoded.pooled))[label]

    def cross_entropies(self, parameters, passes, batch):
        """One a row; 0 of a missing text."""
        return [
            0.0 if encoded is None else self.cross_entropy(parameters, encoded, example.label)
            for encoded, example in zip(passes, batch, strict=True)
        ]

    def mean(self, row_losses):
        return sum(row_losses) / len(row_losses)

    def masked_mean(self, row_losses, is_counted):
        """Sum over the counted rows / max(1, their count)."""
        return sum(loss for loss, counts in zip(row_losses, is_counted) if counts) / max(1, sum(is_counted))

    def loss(self, batch, draws=Draws(), parameters=None):
        parameters = self.parameters if parameters is None else parameters
        return self.total(parameters, batch, draws)

    def total(self, parameters, batch, draws):
        return self.mean(self.cross_entropies(parameters, self.clean(parameters, batch, draws), batch))


class SAFER(FineTuning):
    """L = CE(x_f)."""

    def total(self, parameters, batch, draws):
        whole = [replace(e, fickle=e.sentence if e.fickle is None else e.fickle) for e in batch]
        return self.mean(self.cross_entropies(parameters, self.variant(parameters, whole, draws, "fickle"), batch))


class BaseAdv(FineTuning):
    """L = CE(x')."""

    def attacked_losses(self, parameters, batch, draws):
        return self.cross_entropies(parameters, self.variant(parameters, batch, draws, "adversarial"), batch)

    def is_attacked(self, batch):
        return [example.adversarial is not None for example in batch]

    def total(self, parameters, batch, draws):
        return self.masked_mean(self.attacked_losses(parameters, batch, draws), self.is_attacked(batch))


class Soft:
    """Attacked texts with the victim's probabilities in place of the label."""

    def victim_probabilities(self, text):
        """(C,), without dropout; real, so that no complex step goes through them."""
        h, _ = toy_encoder.forward(self.victim, toy_encoder.embed(self.victim, text))
        return np.exp(log_softmax(classify(self.victim, h)))

    def soft_cross_entropy(self, probabilities, logits):
        return -(probabilities * log_softmax(logits)).sum()

    def attacked_losses(self, parameters, batch, draws):
        passes = self.variant(parameters, batch, draws, "adversarial")
        return [
            0.0
            if encoded is None
            else self.soft_cross_entropy(
                self.victim_probabilities(example.adversarial), classify(parameters, encoded.pooled)
            )
            for encoded, example in zip(passes, batch, strict=True)
        ]


class BaseAdvSoft(Soft, BaseAdv):
    """L = CE(x', p_victim(x'))."""


class ADA(BaseAdv):
    """L = (sum of CE(x) + w sum of CE(x')) / B."""

    def total(self, parameters, batch, draws):
        clean = self.cross_entropies(parameters, self.clean(parameters, batch, draws), batch)
        attacked = self.attacked_losses(parameters, batch, draws)
        return self.combined(self.mean(clean), self.mean(attacked), batch)

    def combined(self, clean, attacked, batch):
        return clean + self.options.weight_adversarial * attacked


class ADASoft(Soft, ADA):
    """L = (sum of CE(x) + w sum of CE(x', p_victim(x'))) / B."""


class A2T(ADA):
    """ADA's loss; what differs is whose the attacked texts are: those found at the epoch's start."""


def random_draws(batch, seed=0):
    """Masks of every pass, for the transcription alone."""
    rng = np.random.default_rng(seed)

    def masks(texts):
        lengths = [text.length for text in texts]
        factors = [
            [rng.choice([0.0, 4 / 3], p=[0.25, 0.75], size=(n, width)) for n in lengths]
            for width in (EMBEDDING_SIZE, INNER_SIZE)
        ]
        return Masks(*factors)

    variants = {name: masks([getattr(e, name) or e.sentence for e in batch]) for name in VARIANTS}
    return Draws(masks([e.sentence for e in batch]), **variants)
