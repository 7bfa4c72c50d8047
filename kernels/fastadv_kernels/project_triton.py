"""Triton forms of ``project``: a program a sentence, or a program a few rows where each row has its own ball."""

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from .segment_triton import (
    alignment,
    left_of,
    moved,
    on_ball,
    on_device_of,
    project_rows,
    row_size,
    sentence_ball,
    sentence_options,
    stride_of,
)

SENTENCE_BLOCK_OF_ONE = 4096
"""Half a step's block: with one input to hold, two programs fit a multiprocessor."""
ROW_TILE_SIZE = 4096
ROW_WARPS = 8


@triton.jit(do_not_specialize=["embedding_units", "epsilon_stride"])
def project_sentences_kernel(
    x_ptr,
    out_ptr,
    cu_seqlens_ptr,
    epsilon_ptr,
    embedding_units,
    epsilon_stride,
    ALIGNMENT: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sentence = tl.program_id(0)
    embedding_size = embedding_units * ALIGNMENT
    begin = tl.load(cu_seqlens_ptr + sentence).to(tl.int64) * embedding_size
    end = tl.load(cu_seqlens_ptr + sentence + 1).to(tl.int64) * embedding_size
    epsilon = tl.load(epsilon_ptr + sentence * epsilon_stride)
    is_outside, a, b = sentence_ball(x_ptr, x_ptr, 1.0, 1.0, epsilon, begin, end, NORM, "none", BLOCK)
    columns = tl.arange(0, BLOCK)
    for start in range(begin, end, BLOCK):
        num_left = left_of(start, end, BLOCK)
        x = moved(x_ptr + start, x_ptr + start, columns, num_left, 1.0, 1.0, "none")
        x = on_ball(x, epsilon, is_outside, a, b, NORM)
        tl.store(out_ptr + start + columns, x.to(out_ptr.dtype.element_ty), mask=columns < num_left)


@triton.jit(do_not_specialize=["num_rows", "embedding_units", "epsilon_stride"])
def project_rows_kernel(
    x_ptr,
    out_ptr,
    epsilon_ptr,
    num_rows,
    embedding_units,
    epsilon_stride,
    ALIGNMENT: tl.constexpr,
    NORM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    embedding_size = embedding_units * ALIGNMENT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (rows < num_rows)[:, None] & (columns < embedding_size)[None, :]
    offsets = rows[:, None] * embedding_size + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    epsilon = tl.load(epsilon_ptr + rows * epsilon_stride, mask=rows < num_rows, other=0.0)
    size = epsilon
    if NORM == "l2":
        size = row_size(x, NORM)
    x = project_rows(x, size, epsilon, NORM)
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=mask)


def launch(x: Tensor, epsilon: Tensor, norm: str, cu_seqlens: Optional[Tensor]) -> Tensor:
    """Projection of x (T, E), in its dtype. epsilon is float32, (1,) or one a ball: (B,), without cu_seqlens (T,)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if out.numel() == 0:
        return out
    num_rows, embedding_size = x.shape
    units, units_of = embedding_size // alignment(embedding_size), alignment(embedding_size)
    with on_device_of(x):
        if cu_seqlens is None:
            columns = triton.next_power_of_2(embedding_size)
            rows = max(1, ROW_TILE_SIZE // columns)
            project_rows_kernel[(triton.cdiv(num_rows, rows),)](
                x,
                out,
                epsilon.contiguous(),
                num_rows,
                units,
                stride_of(epsilon),
                ALIGNMENT=units_of,
                NORM=norm,
                ROWS=rows,
                COLUMNS=columns,
                num_warps=ROW_WARPS,
            )
        else:
            project_sentences_kernel[(cu_seqlens.shape[0] - 1,)](
                x,
                out,
                cu_seqlens.contiguous(),
                epsilon.contiguous(),
                units,
                stride_of(epsilon),
                ALIGNMENT=units_of,
                NORM=norm,
                BLOCK=SENTENCE_BLOCK_OF_ONE,
                **sentence_options(),
            )
    return out
