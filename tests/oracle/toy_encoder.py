"""A toy sentence encoder with a head, in numpy, with a hand-derived backward by its input.

Of one sentence of n tokens, with word ids w and positions t = 0 ... n - 1:

    x_t = word[w_t]                                  * dropout mask
    a_t = tanh(first x_t + position[t])              * dropout mask
    m   = mean_t a_t
    b_t = tanh(second a_t + mixing (a_t o m))        so that tokens act on each other's gradients
    h   = tanh(mean_t b_t)
    z   = tanh(head_weight h + head_bias), or h without a head

Shapes: word (V, E), first (A, E), position (L, A), second and mixing (D, A), head_weight (D, D),
head_bias (D,). The forward is analytic, so complex parameters give exact derivatives by a complex step.
"""

from dataclasses import dataclass

import numpy as np

VOCAB_SIZE = 14
EMBEDDING_SIZE = 5
INNER_SIZE = 6
HIDDEN_SIZE = 4
LONGEST = 6
CLS, SEP = 0, 1
SATURATED_WORDS = (12, 13)
"""words whose rows are so large that tanh is exactly +-1 behind them: no gradient reaches them"""


@dataclass(frozen=True)
class Sentence:
    tokens: tuple
    special: tuple
    identity: int

    @property
    def length(self):
        return len(self.tokens)


@dataclass(frozen=True)
class Masks:
    """Dropout factors of one pass, one array a sentence."""

    embedding: list
    """(n, E) each"""
    inner: list
    """(n, A) each"""


def make_parameters(seed=0, head="mlp"):
    """A fresh dict of float64 arrays under the names of the module docstring."""
    rng = np.random.default_rng(seed)
    word = rng.normal(size=(VOCAB_SIZE, EMBEDDING_SIZE)) * 0.5
    first = rng.normal(size=(INNER_SIZE, EMBEDDING_SIZE)) * 0.8
    for saturated in SATURATED_WORDS:
        word[saturated] = np.linalg.lstsq(first[:EMBEDDING_SIZE], np.full(EMBEDDING_SIZE, 60.0), rcond=None)[0]
        word[saturated] *= 1 if saturated == SATURATED_WORDS[0] else -1
    parameters = {
        "word": word,
        "first": first,
        "position": rng.normal(size=(LONGEST, INNER_SIZE)) * 0.3,
        "second": rng.normal(size=(HIDDEN_SIZE, INNER_SIZE)) * 0.7,
        "mixing": rng.normal(size=(HIDDEN_SIZE, INNER_SIZE)) * 0.9,
    }
    if head == "mlp":
        parameters["head_weight"] = rng.normal(size=(HIDDEN_SIZE, HIDDEN_SIZE)) * 0.8
        parameters["head_bias"] = rng.normal(size=HIDDEN_SIZE) * 0.2
    return parameters


def embed(parameters, sentence, mask=None):
    """X of one sentence (n, E)."""
    x = parameters["word"][list(sentence.tokens)]
    return x if mask is None else x * mask


def forward(parameters, x, mask=None):
    """z (D,) of one sentence's X (n, E), and what the backward needs."""
    num_tokens = len(x)
    bare = np.tanh(x @ parameters["first"].T + parameters["position"][:num_tokens])
    a = bare if mask is None else bare * mask
    m = a.sum(axis=0) / num_tokens
    b = np.tanh(a @ parameters["second"].T + (a * m) @ parameters["mixing"].T)
    h = np.tanh(b.sum(axis=0) / num_tokens)
    z = h
    if "head_weight" in parameters:
        z = np.tanh(parameters["head_weight"] @ h + parameters["head_bias"])
    return z, (bare, a, m, b, h, z)


def backward(parameters, saved, grad_z, mask=None):
    """d loss / dX (n, E) from d loss / dz (D,)."""
    bare, a, m, b, h, z = saved
    num_tokens = len(a)
    grad_h = grad_z
    if "head_weight" in parameters:
        grad_h = parameters["head_weight"].T @ (grad_z * (1 - z * z))
    grad_b = np.tile(grad_h * (1 - h * h) / num_tokens, (num_tokens, 1))
    grad_before = grad_b * (1 - b * b)
    grad_product = grad_before @ parameters["mixing"]
    grad_m = (grad_product * a).sum(axis=0)
    grad_a = grad_before @ parameters["second"] + grad_product * m + grad_m / num_tokens
    grad_bare = grad_a if mask is None else grad_a * mask
    return (grad_bare * (1 - bare * bare)) @ parameters["first"]
