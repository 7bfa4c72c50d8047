"""TaiChi and its ablations transcribed from METHODS.md section 4 into numpy float64.

Of the toy encoder's h (D,), which is what the contrast compares and what the classifier reads:

    logits = out_weight h + out_bias          (C,)

    CE_clean  = mean over all rows of CE(clean network at x)
    CE_adv    = mean over paired rows of CE(adversarial network at x')
    CTR       = mean over paired rows i of -log( exp(s(anchor_i, key_i)/tau) / sum over paired j != i of exp(...) )
    CTR_clean : anchors z_clean(x), keys z_clean(x')                CTR_adv: anchors z_adv(x'), keys z_adv(x)
    KL_clean  = mean over paired rows of KL(p_clean(x) || p_adv(x))
    KL_adv    = mean over paired rows of KL(p_adv(x') || p_clean(x'))
    KL_self   = mean over paired rows of KL(p_clean(x) || p_clean(x'))       without an adversarial network

What the page leaves open, and what is taken here:
    * a mean over no rows is 0;
    * where one row alone is paired, its CTR is 0: it has no negative;
    * equal texts are each other's negatives.

Parameters of both networks stand in one dict, as ``clean.<name>`` and ``adversarial.<name>``. Everything takes complex
parameters, so that a test can differentiate it by a complex step.
"""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.classes.classification import NUM_CLASSES, log_softmax
from tests.oracle.toy_encoder import Masks, Sentence

CLEAN, ADVERSARIAL = "clean", "adversarial"

TERMS = {
    "none": ("ce_clean", "ctr_clean", "ce_adversarial", "ctr_adversarial", "kl_clean", "kl_adversarial"),
    "no_kl": ("ce_clean", "ctr_clean", "ce_adversarial", "ctr_adversarial"),
    "no_ctr": ("ce_clean", "ce_adversarial", "kl_clean", "kl_adversarial"),
    "no_adv": ("ce_clean", "ctr_clean", "kl_self"),
    "clean": ("ce_clean", "ctr_clean"),
    "adversarial": ("ce_adversarial", "ctr_adversarial"),
}
"""by ablation: what is added up, each once"""


@dataclass(frozen=True)
class Row:
    """A text with its class, and the text that an attack made of it, where there is one."""

    text: Sentence
    attacked: Optional[Sentence]
    label: int


@dataclass(frozen=True)
class TaiChiOptions:
    ablation: str = "none"
    similarity: str = "cosine"
    temperature: float = 1.0


def make_parameters(seed=5):
    """Of both networks: one pretrained encoder, moved apart as training does, and two classifiers."""
    rng, parameters = np.random.default_rng(seed), {}
    for network in (CLEAN, ADVERSARIAL):
        own = toy_encoder.make_parameters(head="none")
        own = {name: values + 0.05 * rng.normal(size=values.shape) for name, values in own.items()}
        own["out_weight"] = 1.2 * rng.normal(size=(NUM_CLASSES, toy_encoder.HIDDEN_SIZE))
        own["out_bias"] = 0.3 * rng.normal(size=NUM_CLASSES)
        parameters.update({f"{network}.{name}": values for name, values in own.items()})
    return parameters


def divergence(p_logits, q_logits):
    """KL(p || q) of two rows of logits (C,)."""
    log_p, log_q = log_softmax(p_logits), log_softmax(q_logits)
    return (np.exp(log_p) * (log_p - log_q)).sum()


def length(vector):
    """Without a conjugate: analytic in complex entries."""
    return np.sqrt((vector * vector).sum())


