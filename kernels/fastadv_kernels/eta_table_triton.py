"""Triton forms of the eta table's reads and writes (``eta_table.py`` has their meaning)."""

import triton
import triton.language as tl
from torch import Tensor

from .segment_triton import alignment, on_device_of

READ_TILE_SIZE = 4096
READ_WARPS = 8
WRITE_COLUMNS = 128
"""One warp's 16-byte loads. A frequent word's chain of sums is long, so that the columns are what runs in parallel."""
WRITE_UNROLL = 16
"""positions whose rows are on their way at once; their sum stays in order"""


@triton.jit(do_not_specialize=["num_tokens", "vocabulary_size", "embedding_units"])
def read_kernel(
    table_ptr,
    token_ids_ptr,
    out_ptr,
    num_tokens,
    vocabulary_size,
    embedding_units,
    ALIGNMENT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    embedding_size = embedding_units * ALIGNMENT
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    words = tl.load(token_ids_ptr + tokens, mask=tokens < num_tokens, other=0).to(tl.int64)
    mask = (tokens < num_tokens)[:, None] & (columns < embedding_size)[None, :]
    # An id outside the table would read other memory unseen: its row shows as NaN.
    is_word = (words >= 0) & (words < vocabulary_size)
    rows = tl.load(
        table_ptr + words[:, None] * embedding_size + columns[None, :],
        mask=mask & is_word[:, None],
        other=float("nan"),
    )
    tl.store(out_ptr + tokens[:, None] * embedding_size + columns[None, :], rows, mask=mask)


@triton.jit(do_not_specialize=["vocabulary_size", "embedding_units"])
def write_kernel(
    table_ptr,
    ids_ptr,
    order_ptr,
    starts_ptr,
    eta_ptr,
    vocabulary_size,
    embedding_units,
    ALIGNMENT: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    embedding_size = embedding_units * ALIGNMENT
    word = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < embedding_size
    first = tl.load(starts_ptr + word).to(tl.int64)
    last = tl.load(starts_ptr + word + 1).to(tl.int64)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(first, last, UNROLL):
        for i in tl.static_range(UNROLL):
            has_position = start + i < last
            position = tl.load(order_ptr + start + i, mask=has_position, other=0).to(tl.int64)
            # Past the word's last position 0 is added, which leaves every sum that began at 0 as it is.
            total += tl.load(eta_ptr + position * embedding_size + columns, mask=mask & has_position, other=0.0).to(
                tl.float32
            )
    mean = tl.div_rn(total, tl.zeros((COLUMNS,), tl.float32) + (last - first).to(tl.float32))
    row = tl.load(ids_ptr + word).to(tl.int64)
    mask = mask & (row >= 0) & (row < vocabulary_size)
    tl.store(table_ptr + row * embedding_size + columns, mean.to(table_ptr.dtype.element_ty), mask=mask)


def launch_read(table: Tensor, token_ids: Tensor) -> Tensor:
    """Rows of table (V, E) for token_ids (T,): (T, E)."""
    table, token_ids = table.contiguous(), token_ids.contiguous()
    num_tokens, embedding_size = token_ids.shape[0], table.shape[1]
    out = table.new_empty(num_tokens, embedding_size)
    if out.numel() == 0:
        return out
    columns = triton.next_power_of_2(embedding_size)
    rows = max(1, READ_TILE_SIZE // columns)
    with on_device_of(table):
        read_kernel[(triton.cdiv(num_tokens, rows),)](
            table,
            token_ids,
            out,
            num_tokens,
            table.shape[0],
            embedding_size // alignment(embedding_size),
            ALIGNMENT=alignment(embedding_size),
            ROWS=rows,
            COLUMNS=columns,
            num_warps=READ_WARPS,
        )
    return out


def launch_write(table: Tensor, ids: Tensor, order: Tensor, starts: Tensor, eta: Tensor) -> None:
    """Sets row ids[u] of table (V, E), in place, to the mean of eta[order[starts[u]:starts[u + 1]]], in float32 and in
    that order. ids (U,), order (T,), starts (U + 1,), eta (T, E)."""
    if ids.shape[0] == 0 or table.shape[1] == 0:
        return
    # Only a contiguous table can be written in place by rows of embedding_size.
    target = table.contiguous()
    embedding_size = table.shape[1]
    with on_device_of(table):
        write_kernel[(ids.shape[0], triton.cdiv(embedding_size, WRITE_COLUMNS))](
            target,
            ids.contiguous(),
            order.contiguous(),
            starts.contiguous(),
            eta.contiguous(),
            table.shape[0],
            embedding_size // alignment(embedding_size),
            ALIGNMENT=alignment(embedding_size),
            COLUMNS=WRITE_COLUMNS,
            UNROLL=WRITE_UNROLL,
            num_warps=1,
        )
    if target is not table:
        table.copy_(target)
