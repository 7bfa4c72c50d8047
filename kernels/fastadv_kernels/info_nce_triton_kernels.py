"""The products of ``info_nce_triton``. Logits carry a factor log2(e), for exp2 is what the hardware has.

Vectors come padded with zeros to whole tiles, so that their loads need no masks.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def negative_logits(
    query_ptr,
    key_ptr,
    query_factor,
    key_inverse_ptr,
    query_ids,
    key_ids_ptr,
    rows,
    columns,
    log_weight,
    log_own_weight,
    row_offset,
    num_columns,
    size,
    IS_HARD: tl.constexpr,
    HAS_IDS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A tile of logits times log2(e), -inf where a column is no negative. The vectors are padded to whole tiles."""
    inner = tl.arange(0, BLOCK_K)
    query_tile = query_ptr + rows.to(tl.int64)[:, None] * size + inner[None, :]
    key_tile = key_ptr + columns.to(tl.int64)[None, :] * size + inner[:, None]
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for _ in range(0, size, BLOCK_K):
        product = tl.dot(tl.load(query_tile), tl.load(key_tile), product, input_precision=PRECISION)
        query_tile += BLOCK_K
        key_tile += BLOCK_K
    logits = product * query_factor[:, None] * tl.load(key_inverse_ptr + columns)[None, :]
    is_own = (rows + row_offset)[:, None] == columns[None, :]
    is_negative = (columns < num_columns)[None, :]
    if IS_HARD:
        logits += tl.where(is_own, log_weight + log_own_weight, log_weight)
    else:
        is_negative = is_negative & (is_own == 0)
    if HAS_IDS:
        key_ids = tl.load(key_ids_ptr + columns, mask=columns < num_columns, other=0)
        is_negative = is_negative & (query_ids[:, None] != key_ids[None, :])
    return tl.where(is_negative, logits, -float("inf"))


@triton.jit(do_not_specialize=["row_offset", "num_rows", "num_columns", "padded_columns", "part_tiles"])
def log_sum_exp_kernel(
    query_ptr,
    key_ptr,
    query_inverse_ptr,
    key_inverse_ptr,
    query_ids_ptr,
    key_ids_ptr,
    out_ptr,
    inverse_temperature,
    weight,
    own_weight,
    row_offset,
    num_rows,
    num_columns,
    padded_columns,
    size,
    part_tiles,
    IS_HARD: tl.constexpr,
    HAS_IDS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A program a tile of rows, part of the columns and set: the log-sum-exp of its logits, out (sets, parts, N)."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    part = tl.program_id(1)
    number = tl.program_id(2).to(tl.int64)
    key_ptr += number * padded_columns * size
    key_inverse_ptr += number * padded_columns
    query_factor = tl.load(query_inverse_ptr + rows) * (inverse_temperature * LOG2E)
    query_ids = tl.load(query_ids_ptr + rows, mask=rows < num_rows, other=0) if HAS_IDS else rows
    log_weight = tl.log2(weight)
    log_own_weight = tl.log2(own_weight)
    largest = tl.full((BLOCK_R,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    first = part * part_tiles * BLOCK_C
    for start in range(first, tl.minimum(first + part_tiles * BLOCK_C, num_columns), BLOCK_C):
        logits = negative_logits(
            query_ptr,
            key_ptr,
            query_factor,
            key_inverse_ptr,
            query_ids,
            key_ids_ptr,
            rows,
            start + tl.arange(0, BLOCK_C),
            log_weight,
            log_own_weight,
            row_offset,
            num_columns,
            size,
            IS_HARD,
            HAS_IDS,
            PRECISION,
            BLOCK_R,
            BLOCK_C,
            BLOCK_K,
        )
        larger = tl.maximum(largest, tl.max(logits, axis=1))
        # Where nothing was a negative yet, -inf - -inf would be NaN.
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp2(largest - shift) + tl.sum(tl.exp2(logits - shift[:, None]), axis=1)
        largest = larger
    out_ptr += (number * tl.num_programs(1) + part) * num_rows
    tl.store(out_ptr + rows, (largest + tl.log2(tl.where(total == 0, 1.0, total))) * LN2, mask=rows < num_rows)


@triton.jit(do_not_specialize=["row_offset", "first_row", "first_column", "num_rows", "num_columns"])
def derivative_kernel(
    query_ptr,
    key_ptr,
    query_inverse_ptr,
    key_inverse_ptr,
    query_ids_ptr,
    key_ids_ptr,
    grad_loss_ptr,
    row_scale_ptr,
    slab_ptr,
    inverse_temperature,
    weight,
    own_weight,
    row_offset,
    first_row,
    first_column,
    num_rows,
    num_columns,
    size,
    slab_columns,
    IS_HARD: tl.constexpr,
    HAS_IDS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A program a tile: derivatives by its logits over the norms of both vectors' copies, into the slab."""
    slab_rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns_of_slab = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    rows = first_row + slab_rows
    columns = first_column + columns_of_slab
    is_row = rows < num_rows
    query_inverse = tl.load(query_inverse_ptr + rows)
    query_ids = tl.load(query_ids_ptr + rows, mask=is_row, other=0) if HAS_IDS else rows
    logits = negative_logits(
        query_ptr,
        key_ptr,
        query_inverse * (inverse_temperature * LOG2E),
        key_inverse_ptr,
        query_ids,
        key_ids_ptr,
        rows,
        columns,
        tl.log2(weight),
        tl.log2(own_weight),
        row_offset,
        num_columns,
        size,
        IS_HARD,
        HAS_IDS,
        PRECISION,
        BLOCK_R,
        BLOCK_C,
        BLOCK_K,
    )
    row_scale = tl.load(row_scale_ptr + rows, mask=is_row, other=0) * LOG2E
    factor = tl.load(grad_loss_ptr + rows, mask=is_row, other=0) * query_inverse
    weights = tl.exp2(logits + row_scale[:, None]) * factor[:, None] * tl.load(key_inverse_ptr + columns)[None, :]
    slab_tile = slab_ptr + slab_rows.to(tl.int64)[:, None] * slab_columns + columns_of_slab[None, :]
    tl.store(slab_tile, weights.to(slab_ptr.dtype.element_ty))


@triton.jit
def accumulate_kernel(
    slab_ptr,
    vector_ptr,
    out_ptr,
    num_inner,
    size,
    slab_row_stride,
    slab_inner_stride,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A program a tile of the output (rows, size), to which it adds slab (rows, inner) times vectors (inner, size)."""
    rows = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inner = tl.arange(0, BLOCK_K).to(tl.int64)
    slab_tile = slab_ptr + rows[:, None] * slab_row_stride + inner[None, :] * slab_inner_stride
    vector_tile = vector_ptr + inner[:, None] * size + columns[None, :]
    out_tile = out_ptr + rows[:, None] * size + columns[None, :]
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for _ in range(0, num_inner, BLOCK_K):
        slab = tl.load(slab_tile)
        product = tl.dot(slab, tl.load(vector_tile).to(slab.dtype), product, input_precision=PRECISION)
        slab_tile += BLOCK_K * slab_inner_stride
        vector_tile += BLOCK_K * size
    tl.store(out_tile, tl.load(out_tile) + product)
