"""RAR transcribed from METHODS.md section 4 into numpy float64.

Of one sentence's token states b_t (D) in the last pass, the toy encoder's last before they are averaged:

    u_t = LayerNorm(gelu(r_weight b_t + r_bias))      (E)
    logits_t = word u_t + r_word_bias                 (V), word being the word embeddings themselves
    L_R = mean over the real tokens of the batch of CE(logits_t, w_t);   L = L_C + 0.1 L_R
"""

from dataclasses import dataclass
from math import erf

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.classes.free_passes import FreeLB, PassOptions
from tests.oracle.sentences.contrastive import log_sum_exp
from tests.oracle.toy_encoder import EMBEDDING_SIZE, HIDDEN_SIZE, VOCAB_SIZE

LAYER_NORM_EPS = 1e-12
"""BERT's and ALBERT's own"""


@dataclass(frozen=True)
class RarOptions(PassOptions):
    weight_reconstruction: float = 0.1


def make_reconstructor_parameters(seed=3):
    rng = np.random.default_rng(seed)
    return {
        "r_weight": rng.normal(size=(EMBEDDING_SIZE, HIDDEN_SIZE)) * 0.8,
        "r_bias": rng.normal(size=EMBEDDING_SIZE) * 0.3,
        "r_norm_weight": 1 + rng.normal(size=EMBEDDING_SIZE) * 0.2,
        "r_norm_bias": rng.normal(size=EMBEDDING_SIZE) * 0.2,
        "r_word_bias": rng.normal(size=VOCAB_SIZE) * 0.3,
    }


def gelu(values):
    """x Phi(x); of complex entries that are real but for a step too small to square."""
    x = np.real(values)
    phi = np.array([0.5 * (1 + erf(v / np.sqrt(2))) for v in x])
    if not np.iscomplexobj(values):
        return x * phi
    slope = phi + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return x * phi + 1j * values.imag * slope


def layer_norm(values, weight, bias):
    centred = values - values.sum() / len(values)
    return centred / np.sqrt((centred * centred).sum() / len(values) + LAYER_NORM_EPS) * weight + bias


class RAR(FreeLB):
    def token_states(self, parameters, point, mask):
        """(n, D)."""
        _, (_, _, _, before_b, _, _) = toy_encoder.forward(parameters, point, mask)
        return np.arctan(before_b)

    def reconstructed(self, parameters, state):
        """Logits over the vocabulary of one token's state."""
        inner = gelu(parameters["r_weight"] @ state + parameters["r_bias"])
        inner = layer_norm(inner, parameters["r_norm_weight"], parameters["r_norm_bias"])
        return parameters["word"] @ inner + parameters["r_word_bias"]

    def rebuilt_pass(self, deltas):
        """The perturbations whose states are rebuilt: the last pass's."""
        return deltas[-1]

    def token_losses(self, batch, deltas, draws, parameters):
        """Cross-entropies of the tokens, a list an example."""
        xs = self.embedded(batch, draws, parameters)
        inner = [None] * len(batch) if draws.passes is None else draws.passes.inner
        losses = []
        for example, x, delta, mask in zip(batch, xs, self.rebuilt_pass(deltas), inner, strict=True):
            states = self.token_states(parameters, x + delta, mask)
            logits = [self.reconstructed(parameters, state) for state in states]
            words = example.sentence.tokens
            losses.append([log_sum_exp(row) - row[word] for row, word in zip(logits, words, strict=True)])
        return losses

    def reduced(self, losses, batch):
        every = [loss for of_example in losses for loss in of_example]
        return sum(every) / len(every)

    def terms(self, batch, deltas, draws, parameters):
        found = super().terms(batch, deltas, draws, parameters)
        losses = self.token_losses(batch, deltas, draws, parameters)
        found["reconstruction"] = self.options.weight_reconstruction * self.reduced(losses, batch)
        return found
