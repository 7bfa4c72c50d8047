"""Counter-fitting: synonyms pulled together, antonyms pushed apart, and the rest of the space kept.

Mrkšić et al. (2016), "Counter-fitting Word Vectors to Linguistic Constraints". With d = 1 − cosine and τ(x) = max(0, x)
the vectors v' minimise, starting at v::

    k₁ Σ_{antonyms (u, w)} τ(δ − d(v'_u, v'_w))                     (1) antonym repel, δ = 1
  + k₂ Σ_{synonyms (u, w)} τ(d(v'_u, v'_w) − γ)                     (2) synonym attract, γ = 0
  + k₃ Σ_i Σ_{j near i}    τ(d(v'_i, v'_j) − d(v_i, v_j))           (3) vector space preservation

where j is near i when d(v_i, v_j) ≤ ρ = 0.2, all k equal (eq. 4), and vectors have length 1.

Two things are ours. The paper takes 20 epochs of SGD over single pairs; here Adam takes steps over all pairs at once,
which is the same sum. And the paper's vectors have 300 numbers: with 50, a word that is pulled to its synonyms lands
among strangers. So each vector is first given random numbers of its own (``num_extra``), by which strangers are apart.
"""

from dataclasses import dataclass
from typing import Callable, List, Tuple

import numpy as np
import torch
from torch import Tensor

from fastadv.evaluation.resources.word_vectors import WordVectors

_ROUNDING = 1e-5
"""of a distance of float32 vectors"""


@dataclass(frozen=True)
class CounterFitting:
    """What the paper names, and how the sum is lowered."""

    weight_antonyms: float = 1.0
    weight_synonyms: float = 1.0
    weight_preservation: float = 1.0
    antonym_margin: float = 1.0
    """δ: antonyms are pushed until their cosine is 1 − δ"""
    synonym_margin: float = 0.1
    """γ: synonyms are pulled until their cosine is 1 − γ; at 0 whole chains of synonyms end at one point"""
    radius: float = 0.2
    """ρ: pairs this near are kept as near as they were"""
    max_neighbours: int = 50
    """of them, the nearest so many of each word"""
    num_extra: int = 100
    """random numbers that each vector is given; 0: none"""
    extra_share: float = 0.5
    """their share of a vector's squared length"""
    seed: int = 0
    num_steps: int = 60
    learning_rate: float = 0.02


def counter_fit(
    vectors: WordVectors,
    synonyms: np.ndarray,
    antonyms: np.ndarray,
    settings: CounterFitting = CounterFitting(),
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> WordVectors:
    """The vectors (N, D + num_extra) counter-fitted, at length 1.

    Args:
        synonyms, antonyms: (P, 2) rows of ``vectors``, each pair once, in any order. A pair that is in both counts as
            antonyms only.
        on_step: is told the number of steps done and the sum before the last of them.
    """
    apart = {tuple(sorted(pair)) for pair in antonyms.tolist()}
    together = [pair for pair in synonyms.tolist() if tuple(sorted(pair)) not in apart]
    pairs_apart, pairs_together = _rows(sorted(apart)), _rows(together)
    near, distances = _near_pairs(vectors, settings, apart)
    fitted = torch.from_numpy(_with_extra(vectors.directions, settings)).requires_grad_()
    optimizer = torch.optim.Adam([fitted], lr=settings.learning_rate)
    for step in range(settings.num_steps):
        loss = _loss(fitted, pairs_apart, pairs_together, near, distances, settings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            fitted /= fitted.norm(dim=1, keepdim=True)
        on_step(step + 1, loss.item())
    return WordVectors(vectors.words, fitted.detach().numpy())


def _loss(
    fitted: Tensor, apart: Tensor, together: Tensor, near: Tensor, distances: Tensor, settings: CounterFitting
) -> Tensor:
    repel = torch.relu(settings.antonym_margin - _distance(fitted, apart)).sum()
    attract = torch.relu(_distance(fitted, together) - settings.synonym_margin).sum()
    # Adam takes whole steps along the smallest gradients: what has moved by rounding alone has not moved.
    preserve = torch.relu(_distance(fitted, near) - distances - _ROUNDING).sum()
    return (
        settings.weight_antonyms * repel + settings.weight_synonyms * attract + settings.weight_preservation * preserve
    )


def _distance(vectors: Tensor, pairs: Tensor) -> Tensor:
    """d of pairs (P, 2) of rows: (P,)."""
    first, second = vectors[pairs[:, 0]], vectors[pairs[:, 1]]
    return 1 - torch.nn.functional.cosine_similarity(first, second, dim=1)


def _with_extra(directions: np.ndarray, settings: CounterFitting) -> np.ndarray:
    """(N, D + num_extra) of length 1, of vectors (N, D) of length 1."""
    if settings.num_extra == 0:
        return directions.copy()
    extra = np.random.default_rng(settings.seed).standard_normal((len(directions), settings.num_extra))
    extra *= np.sqrt(settings.extra_share) / np.linalg.norm(extra, axis=1, keepdims=True)
    return np.hstack([np.sqrt(1 - settings.extra_share) * directions, extra]).astype(np.float32)


def _rows(pairs: List) -> Tensor:
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)


def _near_pairs(vectors: WordVectors, settings: CounterFitting, apart: set) -> Tuple[Tensor, Tensor]:
    """Pairs to be kept (P, 2) and their distances (P,): each pair twice where each is near the other, as (3) sums."""
    pairs, cosines = [], []
    for row, (near, near_cosines) in enumerate(vectors.neighbours(settings.max_neighbours, 1 - settings.radius)):
        for other, cosine in zip(near.tolist(), near_cosines.tolist()):
            # Antonyms lie near each other in most spaces: what should be undone is not kept.
            if (min(row, other), max(row, other)) not in apart:
                pairs.append((row, other))
                cosines.append(cosine)
    return _rows(pairs), 1 - torch.tensor(cosines)
