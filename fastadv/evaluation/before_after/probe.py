"""A linear sentiment probe on frozen vectors, and its accuracy under a white-box attack through the encoder.

Shapes: ``N`` labelled sentences, ``B`` sentences of a batch, ``D`` hidden size.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from fastadv.evaluation.before_after.embedding_attack import Loss

L2_STRENGTH = 1.0
"""1/C of the logistic regression on standardised features, scikit-learn's default"""
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class Probe:
    """Two classes, one logit: ``h @ weight + bias``, positive for label 1."""

    weight: np.ndarray
    """(D,) float64"""
    bias: float

    def logits(self, vectors: np.ndarray) -> np.ndarray:
        """(N,) from vectors (N, D)."""
        return np.asarray(vectors, dtype=np.float64) @ self.weight + self.bias

    def is_right(self, vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """(N,) bool; labels 0 or 1."""
        return (self.logits(vectors) > 0) == (np.asarray(labels) == 1)

    def cross_entropy(self, labels: Tensor) -> Loss:
        """vectors (B, D) -> (B,) −log p(label), for the attack to raise; ``labels`` (B,) of 0 and 1."""
        weight = torch.as_tensor(self.weight, dtype=torch.float32, device=labels.device)
        sign = 1 - 2 * labels.float()
        return lambda vectors: torch.nn.functional.softplus(sign * (vectors @ weight + self.bias))


def fit_probe(vectors: np.ndarray, labels: np.ndarray) -> Probe:
    """L2-regularised logistic regression on standardised features; the scaling is folded into the weights.

    Args:
        vectors: (N, D) of a frozen encoder.
        labels: (N,) of 0 and 1, both present.
    """
    vectors, labels = np.asarray(vectors, dtype=np.float64), np.asarray(labels)
    if set(np.unique(labels).tolist()) != {0, 1}:
        raise ValueError(f"the probe needs labels 0 and 1, both present, got {np.unique(labels).tolist()}")
    mean, scale = vectors.mean(axis=0), vectors.std(axis=0)
    # A feature that never varies carries nothing; its scale of 0 must not divide.
    scale = np.where(scale > 0, scale, 1)
    model = LogisticRegression(C=1 / L2_STRENGTH, max_iter=MAX_ITERATIONS).fit((vectors - mean) / scale, labels)
    weight = model.coef_[0] / scale
    return Probe(weight=weight, bias=float(model.intercept_[0] - mean @ weight))
