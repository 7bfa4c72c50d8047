"""The table of token-level perturbations between batches (METHODS.md 1: V; RobustSentEmbed Algorithm 1).

    read:   eta_i = table[w_i]
    sums:   for each distinct word w of the batch, the sum and the count of its positions' eta
    write:  table[w] <- sum / count; other words keep their row bit for bit

Sums run in float32 (float64 for float64) over positions stably sorted by word, in position order: the same
batch gives the same table on every run, on a GPU as well. Sums and counts of micro-batches or ranks add up
before the write.
"""

import torch
from torch import Tensor

from .backend import resolve
from .segment import at_least_float32


def eta_table_read(table: Tensor, token_ids: Tensor, *, backend: str | None = None) -> Tensor:
    """Rows of ``table`` (V, E) for ``token_ids`` (T,): (T, E), a copy."""
    resolve("eta_table_read", table, backend)
    return table.index_select(0, token_ids)


def eta_table_sums(eta: Tensor, token_ids: Tensor, *, backend: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of ``eta`` (T, E) over the positions of each word.

    Returns:
        ids (U,) int64, sorted and distinct; sums (U, E), float32 or float64; counts (U,) int64.
    """
    resolve("eta_table_sums", eta, backend)
    ordered_ids, order = torch.sort(token_ids, stable=True)
    ids, counts = torch.unique_consecutive(ordered_ids, return_counts=True)
    rows = at_least_float32(eta)[order]
    sums = torch.segment_reduce(rows, "sum", lengths=counts, axis=0, unsafe=True, initial=0)
    return ids, sums, counts


@torch.no_grad()
def eta_table_write(table: Tensor, ids: Tensor, sums: Tensor, counts: Tensor, *, backend: str | None = None) -> None:
    """Sets ``table[ids]`` to ``sums / counts``, in place. A count of 0 makes its row NaN."""
    resolve("eta_table_write", table, backend)
    table[ids] = (sums / counts.unsqueeze(1)).to(table.dtype)
