"""Draws a token from each row of a masked language model's logits, at the cost of little more than their exp.

Two uniform numbers a row choose first a block of the vocabulary by its sum of weights exp(logit - max), then a token in
it by its weight: P(block) P(token | block) = softmax. The logits are the only (M, V) there is, and are overwritten.
``torch.multinomial`` draws an exponential for each of the M V probabilities: on a CPU four times the cost of the head.
"""

import torch
from torch import Tensor

BLOCK = 256
"""tokens; about the square root of a vocabulary, so that neither choice is longer than it must be"""


def draw_tokens(logits: Tensor, block: int = BLOCK) -> Tensor:
    """(M,) int64 from the softmax of ``logits`` (M, V) of float32 or float64, which are overwritten.

    A logit of -inf is never drawn; each row must have a finite one.
    """
    num_tokens = logits.shape[1]
    weights = logits.sub_(logits.amax(1, keepdim=True)).exp_()
    num_whole = num_tokens // block
    sums = [weights[:, : num_whole * block].unflatten(1, (num_whole, block)).sum(2)] if num_whole else []
    if num_tokens > num_whole * block:
        sums.append(weights[:, num_whole * block :].sum(1, keepdim=True))
    first = draw_columns(torch.cat(sums, 1)) * block
    columns = first + torch.arange(block, device=logits.device)
    inside = weights.gather(1, columns.clamp(max=num_tokens - 1)).masked_fill_(columns >= num_tokens, 0)
    return (first + draw_columns(inside)).squeeze(1)


def draw_columns(weights: Tensor) -> Tensor:
    """(M, 1) int64: column j of ``weights`` (M, K) with probability weights[:, j] / their sum, never one of 0."""
    cumulative = weights.double().cumsum(1)
    total = cumulative[:, -1:]
    drawn = torch.rand(total.shape, dtype=total.dtype, device=total.device) * total
    # A product that rounds up to the total would choose a column behind the last.
    drawn = drawn.minimum(total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, drawn, right=True)
