"""Attention of packed sentences: each sentence attends to itself alone.

Everything else in a transformer works token by token and runs on (T, D) without padding; only here the tokens
are laid out as (B, L), because the matrix products of a batch want one shape.
"""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.data.packing import PackedBatch


class Padding(NamedTuple):
    """Where the T packed tokens of a batch lie in a (B, L) layout."""

    index: Tensor
    """(T,) int64, row * L + position"""
    mask: Optional[Tensor]
    """(B, 1, 1, L) bool, true at real tokens; None where no sentence is padded"""
    first_tokens: Tensor
    """(B,) int64, the packed position of each sentence's first token"""
    num_sentences: int
    max_seqlen: int


def padding_of(batch: PackedBatch) -> Padding:
    """The layout of a batch, worked out once and kept with it: inner steps encode one batch many times."""
    padding = vars(batch).get("padding")
    if padding is None:
        num_sentences, max_seqlen = batch.num_sentences, batch.max_seqlen
        starts = batch.cu_seqlens[:-1].long()
        positions = torch.arange(batch.num_tokens, device=starts.device) - starts[batch.token_sentence]
        mask = None
        # Both sides are Python numbers: no question to the device.
        if batch.num_tokens != num_sentences * max_seqlen:
            columns = torch.arange(max_seqlen, device=starts.device)
            mask = (columns < batch.lengths[:, None])[:, None, None, :]
        index = batch.token_sentence * max_seqlen + positions
        padding = Padding(index, mask, starts, num_sentences, max_seqlen)
        # The batch is frozen to its users; this is a memo, not a field.
        object.__setattr__(batch, "padding", padding)
    return padding


class _Scatter(torch.autograd.Function):
    """rows (T, D) -> (size, D), zeros but at ``index``. Indices are distinct: the gradient is a gather."""

    @staticmethod
    def forward(ctx, rows, index, size):
        ctx.save_for_backward(index)
        return rows.new_zeros(size, rows.shape[1]).index_copy_(0, index, rows)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return _Gather.apply(grad, index), None, None


class _Gather(torch.autograd.Function):
    """(size, D) -> its rows at ``index`` (T, D). Autograd's own gradient adds where this one copies."""

    @staticmethod
    def forward(ctx, grid, index):
        ctx.save_for_backward(index)
        ctx.size = grid.shape[0]
        return grid.index_select(0, index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return _Scatter.apply(grad, index, ctx.size), None


def pad(rows: Tensor, padding: Padding) -> Tensor:
    """(T, D) -> (B, L, D), zeros where there is no token."""
    num_sentences, max_seqlen = padding.num_sentences, padding.max_seqlen
    if padding.mask is not None:
        rows = _Scatter.apply(rows, padding.index, num_sentences * max_seqlen)
    return rows.view(num_sentences, max_seqlen, rows.shape[-1])


def unpad(grid: Tensor, padding: Padding) -> Tensor:
    """(B, L, D) -> (T, D)."""
    rows = grid.reshape(-1, grid.shape[-1])
    return rows if padding.mask is None else _Gather.apply(rows, padding.index)


def first_rows(rows: Tensor, padding: Padding) -> Tensor:
    """(T, D) -> (B, D), the first token of each sentence."""
    return _Gather.apply(rows, padding.first_tokens)


def self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Padding,
    num_heads: int,
    dropout_p: float,
    first_tokens_only: bool = False,
) -> Tensor:
    """Softmax attention inside each sentence, logits scaled by 1 / sqrt(head size).

    Args:
        query: (T, D), or (B, D) with ``first_tokens_only``: then the first token of each sentence asks alone.
        key, value: (T, D).
        dropout_p: probability with which an attention weight is dropped; 0 is off.

    Returns:
        (T, D) or (B, D), as ``query``.
    """
    asking = query.unsqueeze(1) if first_tokens_only else pad(query, padding)
    heads = [_split_heads(grid, num_heads) for grid in (asking, pad(key, padding), pad(value, padding))]
    # In half precision on the CPU, torch's fused attention is slower than its own matrix products.
    is_half_on_cpu = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    attend = _matmul_attention if is_half_on_cpu else _fused_attention
    states = attend(*heads, padding.mask, dropout_p).transpose(1, 2).flatten(2)
    return states.squeeze(1) if first_tokens_only else unpad(states, padding)


def _fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], dropout_p: float) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_p)


def _matmul_attention(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], dropout_p: float) -> Tensor:
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    weights = logits.softmax(-1)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return weights @ value


def _split_heads(grid: Tensor, num_heads: int) -> Tensor:
    """(B, L, D) -> (B, H, L, D / H)."""
    return grid.unflatten(-1, (num_heads, -1)).transpose(1, 2)
