"""Objectives that go wrong where the environment says, and so stay one and the same to a checkpoint."""

import os
from dataclasses import replace

import torch

from fastadv.engine import processes
from fastadv.objectives.base import Views
from fastadv.objectives.robustsentembed import RobustSentEmbed


def _number(name: str) -> int:
    return int(os.environ.get(name, "-1"))


class Planted(RobustSentEmbed):
    """RobustSentEmbed with a NaN in one row of one batch.

    FAULT_BATCH counts the batches from 0, of this process; FAULT_ROW is the row; FAULT_RANK the only rank it happens on
    (any, where it is not set); FAULT_IN is where: ``inner``, the inner loss, or ``loss``, the outer one.
    """

    num_batches = 0

    def _plant(self, where: str, values: torch.Tensor) -> torch.Tensor:
        is_here = _number("FAULT_RANK") in (-1, processes.rank()) and os.environ.get("FAULT_IN") == where
        if not is_here or self.num_batches != _number("FAULT_BATCH"):
            return values
        factors = torch.ones_like(values)
        factors[_number("FAULT_ROW")] = float("nan")
        return values * factors

    def inner_loss(self, query, keys, sentence_ids):
        return super().inner_loss(self._plant("inner", query), keys, sentence_ids)

    def loss(self, views: Views) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        planted = self._plant("loss", views.query)
        self.num_batches += 1
        return super().loss(replace(views, query=planted))
