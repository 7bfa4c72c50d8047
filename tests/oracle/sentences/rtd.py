"""Replaced token detection transcribed from METHODS.md section 3 into numpy float64, masks and fills given.

A toy discriminator of D = 4 over embeddings of E = 5, so that a mapping stands between as in ALBERT. Of one sentence:

    s_t = mapping (d_word[w''_t] + eta_t),  s_0 = h
    m   = mean_t s_t
    r_t = tanh(d_inner s_t + d_position[t] + d_mixing (s_t o m))
    logits_t = d_head_weight r_t + d_head_bias        original, replaced
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.sentences.contrastive import log_sum_exp
from tests.oracle.toy_encoder import EMBEDDING_SIZE, HIDDEN_SIZE, LONGEST, VOCAB_SIZE
from tests.oracle.transcription import RobustSentEmbed


@dataclass(frozen=True)
class Corruption:
    """One array a sentence."""

    masked: list
    """(n,) bool"""
    fills: list
    """(n,) token ids, of meaning where masked; may be the original again"""


def make_discriminator_parameters(seed=1):
    """A fresh dict of float64 arrays under the names of the module docstring."""
    rng = np.random.default_rng(seed)
    return {
        "d_word": rng.normal(size=(VOCAB_SIZE, EMBEDDING_SIZE)) * 0.5,
        "d_mapping": rng.normal(size=(HIDDEN_SIZE, EMBEDDING_SIZE)) * 0.8,
        "d_inner": rng.normal(size=(HIDDEN_SIZE, HIDDEN_SIZE)) * 0.7,
        "d_position": rng.normal(size=(LONGEST, HIDDEN_SIZE)) * 0.3,
        "d_mixing": rng.normal(size=(HIDDEN_SIZE, HIDDEN_SIZE)) * 0.9,
        "d_head_weight": rng.normal(size=(2, HIDDEN_SIZE)),
        "d_head_bias": rng.normal(size=2) * 0.2,
    }


class RobustSentEmbedWithRTD(RobustSentEmbed):
    """Eq. 10 with its third term, lambda_2 L_RTD."""

    def search(self, *args):
        found = super().search(*args)
        self.eta = found.eta
        return found

    def loss(self, batch, delta, views, parameters=None):
        detection = self.detection_loss(batch, views, self.parameters if parameters is None else parameters)
        return super().loss(batch, delta, views, parameters) + self.options.weight_rtd * detection

    def detection_loss(self, batch, views, parameters):
        x = self.embedded(batch, views.clean, parameters)
        inner = [None] * len(batch) if views.clean is None else views.clean.inner
        losses = []
        for sentence, x_s, mask, eta, masked, fills in zip(
            batch, x, inner, self.eta, views.corruption.masked, views.corruption.fills, strict=True
        ):
            z, (*_, before_h, _) = toy_encoder.forward(parameters, x_s, mask)
            original = np.array(sentence.tokens)
            tokens = self.refilled(original, masked, fills)
            vector = np.arctan(before_h) if self.options.rtd_input == "h" else z
            logits = self.logits(parameters, tokens, eta, vector)
            labels = self.labels(original, tokens, masked).astype(int)
            losses.append([log_sum_exp(row) - row[label] for row, label in zip(logits, labels, strict=True)])
        return self.reduced(losses)

    def refilled(self, original, masked, fills):
        return np.where(masked, fills, original)

    def labels(self, original, tokens, masked):
        """1 = replaced; a token that was restored is original."""
        return tokens != original

    def embedded_by_discriminator(self, parameters, tokens, eta):
        return parameters["d_word"][tokens] + eta

    def first_layer(self, mapped, vector):
        return np.concatenate([vector[None], mapped[1:]])

    def logits(self, parameters, tokens, eta, vector):
        mapped = self.embedded_by_discriminator(parameters, tokens, eta) @ parameters["d_mapping"].T
        states = self.first_layer(mapped, vector)
        mean = states.sum(axis=0) / len(states)
        inner = states @ parameters["d_inner"].T + parameters["d_position"][: len(states)]
        out = np.tanh(inner + (states * mean) @ parameters["d_mixing"].T)
        return out @ parameters["d_head_weight"].T + parameters["d_head_bias"]

    def reduced(self, losses):
        """Over the real tokens of the batch."""
        every = [loss for of_sentence in losses for loss in of_sentence]
        return sum(every) / (len(every) if self.options.rtd_reduction == "mean" else 1)
