"""Triton form of ``token_update`` (its module has the formula): a program a sentence, tiles of whole tokens.

eta and grad are read twice, for the largest size and for the update, and the second time they come from a cache: from
memory each is read once, and eta is written once.
"""

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from .segment_triton import (
    INFINITY_BITS,
    alignment,
    ascend_rows,
    left_of,
    magnitude_bits,
    on_device_of,
    project_rows,
    row_bits,
    row_size,
    sentence_options,
    stride_of,
)

TILE_SIZE = 8192
"""entries of a tile of tokens"""


@triton.jit(do_not_specialize=["embedding_units", "step_stride", "epsilon_stride"])
def token_update_kernel(
    eta_ptr,
    grad_ptr,
    out_ptr,
    cu_seqlens_ptr,
    step_size_ptr,
    epsilon_ptr,
    embedding_units,
    step_stride,
    epsilon_stride,
    ALIGNMENT: tl.constexpr,
    NORM: tl.constexpr,
    SCALING: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sentence = tl.program_id(0)
    embedding_size = embedding_units * ALIGNMENT
    first = tl.load(cu_seqlens_ptr + sentence).to(tl.int64)
    last = tl.load(cu_seqlens_ptr + sentence + 1).to(tl.int64)
    step_size = tl.load(step_size_ptr + sentence * step_stride)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    in_row = columns[None, :] < embedding_size
    # 64 bits for a tile's place, 32 for an entry's place in the tile: see left_of.
    in_tile = rows[:, None] * embedding_size + columns[None, :]

    # Bits of the largest gradient entry and of the largest size of a token, by rows of the tiles.
    worst = tl.zeros((ROWS,), tl.int32)
    largest = tl.zeros((ROWS,), tl.int32)
    for start in range(first, last, ROWS):
        mask = (rows < left_of(start, last, ROWS))[:, None] & in_row
        tile = start * embedding_size
        grad = tl.load(grad_ptr + tile + in_tile, mask=mask, other=0.0).to(tl.float32)
        bits = row_bits(grad)
        worst = tl.maximum(worst, bits)
        if SCALING != "none":
            v = tl.load(eta_ptr + tile + in_tile, mask=mask, other=0.0).to(tl.float32)
            if SCALING == "after":
                v = ascend_rows(v, grad, bits, step_size, NORM)
            largest = tl.maximum(largest, magnitude_bits(row_size(v, NORM)))

    if tl.max(worst, 0) >= INFINITY_BITS:
        for start in range(first, last, ROWS):
            mask = (rows < left_of(start, last, ROWS))[:, None] & in_row
            tile = start * embedding_size
            tl.store(out_ptr + tile + in_tile, tl.load(eta_ptr + tile + in_tile, mask=mask), mask=mask)
    else:
        largest_size = tl.max(largest, 0).to(tl.float32, bitcast=True)
        for start in range(first, last, ROWS):
            mask = (rows < left_of(start, last, ROWS))[:, None] & in_row
            tile = start * embedding_size
            eta = tl.load(eta_ptr + tile + in_tile, mask=mask, other=0.0).to(tl.float32)
            grad = tl.load(grad_ptr + tile + in_tile, mask=mask, other=0.0).to(tl.float32)
            u = ascend_rows(eta, grad, row_bits(grad), step_size, NORM)
            size = tl.zeros((ROWS,), tl.float32)
            if SCALING == "after" or NORM == "l2":
                size = row_size(u, NORM)
            if SCALING != "none":
                size_of_v = size
                if SCALING == "before":
                    size_of_v = row_size(eta, NORM)
                has_size = largest_size != 0
                n = tl.where(has_size, tl.div_rn(size_of_v, tl.where(has_size, largest_size, 1.0)), 1.0)
                u = u * n[:, None]
                size = size * n
            if epsilon_ptr is not None:
                epsilon = tl.load(epsilon_ptr + sentence * epsilon_stride)
                u = project_rows(u, size, tl.zeros((ROWS,), tl.float32) + epsilon, NORM)
            tl.store(out_ptr + tile + in_tile, u.to(out_ptr.dtype.element_ty), mask=mask)


def launch(
    eta: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    step_size: Tensor,
    epsilon: Optional[Tensor],
    norm: str,
    scaling: str,
) -> Tensor:
    """One step of eta (T, E), in eta's dtype. step_size and epsilon are float32, (1,) for all sentences or (B,)."""
    eta, grad = eta.contiguous(), grad.contiguous()
    out = torch.empty_like(eta)
    if out.numel() == 0:
        return out
    num_sentences, embedding_size = cu_seqlens.shape[0] - 1, eta.shape[1]
    columns = triton.next_power_of_2(embedding_size)
    with on_device_of(eta):
        token_update_kernel[(num_sentences,)](
            eta,
            grad,
            out,
            cu_seqlens.contiguous(),
            step_size.contiguous(),
            None if epsilon is None else epsilon.contiguous(),
            embedding_size // alignment(embedding_size),
            stride_of(step_size),
            0 if epsilon is None else stride_of(epsilon),
            ALIGNMENT=alignment(embedding_size),
            NORM=norm,
            SCALING=scaling,
            ROWS=max(1, TILE_SIZE // columns),
            COLUMNS=columns,
            **sentence_options(),
        )
    return out
