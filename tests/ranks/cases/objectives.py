"""What the run worker and its test share."""

import torch
from torch import nn

from fastadv.distributed import processes
from fastadv.objectives.sentences.robustsentembed import RobustSentEmbed

STAGES = ((0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16"))


class BadOnRankOne(RobustSentEmbed):
    """Its inner gradient is NaN on one rank alone."""

    def inner_loss(self, views):
        loss = super().inner_loss(views)
        return loss * float("nan") if processes.rank() == 1 else loss


class _Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.linspace(-0.1, 0.1, 7))

    def forward(self, z):
        return z + nn.functional.pad(self.by, (0, z.shape[-1] - 7)).to(z.dtype)


class OddlySized(RobustSentEmbed):
    """Seven parameters more, so that no even number of processes cuts them, or their group, without filling up."""

    def __init__(self, hidden_size: int, **options):
        super().__init__(hidden_size, **options)
        self.shift = _Shift()

    def project(self, pooled, is_inner=False):
        return self.shift(super().project(pooled, is_inner))
