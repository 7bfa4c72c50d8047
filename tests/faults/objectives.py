"""Objectives that go wrong where the environment says, and so stay one and the same to a checkpoint."""

import os
from dataclasses import replace

import torch

from fastadv.distributed import processes
from fastadv.objectives.base import Views
from fastadv.objectives.sentences.robustsentembed import RobustSentEmbed


def _number(name: str) -> int:
    return int(os.environ.get(name, "-1"))


class Planted(RobustSentEmbed):
    """RobustSentEmbed with a NaN in one row of one batch, or a signal to the process in the midst of one.

    FAULT_BATCH counts the batches from 0, of this process; FAULT_RANK is the only rank it happens on (any, where it is
    not set); FAULT_IN is where: ``inner``, the inner loss, or ``loss``, the outer one. There FAULT_ROW gets a NaN, or
    the process the signal of number FAULT_SIGNAL.
    """

    num_batches = 0

    def _plant(self, where: str, values: torch.Tensor) -> torch.Tensor:
        is_here = _number("FAULT_RANK") in (-1, processes.rank()) and os.environ.get("FAULT_IN") == where
        if not is_here or self.num_batches != _number("FAULT_BATCH"):
            return values
        if _number("FAULT_SIGNAL") > 0:
            os.kill(os.getpid(), _number("FAULT_SIGNAL"))
            return values
        factors = torch.ones_like(values)
        factors[_number("FAULT_ROW")] = float("nan")
        return values * factors

    def inner_loss(self, views):
        return super().inner_loss(replace(views, query=self._plant("inner", views.query)))

    def loss(self, views: Views) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        planted = self._plant("loss", views.query)
        self.num_batches += 1
        return super().loss(replace(views, query=planted))
