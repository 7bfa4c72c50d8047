"""What every fast form of ``info_nce`` does with a row once its logits have been summed up: (N,) work, no matrix.

Names: S key sets, N rows, G denominators a row: S for "separate", else 1. ``positive`` (S, N) are the positives'
logits, ``negative`` (G, N) the log-sum-exps of the negatives, -inf in every group of a row that has none.
The formulas are those of ``info_nce``; its docstring says where they come from.
"""

import math

from torch import Tensor
from torch.nn.functional import logsigmoid


def own_positive(positive: Tensor, multi_positive: str) -> Tensor:
    """The numerators' logarithms, (G, N)."""
    return positive if multi_positive == "separate" else positive.logsumexp(dim=0, keepdim=True)


def row_losses(positive: Tensor, negative: Tensor, multi_positive: str) -> Tensor:
    """The losses, (N,); 0 for rows without a negative."""
    loss = -logsigmoid(own_positive(positive, multi_positive) - negative).mean(dim=0)
    if multi_positive == "mean" and positive.shape[0] > 1:
        loss = loss + (positive.logsumexp(dim=0) - positive.mean(dim=0))
    return loss.masked_fill(negative[0] == -math.inf, 0)


def row_scales(positive: Tensor, negative: Tensor, multi_positive: str) -> tuple[Tensor, Tensor, Tensor]:
    """What turns logits into derivatives of the loss.

    Returns:
        key_scale (S, N): d loss_i / d logit = exp(logit + key_scale[m, i]) for a negative of key set m.
        hard_scale (N,): the same for hard negatives, which stand in every denominator.
        slope (S, N): the derivatives by the positives themselves.
    """
    num_sets, num_groups = positive.shape[0], negative.shape[0]
    has_none = negative == -math.inf
    gap = negative - own_positive(positive, multi_positive)
    # exp(logit - negative) is a negative's share of its denominator's negatives, sigmoid(gap) what they hold in all.
    # Their product is one exponential of a sum, so that neither factor can leave float32's range alone.
    scale = (logsigmoid(gap) - negative - math.log(num_groups)).masked_fill(has_none, 0)
    lost = gap.sigmoid() / num_groups
    if multi_positive == "separate":
        return scale, scale.logsumexp(dim=0), -lost
    softmax = positive.softmax(dim=0)
    slope = -lost * softmax
    if multi_positive == "mean":
        slope = slope + (softmax - 1 / num_sets).masked_fill(has_none, 0)
    return scale.expand(num_sets, -1), scale[0], slope
