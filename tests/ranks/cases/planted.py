"""An objective in which something is not finite: where, when, in which sentence and on which rank, as one asks."""

from typing import Literal

import torch

from fastadv.distributed import processes
from fastadv.objectives.sentences.robustsentembed import RobustSentEmbed

_VIEWS = ("z", "z+", "z_adv")


class Planted(RobustSentEmbed):
    """RobustSentEmbed with a NaN.

    Args:
        fault: z, z+ or z_adv of one sentence; the whole loss; the slope of the loss by one sentence's z; or that by a
            weight, which is no sentence's.
        at: forwards, counted from 1, in which it is there.
        row: of the rank's own sentences.
        rank: where it is.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        fault: Literal["z", "z+", "z_adv", "loss", "slope", "weight"] = "loss",
        at: list = (),
        row: int = 0,
        rank: int = 0,
        **options,
    ):
        super().__init__(hidden_size, **options)
        self.fault, self.at, self.row, self.rank = fault, at, row, rank
        self.num_forwards, self.num_views = 1, 0

    def _is_now(self, fault: str) -> bool:
        return fault == self.fault and self.num_forwards in self.at and processes.rank() == self.rank

    def project(self, pooled, is_inner=False):
        vectors = super().project(pooled, is_inner)
        if is_inner:
            return vectors
        name, self.num_views = _VIEWS[self.num_views], self.num_views + 1
        if self._is_now(name):
            is_bad = torch.arange(len(vectors), device=vectors.device) == self.row
            vectors = torch.where(is_bad[:, None], torch.nan, vectors)
        return vectors

    def loss(self, views):
        loss, terms = super().loss(views)
        if self._is_now("loss"):
            loss = loss * torch.nan
        if self._is_now("slope"):
            loss = loss + _steep(views.query[self.row])
        if self._is_now("weight"):
            loss = loss + _steep(next(self.parameters()))
        self.num_forwards, self.num_views = self.num_forwards + 1, 0
        return loss, terms


def _steep(values):
    """0, whose slope is not finite: that of a square root at 0."""
    return (values.flatten()[0] - values.flatten()[0].detach()).abs().sqrt().float()


class Flat(Planted):
    """One vector for all sentences."""

    def project(self, pooled, is_inner=False):
        return super().project(pooled, is_inner) * 0 + 1
