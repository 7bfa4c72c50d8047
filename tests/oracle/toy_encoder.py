"""A toy sentence encoder with a head, in numpy, with a hand-derived backward by its input.

Of one sentence of n tokens, with word ids w and positions t = 0 ... n - 1:

    x_t = word[w_t]                                  * dropout mask
    a_t = atan(clamp(first x_t + position[t]))       * dropout mask
    m   = mean_t a_t
    b_t = atan(second a_t + mixing (a_t o m))        so that tokens act on each other's gradients
    h   = atan(mean_t b_t)
    z   = tanh(head_weight h + head_bias), or h without a head

Shapes: word (V, E), first (A, E), position (L, A), second and mixing (D, A), head_weight (D, D),
head_bias (D,). Off the clamp's edges the forward is analytic, so complex parameters give exact derivatives by
a complex step.

No gradient is small by cancellation: directions forget a gradient's size, so its relative error is what counts. Where
tanh nears +-1, its derivative 1 - tanh^2 keeps no correct digit; atan's, 1 / (1 + v^2), keeps all, and behind the clamp
the derivative is exactly 0. The head's tanh is the product's own and stays far from +-1.
"""

from dataclasses import dataclass
from typing import Optional

import numpy as np

VOCAB_SIZE = 14
EMBEDDING_SIZE = 5
INNER_SIZE = 6
HIDDEN_SIZE = 4
LONGEST = 6
CLS, SEP = 0, 1
SATURATED_WORDS = (12, 13)
"""words whose rows are so large that everything behind them is clamped: no gradient reaches them"""
CLAMP = 8.0
"""far beyond what other words reach"""


@dataclass(frozen=True)
class Sentence:
    tokens: tuple
    special: tuple
    identity: int
    label: Optional[int] = None
    """its class, where there are classes"""

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


def clamped(values):
    """Real parts beyond +-CLAMP become +-CLAMP."""
    return np.where(np.abs(values.real) > CLAMP, CLAMP * np.sign(values.real), values)


def atan_slope(values):
    return 1 / (1 + values * values)


def forward(parameters, x, mask=None):
    """z (D,) of one sentence's X (n, E), and what the backward needs."""
    num_tokens = len(x)
    before_a = clamped(x @ parameters["first"].T + parameters["position"][:num_tokens])
    bare = np.arctan(before_a)
    a = bare if mask is None else bare * mask
    m = a.sum(axis=0) / num_tokens
    before_b = a @ parameters["second"].T + (a * m) @ parameters["mixing"].T
    before_h = np.arctan(before_b).sum(axis=0) / num_tokens
    z = h = np.arctan(before_h)
    if "head_weight" in parameters:
        z = np.tanh(parameters["head_weight"] @ h + parameters["head_bias"])
    return z, (before_a, a, m, before_b, before_h, z)


def backward(parameters, saved, grad_z, mask=None):
    """d loss / dX (n, E) from d loss / dz (D,)."""
    before_a, a, m, before_b, before_h, z = saved
    num_tokens = len(a)
    grad_h = grad_z
    if "head_weight" in parameters:
        grad_h = parameters["head_weight"].T @ (grad_z * (1 - z * z))
    grad_b = np.tile(grad_h * atan_slope(before_h) / num_tokens, (num_tokens, 1))
    grad_before = grad_b * atan_slope(before_b)
    grad_product = grad_before @ parameters["mixing"]
    grad_m = (grad_product * a).sum(axis=0)
    grad_a = grad_before @ parameters["second"] + grad_product * m + grad_m / num_tokens
    grad_bare = grad_a if mask is None else grad_a * mask
    slope = np.where(np.abs(before_a) < CLAMP, atan_slope(before_a), 0.0)
    return (grad_bare * slope) @ parameters["first"]
