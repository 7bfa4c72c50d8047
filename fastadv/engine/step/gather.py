"""The global batch: which of its rows this rank has, and how the ranks' vectors meet.

Ranks stand in order, so row i of rank r is row ``row_offset + i`` of the whole. Nothing here is called in the inner
loop, and on one process nothing is sent.
"""

from itertools import accumulate
from typing import Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.distributed.processes import rank, world_size
from fastadv.objectives.base import Keys
from fastadv.objectives.ranks import Ranks


class AllRanks(Ranks):
    """The ranks of this run, as objectives meet them."""

    def __init__(self):
        self.num_ranks, self.rank = world_size(), rank()

    def stack(self, values: Tensor) -> Tensor:
        return gather_rows(values[None], [1] * self.num_ranks)


class GlobalBatch(AllRanks):
    """Rows and tokens of all ranks' shares of one batch. All ranks make it together.

    Attributes:
        rows: sentences of each rank.
        num_rows, num_tokens: of all ranks.
        row_offset: the global row of this rank's first.
        rank, num_ranks: this process's number, and how many there are.
    """

    def __init__(self, batch: PackedBatch):
        super().__init__()
        counts = [[batch.num_sentences, batch.num_tokens]]
        if self.num_ranks > 1:
            own = torch.tensor(counts[0], device=batch.input_ids.device)
            counts = torch.stack(_all_gather(own, self.num_ranks)).tolist()
        self.rows = [rows for rows, _ in counts]
        self.num_rows, self.num_tokens = sum(self.rows), sum(tokens for _, tokens in counts)
        self.row_offset = sum(self.rows[: self.rank])

    @property
    def rows_a_rank(self) -> float:
        """What a sum over this rank's rows is divided by, so that the mean over ranks is that over all rows."""
        return self.num_rows / self.num_ranks

    @property
    def tokens_a_rank(self) -> float:
        """The same for tokens."""
        return self.num_tokens / self.num_ranks

    def gather(self, values: Tensor) -> Tensor:
        return gather_rows(values, self.rows)

    def gather_keys(self, vectors: Tensor, sentence_ids: Tensor) -> Keys:
        """Keys (M, D) of all ranks' ``vectors`` (B, D), with their graph, and ``sentence_ids`` (B,)."""
        ids = gather_rows(sentence_ids, self.rows)
        return Keys(gather_rows(vectors, self.rows), ids, self.row_offset, self.num_ranks)


def gather_rows(values: Tensor, rows: Sequence[int]) -> Tensor:
    """All ranks' ``values`` (rows[r], ...) in rank order; their gradients are summed over ranks."""
    return values if len(rows) == 1 else _GatherRows.apply(values, tuple(rows))


def gather_unequal(values: Tensor) -> Tensor:
    """``gather_rows`` of constants where only each rank knows how many it has."""
    if world_size() == 1:
        return values
    own = torch.tensor([len(values)], device=values.device)
    return gather_rows(values, torch.cat(_all_gather(own, world_size())).tolist())


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, rows: tuple[int, ...]) -> Tensor:
        ctx.rows, ctx.rank = rows, rank()
        most = max(rows)
        # Every rank sends as many rows as the one that has most.
        sent = values.new_zeros((most, *values.shape[1:]))
        sent[: len(values)] = values
        found = _all_gather(sent, len(rows))
        return torch.cat([part[:count] for part, count in zip(found, rows, strict=True)])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        # In float32 at least: a sum of as many terms as there are ranks.
        summed = grad.to(torch.promote_types(grad.dtype, torch.float32)).contiguous()
        if summed is grad:
            summed = grad.clone()
        dist.all_reduce(summed)
        ends = list(accumulate(ctx.rows))
        own = summed[ends[ctx.rank] - ctx.rows[ctx.rank] : ends[ctx.rank]]
        return own.to(grad.dtype), None


def _all_gather(values: Tensor, num_ranks: int) -> list[Tensor]:
    found = [torch.empty_like(values) for _ in range(num_ranks)]
    dist.all_gather(found, values.contiguous())
    return found