class TaiChi:
    """L of one batch of rows."""

    def __init__(self, options, parameters):
        self.options, self.parameters = options, parameters

    def similarity(self, u, v):
        if self.options.similarity == "neg_l2":
            return -length(u - v)
        return (u * v).sum() / (length(u) * length(v))

    def mean(self, values, rows):
        """Of one value a paired row; ``rows`` is the whole batch."""
        return sum(values) / len(values) if values else 0.0

    def contrast(self, anchors, keys, rows):
        return self.mean([self.contrast_of(i, anchors, keys) for i in range(len(anchors))], rows)

    def contrast_of(self, i, anchors, keys):
        others = [j for j in range(len(keys)) if j != i]
        if not others:
            return 0.0
        scores = [self.similarity(anchors[i], key) / self.options.temperature for key in keys]
        return -np.log(np.exp(scores[i]) / sum(np.exp(scores[j]) for j in others))

    def mean_cross_entropy(self, logits, labels, rows):
        return self.mean([-log_softmax(z)[label] for z, label in zip(logits, labels, strict=True)], rows)

    def mean_divergence(self, ones, others, rows):
        return self.mean([divergence(p, q) for p, q in zip(ones, others, strict=True)], rows)

    def loss(self, rows, masks=None, parameters=None):
        """The total, masks and all else but the parameters constant."""
        return sum(self.terms(rows, masks, parameters).values())

    def terms(self, rows, masks=None, parameters=None):
        """By name; ``masks``: (network, "x" or "x'") -> Masks, one array a row of the batch."""
        views = Views(rows, masks or {}, self.parameters if parameters is None else parameters)
        return {name: getattr(self, name)(rows, views) for name in TERMS[self.options.ablation]}

    def paired(self, rows):
        return [i for i, row in enumerate(rows) if row.attacked is not None]

    def ce_clean(self, rows, views):
        logits = [views.logits(CLEAN, "x", i) for i in range(len(rows))]
        return self.mean_cross_entropy(logits, [row.label for row in rows], rows)

    def ce_adversarial(self, rows, views):
        logits = [views.logits(ADVERSARIAL, "x'", i) for i in self.paired(rows)]
        return self.mean_cross_entropy(logits, [rows[i].label for i in self.paired(rows)], rows)

    def ctr_clean(self, rows, views):
        anchors, keys = ([views.h(CLEAN, text, i) for i in self.paired(rows)] for text in ("x", "x'"))
        return self.contrast(anchors, keys, rows)

    def ctr_adversarial(self, rows, views):
        anchors, keys = ([views.h(ADVERSARIAL, text, i) for i in self.paired(rows)] for text in ("x'", "x"))
        return self.contrast(anchors, keys, rows)

    def kl_clean(self, rows, views):
        ones, others = ([views.logits(net, "x", i) for i in self.paired(rows)] for net in (CLEAN, ADVERSARIAL))
        return self.mean_divergence(ones, others, rows)

    def kl_adversarial(self, rows, views):
        ones, others = ([views.logits(net, "x'", i) for i in self.paired(rows)] for net in (ADVERSARIAL, CLEAN))
        return self.mean_divergence(ones, others, rows)

    def kl_self(self, rows, views):
        ones, others = ([views.logits(CLEAN, text, i) for i in self.paired(rows)] for text in ("x", "x'"))
        return self.mean_divergence(ones, others, rows)


class Views:
    """h and logits of both networks at both texts of each row."""

    def __init__(self, rows, masks, parameters):
        self.rows, self.masks, self.parameters = rows, masks, parameters
        self.known = {}

    def of(self, network):
        start = f"{network}."
        return {name.removeprefix(start): v for name, v in self.parameters.items() if name.startswith(start)}

    def h(self, network, text, i):
        """(D,); of ``text`` "x" or "x'"."""
        if (network, text, i) not in self.known:
            self.known[network, text, i] = self.encoded(network, text, i)
        return self.known[network, text, i]

    def encoded(self, network, text, i):
        sentence = self.rows[i].text if text == "x" else self.rows[i].attacked
        own, drawn = self.of(network), self.masks.get((network, text), Masks(None, None))
        embedding = None if drawn.embedding is None else drawn.embedding[i]
        inner = None if drawn.inner is None else drawn.inner[i]
        return toy_encoder.forward(own, toy_encoder.embed(own, sentence, embedding), inner)[0]

    def logits(self, network, text, i):
        own = self.of(network)
        return own["out_weight"] @ self.h(network, text, i) + own["out_bias"]
