"""The layout of packed sentences for attention, in which each sentence attends to itself alone.

Everything else in a transformer works token by token and runs on (T, D) without padding; only in attention (and in
pooling) the tokens are laid out as (B, L), because the matrix products of a batch want one shape. Which attention
runs on that layout is ``attention_kinds.py``'s business.
"""

from dataclasses import dataclass, field, replace
from typing import Optional

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch

_ALIGNED = 8
"""entries; what torch's memory-efficient attention asks of a bias's strides"""


@dataclass(frozen=True)
class HeadLayout:
    """Where the T * H rows of one head's d entries lie in a (B, H, L) layout."""

    index: Tensor
    """(T * H,) int64, (sentence * H + head) * L + position"""
    source: Tensor
    """(B * H * L,) int64, the row that fills each place. Behind a sentence's end it is that of its own first token, so
    that what is not finite stays in its sentence; the bias gives it the weight 0"""
    bias: Optional[Tensor]
    """(B * H, 1, L), added to logits: 0 at real tokens, -inf behind a sentence's end; None where none is padded"""


@dataclass(frozen=True)
class Padding:
    """Where the T packed tokens of a batch lie in a (B, L) layout."""

    index: Tensor
    """(T,) int64, row * L + position"""
    mask: Optional[Tensor]
    """(B, 1, 1, L) bool, true at real tokens; None where no sentence is padded"""
    first_tokens: Tensor
    """(B,) int64, the packed position of each sentence's first token"""
    cu_seqlens: Tensor
    """(B + 1,) int32, the batch's"""
    num_sentences: int
    max_seqlen: int
    _heads: dict = field(default_factory=dict, repr=False)
    _whole: dict = field(default_factory=dict, repr=False)
    _aligned: dict = field(default_factory=dict, repr=False)

    def heads(self, num_heads: int, dtype: torch.dtype) -> HeadLayout:
        """The layout head by head, worked out once for each number of heads and type of the logits."""
        layout = self._heads.get((num_heads, dtype))
        if layout is None:
            layout = self._heads[num_heads, dtype] = _head_layout(self, num_heads, dtype)
        return layout

    def aligned(self, multiple: int) -> "Padding":
        """This layout with rows added behind the T, up to a multiple, that lie where no token does.

        What they hold reaches no token's result: nothing is attended to there, and nobody reads them. Where there is
        no room for them the layout stays as it is.
        """
        num_added = -len(self.index) % multiple
        if num_added == 0 or self.num_sentences * self.max_seqlen - len(self.index) < num_added:
            return self
        aligned = self._aligned.get(multiple)
        if aligned is None:
            is_free = torch.ones(self.num_sentences * self.max_seqlen, dtype=torch.bool, device=self.index.device)
            is_free[self.index] = False
            index = torch.cat([self.index, is_free.nonzero().flatten()[:num_added]])
            aligned = self._aligned[multiple] = replace(self, index=index, _heads={}, _whole={}, _aligned={})
        return aligned

    @property
    def source(self) -> Tensor:
        """(B * L,) int64, the row that fills each place: behind a sentence's end its own first token, as in
        `HeadLayout`."""
        source = self._whole.get("source")
        if source is None:
            source = self.first_tokens.repeat_interleave(self.max_seqlen)
            source[self.index] = torch.arange(len(self.index), device=source.device)
            self._whole["source"] = source
        return source

    def bias(self, dtype: torch.dtype) -> Optional[Tensor]:
        """(B, 1, 1, L) in ``dtype``, added to logits: 0 at real tokens, -inf behind a sentence's end; None where no
        sentence is padded. Worked out once: attention turns a mask into it in every layer."""
        if self.mask is None:
            return None
        bias = self._whole.get(dtype)
        if bias is None:
            # Rows begin at multiples of `_ALIGNED` entries, or fused attention copies them at every call.
            width = -(-self.max_seqlen // _ALIGNED) * _ALIGNED
            bias = torch.zeros(self.num_sentences, 1, 1, width, dtype=dtype, device=self.mask.device)
            bias = bias[..., : self.max_seqlen].masked_fill_(~self.mask, float("-inf"))
            self._whole[dtype] = bias
        return bias


def _head_layout(padding: Padding, num_heads: int, dtype: torch.dtype) -> HeadLayout:
    num_sentences, length, device = padding.num_sentences, padding.max_seqlen, padding.index.device
    heads = torch.arange(num_heads, device=device)
    rows = padding.index // length
    index = ((rows[:, None] * num_heads + heads) * length + (padding.index % length)[:, None]).flatten()
    source = padding.first_tokens[:, None, None] * num_heads + heads[None, :, None]
    source = source.repeat(1, 1, length).flatten()
    source[index] = torch.arange(len(index), device=device)
    bias = None
    if padding.mask is not None:
        bias = torch.zeros(padding.mask.shape, dtype=dtype, device=device)
        bias = bias.masked_fill_(~padding.mask, float("-inf")).repeat(1, num_heads, 1, 1)
        bias = bias.view(num_sentences * num_heads, 1, length)
    return HeadLayout(index, source, bias)


def padding_of(batch: PackedBatch) -> Padding:
    """The layout of a batch, worked out once and kept with it: inner steps encode one batch many times."""
    padding = batch.remembered.get("padding")
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
        padding = Padding(index, mask, starts, batch.cu_seqlens, num_sentences, max_seqlen)
        batch.remembered["padding"] = padding
    return padding


class _Scatter(torch.autograd.Function):
    """rows (T, D) -> (size, D), zeros but at ``index``. Indices are distinct: the gradient is a gather."""

    @staticmethod
    def forward(rows, index, size):
        return rows.new_zeros(size, rows.shape[1]).index_copy_(0, index, rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return _Gather.apply(grad, index), None, None


class _Gather(torch.autograd.Function):
    """(size, D) -> its rows at ``index`` (T, D). Autograd's own gradient adds where this one copies."""

    @staticmethod
    def forward(grid, index):
        return grid.index_select(0, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        grid, index = inputs
        ctx.save_for_backward(index)
        ctx.size = grid.shape[0]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return _Scatter.apply(grad, index, ctx.size), None


class _Fill(torch.autograd.Function):
    """rows (N, d) -> rows[source] (size, d), which has every row at ``index`` and a copy of some row elsewhere.

    The gradient is a gather: it takes that at the copies for 0, as it is where no weight reaches them.
    """

    @staticmethod
    def forward(rows, source, index):
        return rows.index_select(0, source)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return _Gather.apply(grad, index), None, None


def pad(rows: Tensor, padding: Padding) -> Tensor:
    """(T, D) -> (B, L, D), zeros where there is no token."""
    num_sentences, max_seqlen = padding.num_sentences, padding.max_seqlen
    if padding.mask is not None:
        rows = _Scatter.apply(rows, padding.index, num_sentences * max_seqlen)
    return rows.view(num_sentences, max_seqlen, rows.shape[-1])


def pad_filled(rows: Tensor, padding: Padding) -> Tensor:
    """(T, D) -> (B, L, D), copies of real rows where there is no token: the weight there must be 0.

    One gather where `pad` writes zeros and then rows.
    """
    if padding.mask is not None:
        rows = _Fill.apply(rows, padding.source, padding.index)
    return rows.view(padding.num_sentences, padding.max_seqlen, rows.shape[-1])


def unpad(grid: Tensor, padding: Padding) -> Tensor:
    """(B, L, D) -> (T, D)."""
    rows = grid.reshape(-1, grid.shape[-1])
    return rows if padding.mask is None else _Gather.apply(rows, padding.index)


def first_rows(rows: Tensor, padding: Padding) -> Tensor:
    """(T, D) -> (B, D), the first token of each sentence."""
    return _Gather.apply(rows, padding.first_tokens)


def pad_heads(rows: Tensor, layout: HeadLayout, num_heads: int, max_seqlen: int) -> Tensor:
    """(T, D) -> (B * H, L, D / H), copies of real rows where there is no token: the weight there must be 0.

    One copy where ``pad`` and a transpose make two, and no zeros to write.
    """
    head_size = rows.shape[1] // num_heads
    filled = _Fill.apply(rows.reshape(-1, head_size), layout.source, layout.index)
    return filled.view(-1, max_seqlen, head_size)


def unpad_heads(grid: Tensor, layout: HeadLayout, num_heads: int) -> Tensor:
    """(B * H, L, D / H) -> (T, D)."""
    head_size = grid.shape[-1]
    return _Gather.apply(grid.reshape(-1, head_size), layout.index).view(-1, num_heads * head_size)
