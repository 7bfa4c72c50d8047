"""The kernels of ``info_nce_triton`` that work on single vectors, before and after the products."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "padded_rows"])
def scale_kernel(
    x_ptr,
    copy_ptr,
    inverse_norm_ptr,
    scale_ptr,
    num_rows,
    padded_rows,
    size,
    padded_size,
    stride_set,
    stride_row,
    stride_column,
    BLOCK: tl.constexpr,
):
    """A program a padded row: its copy, a power of two times the given row, the copy's 1 / norm, and that power."""
    program = tl.program_id(0).to(tl.int64)
    row = program % padded_rows
    x_ptr += (program // padded_rows) * stride_set + row * stride_row
    copy_ptr += program * padded_size
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, padded_size, BLOCK):
        column = start + columns
        is_given = (column < size) & (row < num_rows)
        x = tl.load(x_ptr + column.to(tl.int64) * stride_column, mask=is_given, other=0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
    # 2^-e from the exponent's bits; 2^126 at most and 2^-126 at least, so that zeros, NaN and infinity stay such.
    exponent = tl.max(largest, axis=0).to(tl.int32, bitcast=True) >> 23
    scale = (tl.minimum(tl.maximum(254 - exponent, 1), 253) << 23).to(tl.float32, bitcast=True)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, padded_size, BLOCK):
        column = start + columns
        is_given = (column < size) & (row < num_rows)
        x = tl.load(x_ptr + column.to(tl.int64) * stride_column, mask=is_given, other=0).to(tl.float32)
        # The norm is that of what is stored.
        x = (x * scale).to(copy_ptr.dtype.element_ty)
        tl.store(copy_ptr + column, x, mask=column < padded_size)
        x = x.to(tl.float32)
        total += x * x
    square = tl.sum(total, axis=0)
    # Not `square > 0`, which would give a row with a NaN the inverse 0.
    inverse_norm = tl.where(square == 0, 0.0, 1 / tl.sqrt(tl.where(square == 0, 1.0, square)))
    tl.store(inverse_norm_ptr + program, inverse_norm)
    # By a vector of zeros the derivative is defined to be 0.
    tl.store(scale_ptr + program, tl.where(square == 0, 0.0, scale))


@triton.jit(do_not_specialize=["row_offset", "num_rows", "padded_keys"])
def positive_kernel(
    query_ptr,
    key_ptr,
    query_inverse_ptr,
    key_inverse_ptr,
    out_ptr,
    inverse_temperature,
    row_offset,
    num_rows,
    padded_keys,
    size,
    BLOCK: tl.constexpr,
):
    """A program a row and set: the logit with the row's own key, in natural units."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1).to(tl.int64)
    key = number * padded_keys + row + row_offset
    columns = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        column = start + columns
        q = tl.load(query_ptr + row * size + column, mask=column < size, other=0).to(tl.float32)
        k = tl.load(key_ptr + key * size + column, mask=column < size, other=0).to(tl.float32)
        total += q * k
    factor = tl.load(query_inverse_ptr + row) * tl.load(key_inverse_ptr + key) * inverse_temperature
    tl.store(out_ptr + number * num_rows + row, tl.sum(total, axis=0) * factor)


@triton.jit
def with_positives(
    sum_ptr,
    partner_ptr,
    partner_inverse_ptr,
    coefficient_ptr,
    inverse_norm,
    column,
    number,
    row,
    row_offset,
    num_rows,
    num_sets,
    padded_partners,
    size,
    ROLE: tl.constexpr,
):
    """Entries ``column`` of a row's sum, with the positives' part."""
    in_row = column < size
    total = tl.load(sum_ptr + column, mask=in_row, other=0)
    if ROLE == "query":
        partner = row + row_offset
        coefficient_ptr += row
        for _ in range(0, num_sets):
            factor = tl.load(coefficient_ptr) * tl.load(partner_inverse_ptr + partner) * inverse_norm
            entries = tl.load(partner_ptr + partner * size + column, mask=in_row, other=0).to(tl.float32)
            total += factor * entries
            partner += padded_partners
            coefficient_ptr += num_rows
    if ROLE == "key":
        partner = row - row_offset
        has_partner = (partner >= 0) & (partner < num_rows)
        factor = tl.load(coefficient_ptr + number * num_rows + partner, mask=has_partner, other=0)
        factor *= tl.load(partner_inverse_ptr + partner, mask=has_partner, other=0) * inverse_norm
        entries = tl.load(partner_ptr + partner * size + column, mask=in_row & has_partner, other=0).to(tl.float32)
        total += factor * entries
    return total


@triton.jit(
    do_not_specialize=["row_offset", "num_rows", "num_sets", "num_vectors", "padded_vectors", "padded_partners"]
)
def finish_kernel(
    sum_ptr,
    vector_ptr,
    inverse_norm_ptr,
    scale_ptr,
    partner_ptr,
    partner_inverse_ptr,
    coefficient_ptr,
    out_ptr,
    inverse_temperature,
    row_offset,
    num_rows,
    num_sets,
    num_vectors,
    padded_vectors,
    padded_partners,
    size,
    padded_size,
    ROLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a vector x with sum y: scale / temperature · (y - x (x · y) / |x|²), out (sets, vectors, size)."""
    program = tl.program_id(0).to(tl.int64)
    number = program // num_vectors
    row = program % num_vectors
    padded = number * padded_vectors + row
    sum_ptr += padded * padded_size
    vector_ptr += padded * padded_size
    inverse_norm = tl.load(inverse_norm_ptr + padded)
    columns = tl.arange(0, BLOCK)
    along = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, padded_size, BLOCK):
        column = start + columns
        total = with_positives(
            sum_ptr,
            partner_ptr,
            partner_inverse_ptr,
            coefficient_ptr,
            inverse_norm,
            column,
            number,
            row,
            row_offset,
            num_rows,
            num_sets,
            padded_partners,
            padded_size,
            ROLE,
        )
        along += total * tl.load(vector_ptr + column, mask=column < padded_size, other=0).to(tl.float32)
    along_row = tl.sum(along, axis=0) * inverse_norm * inverse_norm
    scale = tl.load(scale_ptr + padded)
    for start in range(0, padded_size, BLOCK):
        column = start + columns
        total = with_positives(
            sum_ptr,
            partner_ptr,
            partner_inverse_ptr,
            coefficient_ptr,
            inverse_norm,
            column,
            number,
            row,
            row_offset,
            num_rows,
            num_sets,
            padded_partners,
            padded_size,
            ROLE,
        )
        x = tl.load(vector_ptr + column, mask=column < padded_size, other=0).to(tl.float32)
        # In this order it leaves float32's range only where the derivative does.
        grad = (total - x * along_row) * inverse_temperature * scale
        tl.store(out_ptr + program * size + column, grad.to(out_ptr.dtype.element_ty), mask=column < size)
