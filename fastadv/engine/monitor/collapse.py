"""Whether the vectors of different sentences still differ: what a contrastive loss can hide until training is over.

Collapse has two forms (Jing et al. 2022, "Understanding dimensional collapse in contrastive self-supervised
learning"): all vectors become one, or they keep to a subspace. Both leave the loss finite.
"""

import logging
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.distributed.processes import highest, is_first_rank, world_size
from fastadv.engine.step.gather import gather_unequal

logger = logging.getLogger(__name__)

MOST_ROWS = 512
"""sentences that are looked at, of all ranks: 130,816 pairs, whose mean is known to a percent or so"""

LEAST_ROWS = 8
"""different sentences below which nothing is said: the rank of n centred vectors is at most n - 1"""

SAME_SPREAD = 1e-3
"""mean squared distance of unit vectors that a loss no longer sees: cosines differ by 5e-4 then, which at the usual
temperature of 0.05 are logits within 0.01, and InfoNCE is within 0.01 of the log N of somebody who guesses"""

SAME_AS_NOISE = 1.1
"""times the distance of one sentence's two views; a sentence is found again among others as long as that is the
smaller one by far. Vectors that depend on the dropout mask alone have a ratio of 1"""

ENOUGH_ROWS = 64
"""sentences over which that ratio is taken, of several looks if need be: in 8 it is uncertain by a tenth"""

LEAST_RANK = 1.1
"""participation ratio up to which all vectors lie on a line: at least 1 / 1.1 = 91 % of their variance does"""


class Collapsed(RuntimeError):
    """The vectors of different sentences are alike, and ``train.collapse`` is raise."""


@dataclass(frozen=True)
class Geometry:
    """How vectors of different sentences lie."""

    num_rows: int
    uniformity: float
    """log of the mean over pairs of exp(-2 * squared distance) of unit vectors (Wang & Isola 2020): 0 where all
    coincide, the lower the more they spread"""
    rank: float
    """participation ratio of the centred unit vectors' covariance, (sum of eigenvalues)^2 / sum of their squares, from
    1 to min(N - 1, D), 0 where nothing varies (Gao et al. 2017, "A theory of multineuronal dimensionality")"""
    spread: float
    """mean squared distance over pairs of sentences, of unit vectors"""
    noise: float
    """the same of two views of one sentence, 0 where there are none"""

    @classmethod
    def of(cls, z: Tensor, z_positive: Tensor | None) -> "Geometry":
        """``z`` (N, D), N >= 2, and the second views, of different sentences."""
        units = F.normalize(z.double(), dim=1)
        num_rows = len(units)
        distances = torch.pdist(units).square()
        centred = units - units.mean(dim=0)
        # The eigenvalues of the smaller of the two products are those of the covariance.
        product = centred @ centred.T if num_rows <= units.shape[1] else centred.T @ centred
        variance = product.diagonal().sum()
        noise = torch.zeros_like(variance)
        if z_positive is not None:
            noise = (units - F.normalize(z_positive.double(), dim=1)).square().sum(dim=1).mean()
        log_mean = torch.logsumexp(-2 * distances, dim=0) - math.log(len(distances))
        values = torch.stack([log_mean, variance, product.square().sum(), distances.mean(), noise]).tolist()
        uniformity, variance, squares, spread, noise = values
        # Below it, float32's rounding of equal vectors is what varies.
        rank = variance**2 / squares if variance > 1e-12 * num_rows else 0.0
        return cls(num_rows, uniformity, rank, spread, noise)

    @property
    def fault(self) -> str | None:
        """What is wrong, in words, or None."""
        if self.num_rows < LEAST_ROWS:
            return None
        if self.spread <= SAME_SPREAD:
            return f"vectors of different sentences are nearly alike (mean squared distance {self.spread:.2g})"
        if self.rank < LEAST_RANK:
            return f"the vectors lie on a line (rank {self.rank:.3g} of {self.num_rows} different sentences)"
        return None


class CollapseWatch:
    """Measures a batch's vectors, and says once, or by an error, that they have collapsed."""

    def __init__(self, mode: Literal["warn", "raise", "off"]):
        self._mode = mode
        self._has_warned = False
        self._last: list[Geometry] = []

    def look(self, step: int, z: Tensor, z_positive: Tensor | None, sentence_ids: Tensor) -> dict[str, float]:
        """The metrics of one batch; all ranks call it.

        Args:
            step: as named in the message.
            z: (B, D) of this rank's sentences.
            z_positive: (B, D) of the same texts under another dropout mask; None where z+ has texts of its own.
            sentence_ids: (B,), equal for equal sentences, of which one counts.

        Raises:
            Collapsed: on every rank.
        """
        if self._mode == "off":
            return {}
        own = [
            value[: max(1, MOST_ROWS // world_size())] for value in (z, z_positive, sentence_ids) if value is not None
        ]
        z, *positives, ids = (gather_unequal(value.detach()) for value in own)
        first_of: dict[int, int] = {}
        for row, sentence in enumerate(ids.tolist()):
            first_of.setdefault(sentence, row)
        rows = torch.tensor(list(first_of.values()), device=z.device)
        if len(rows) < 2:
            return {}
        geometry = Geometry.of(z[rows], positives[0][rows] if positives else None)
        self._judge(geometry, step, z.device)
        return {"uniformity": geometry.uniformity, "vector_rank": geometry.rank}

    def _judge(self, geometry: Geometry, step: int, device: torch.device) -> None:
        fault = geometry.fault or self._fault_of_several(geometry)
        if self._mode == "raise":
            # Ranks may round differently, but they end together.
            if highest(int(fault is not None), device):
                raise Collapsed(f"step {step}: {fault or 'collapse seen by another rank'}; {_CAUSES}")
        elif fault is not None and not self._has_warned:
            self._has_warned = True
            if is_first_rank():
                logger.warning("step %d: %s; %s (train.collapse)", step, fault, _CAUSES)

    def _fault_of_several(self, geometry: Geometry) -> str | None:
        """Whether the last looks, at enough sentences together, saw nothing but noise."""
        self._last.append(geometry)
        while sum(look.num_rows for look in self._last[1:]) >= ENOUGH_ROWS:
            del self._last[0]
        num_rows = sum(look.num_rows for look in self._last)
        spread, noise = (
            sum(getattr(look, name) * look.num_rows for look in self._last) / num_rows for name in ("spread", "noise")
        )
        if num_rows < ENOUGH_ROWS or spread > SAME_AS_NOISE * noise:
            return None
        return (
            f"vectors of different sentences are as near as two views of one (mean squared distances {spread:.2g} and "
            f"{noise:.2g})"
        )


_CAUSES = (
    "usual causes: a learning rate too high, a perturbation as large as the embeddings, a temperature too high, "
    "sentences that differ in nothing the encoder sees"
)
