"""The table of token-level perturbations between batches (METHODS.md 1: V; RobustSentEmbed Algorithm 1).

    read:        eta_i = table[w_i]
    sums:        for each distinct word w of the batch, the sum and the count of its positions' eta
    write:       table[w] <- sum / count; other words keep their row bit for bit
    write_mean:  sums and write at once, for a batch that is all there is

Sums run in float32 (float64 for float64) over positions stably sorted by word, in position order: the same
batch gives the same table on every run, on a GPU as well. Sums and counts of micro-batches or ranks add up
before the write.
"""

from typing import Optional

import torch
from torch import Tensor

from .backend import native_library, reference_alone, resolve
from .library import define_op, run_op
from .native import packed_arguments, vector
from .segment import at_least_float32, check_floating


def _read_fake(table, token_ids):
    return table.new_empty(token_ids.shape[0], table.shape[1])


def _read_native(table, token_ids):
    (table,) = packed_arguments("eta_table_read", None, table=table)
    token_ids = vector("eta_table_read", "token_ids", token_ids, torch.int64)
    out = table.new_empty(token_ids.shape[0], table.shape[1])
    native_library.eta_table_read(
        table.data_ptr(),
        token_ids.data_ptr(),
        out.data_ptr(),
        num_words=table.shape[0],
        num_tokens=token_ids.shape[0],
        embedding_size=table.shape[1],
    )
    return out


def _write_mean_fake(table, ids, order, starts, eta):
    return None


def _write_mean_native(table, ids, order, starts, eta):
    op = "eta_table_write_mean"
    (rows,) = packed_arguments(op, None, table=table)
    (eta,) = packed_arguments(op, None, eta=eta)
    indices = (("ids", ids), ("order", order), ("starts", starts))
    ids, order, starts = (vector(op, name, index, torch.int64) for name, index in indices)
    if eta.shape[1] != rows.shape[1] or starts.shape[0] != ids.shape[0] + 1:
        shapes = f"eta {tuple(eta.shape)}, table {tuple(rows.shape)}, ids {ids.shape[0]}, starts {starts.shape[0]}"
        raise ValueError(f"{op}: shapes are {shapes}; allowed: (T, E), (V, E), U, U + 1")
    native_library.eta_table_write_mean(
        rows.data_ptr(),
        ids.data_ptr(),
        order.data_ptr(),
        starts.data_ptr(),
        eta.data_ptr(),
        vocab_size=rows.shape[0],
        num_written=ids.shape[0],
        num_positions=order.shape[0],
        num_tokens=eta.shape[0],
        embedding_size=rows.shape[1],
    )
    if not table.is_contiguous():
        table.copy_(rows)


define_op(
    "eta_table_read(Tensor table, Tensor token_ids) -> Tensor",
    _read_fake,
    _read_native,
    "eta_table_triton:launch_read",
)
define_op(
    "eta_table_write_mean(Tensor(a!) table, Tensor ids, Tensor order, Tensor starts, Tensor eta) -> ()",
    _write_mean_fake,
    _write_mean_native,
    "eta_table_triton:launch_write",
)
reference_alone("eta_table_sums")
reference_alone("eta_table_write")


def _check_words(op: str, token_ids: Tensor, rows: Tensor, num_tokens: Optional[int]) -> None:
    """Raises ValueError unless ``token_ids`` is int64 (T,) where ``rows`` is."""
    if token_ids.dtype != torch.int64 or token_ids.ndim != 1 or num_tokens not in (None, token_ids.shape[0]):
        allowed = "int64 (T,)" if num_tokens is None else f"int64 ({num_tokens},)"
        raise ValueError(f"{op}: token_ids is {token_ids.dtype} {tuple(token_ids.shape)}; allowed: {allowed}")
    if token_ids.device != rows.device:
        raise ValueError(f"{op}: token_ids is on {token_ids.device}; allowed: {rows.device}, where the rows are")


def eta_table_read(table: Tensor, token_ids: Tensor, *, backend: Optional[str] = None) -> Tensor:
    """Rows of ``table`` (V, E) for ``token_ids`` (T,) int64: (T, E), a copy.

    Raises:
        ValueError: types, shapes or devices that do not fit.
        IndexError: a word outside the table.
        BackendError: the named backend cannot run.
    """
    check_floating("eta_table_read", "table", table)
    _check_words("eta_table_read", token_ids, table, None)
    chosen = resolve("eta_table_read", table, backend)
    if chosen != "reference":
        return run_op("eta_table_read", chosen, table, token_ids)
    return table.index_select(0, token_ids)


def _sort_words(token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct words (U,), the positions (T,) sorted by word, and each word's count (U,)."""
    ordered_ids, order = torch.sort(token_ids, stable=True)
    ids, counts = torch.unique_consecutive(ordered_ids, return_counts=True)
    return ids, order, counts


def eta_table_sums(eta: Tensor, token_ids: Tensor, *, backend: Optional[str] = None) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of ``eta`` (T, E) over the positions of each word of ``token_ids`` (T,) int64.

    Returns:
        ids (U,) int64, sorted and distinct; sums (U, E), float32 or float64; counts (U,) int64.

    Raises:
        ValueError: types, shapes or devices that do not fit.
    """
    check_floating("eta_table_sums", "eta", eta)
    _check_words("eta_table_sums", token_ids, eta, eta.shape[0])
    resolve("eta_table_sums", eta, backend)
    ids, order, counts = _sort_words(token_ids)
    rows = at_least_float32(eta)[order]
    sums = torch.segment_reduce(rows, "sum", lengths=counts, axis=0, unsafe=True, initial=0)
    return ids, sums, counts


@torch.no_grad()
def eta_table_write(table: Tensor, ids: Tensor, sums: Tensor, counts: Tensor, *, backend: Optional[str] = None) -> None:
    """Sets ``table[ids]`` to ``sums / counts``, in place. A count of 0 makes its row NaN."""
    resolve("eta_table_write", table, backend)
    table[ids] = (sums / counts.unsqueeze(1)).to(table.dtype)


@torch.no_grad()
def eta_table_write_mean(table: Tensor, token_ids: Tensor, eta: Tensor, *, backend: Optional[str] = None) -> None:
    """Sets the row of every word of ``token_ids`` (T,) to the mean of its positions' ``eta`` (T, E), in place.

    The same bits as ``eta_table_write(table, *eta_table_sums(eta, token_ids))``, whichever form runs.

    Args:
        table: (V, E), of eta's width.

    Raises:
        ValueError: types, shapes or devices that do not fit.
        IndexError: a word outside the table.
        BackendError: the named backend cannot run.
    """
    check_floating("eta_table_write_mean", "table", table)
    check_floating("eta_table_write_mean", "eta", eta)
    if table.shape[1] != eta.shape[1] or table.device != eta.device:
        given = " and ".join(f"{tuple(t.shape)} on {t.device}" for t in (table, eta))
        raise ValueError(f"eta_table_write_mean: table and eta are {given}; allowed: one width and device for both")
    _check_words("eta_table_write_mean", token_ids, eta, eta.shape[0])
    chosen = resolve("eta_table_write_mean", (table, eta), backend)
    if chosen == "reference":
        eta_table_write(table, *eta_table_sums(eta, token_ids, backend=chosen), backend=chosen)
    else:
        ids, order, counts = _sort_words(token_ids)
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        run_op("eta_table_write_mean", chosen, table, ids, order, starts, eta)
