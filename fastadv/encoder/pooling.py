"""Token states to one vector a sentence."""

import torch
from torch import Tensor

from fastadv.encoder.attention.layout import Padding, first_rows, pad


def num_modes(pooling: str) -> int:
    """How many vectors of D numbers stand one after another in a pooled one."""
    return len(pooling.split("+"))


def pool(pooling: str, first: Tensor, last: Tensor, lengths: Tensor, padding: Padding, num_skipped: int = 0) -> Tensor:
    """(B, k * D) of the last hidden states (T, D), as sentence-transformers pools them; k is `num_modes`.

    ``first_last`` takes the mean of the average with the embedding output ``first`` (T, D) (BERT-flow, SimCSE).

    Args:
        lengths: (B,) tokens of each sentence.
        num_skipped: tokens at the start of every sentence that no vector is made of.
    """
    if pooling == "cls" and not num_skipped:
        return first_rows(last, padding)
    if pooling == "first_last":
        pooling, last = "mean", (first + last) / 2
    # Summed in float32 at least. A sum over the padded layout has a fixed order on every device; a scatter-add has not.
    grid = pad(last.to(torch.promote_types(last.dtype, torch.float32)), padding)
    counted = (lengths - num_skipped).to(grid.dtype)[:, None]
    places = torch.arange(grid.shape[1], device=grid.device)
    if num_skipped:
        grid = grid.masked_fill((places < num_skipped)[:, None], 0)
    pooled = [_pool(mode, grid, places, lengths, counted, num_skipped) for mode in pooling.split("+")]
    return torch.cat(pooled, dim=-1).to(last.dtype)


def mean_pool(states: Tensor, lengths: Tensor, padding: Padding) -> Tensor:
    """The mean over all tokens, special ones included. (T, D) -> (B, D)"""
    return pool("mean", states, states, lengths, padding)


def _pool(mode: str, grid: Tensor, places: Tensor, lengths: Tensor, counted: Tensor, num_skipped: int) -> Tensor:
    """(B, D) of states (B, L, D) that are 0 where they do not count."""
    if mode == "cls":
        return grid[:, num_skipped]
    if mode == "mean":
        return grid.sum(1) / counted
    if mode == "mean_sqrt_len":
        return grid.sum(1) / counted.sqrt()
    if mode == "lasttoken":
        return grid[torch.arange(len(grid), device=grid.device), lengths - 1]
    if mode == "max":
        is_counted = (places >= num_skipped) & (places < lengths[:, None])
        return grid.masked_fill(~is_counted[..., None], float("-inf")).amax(1)
    # weightedmean: the place from 1, as a weight.
    is_counted = (places >= num_skipped) & (places < lengths[:, None])
    weights = ((places + 1) * is_counted).to(grid.dtype)
    return torch.einsum("bl,bld->bd", weights, grid) / weights.sum(1, keepdim=True)
