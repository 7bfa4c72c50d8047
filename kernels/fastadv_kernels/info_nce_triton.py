"""The GPU's form of ``info_nce``: the launchers of its Triton kernels.

A first kernel copies the vectors, each scaled by a power of two to a largest entry in [1, 2) and padded with zeros to
whole tiles, and notes the inverse of its norm: so no loop over D needs a mask, none overflows, and cosines are those of
the given numbers, not of unit vectors rounded to 16 bits.

The forward pass walks over tiles of keys with an online log-sum-exp. The backward pass computes the logits' tiles
anew and writes the derivatives by them into a slab of at most 64 Mi entries, which two products turn into
derivatives by queries and by keys. Accumulators for all of D would not fit in registers, and a walk over
parts of D would compute every logit once a part: with a slab it is once.
"""

import os
from contextlib import nullcontext

import torch
import triton
from torch import Tensor

from .info_nce_rows import row_losses, row_scales
from .info_nce_triton_kernels import accumulate_kernel, derivative_kernel, log_sum_exp_kernel
from .info_nce_triton_vectors import finish_kernel, positive_kernel, scale_kernel

ROW_TILE = 128
"""Rows of vectors are padded to a multiple of it."""
SIZE_TILE = 128
"""Vectors are padded to a multiple of it."""
ROW_BLOCK = 1024
"""entries of a vector that a program over single rows holds at a time"""
SLAB_ROWS = 8192
SLAB_COLUMNS = 8192
ENOUGH_PROGRAMS = 256
"""Two for each multiprocessor of a large GPU. Fewer tiles of rows than that share each row's keys among them."""


def tile_options(dtype: torch.dtype) -> dict:
    """Static sizes of the products for vectors of ``dtype``: chosen so that nothing spills, timed on no GPU yet."""
    backend = _backend()
    if dtype == torch.float32:
        # Three products of 11-bit parts give float32's accuracy; AMD's matrix cores take float32 as it is. Twice this
        # BLOCK_K needs more registers than sm_80 has.
        precision = "ieee" if backend == "hip" else "tf32x3"
        return {"BLOCK_R": 64, "BLOCK_C": 64, "BLOCK_K": 16, "PRECISION": precision, "num_warps": 4, "num_stages": 3}
    stages = 2 if backend == "hip" else 3
    return {"BLOCK_R": 128, "BLOCK_C": 128, "BLOCK_K": 64, "PRECISION": "tf32", "num_warps": 8, "num_stages": stages}


def product_options(dtype: torch.dtype) -> dict:
    """The same for the products of a slab with vectors of ``dtype``: float16's slabs are float32."""
    if dtype == torch.float16:
        return {**tile_options(torch.float32), "PRECISION": "tf32"}
    return tile_options(dtype)


def _backend() -> str:
    """ "cuda" or "hip"."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cuda"
    return triton.runtime.driver.active.get_current_target().backend


def _on_device_of(x: Tensor):
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(x.device) if x.device.type == "cuda" else nullcontext()


def _padded(length: int, tile: int) -> int:
    return triton.cdiv(length, tile) * tile


class Vectors:
    """Scaled and padded copies of vectors (sets, rows, size), in ``dtype``, with 1 / norm and the scale of each."""

    def __init__(self, x: Tensor, dtype: torch.dtype):
        self.num_sets, self.num_rows, self.size = x.shape
        self.padded_rows, self.padded_size = _padded(self.num_rows, ROW_TILE), _padded(self.size, SIZE_TILE)
        shape = self.num_sets, self.padded_rows, self.padded_size
        self.copy = torch.empty(shape, dtype=dtype, device=x.device)
        self.inverse_norm = torch.empty(shape[:2], dtype=torch.float32, device=x.device)
        self.scale = torch.empty_like(self.inverse_norm)
        if self.copy.numel() == 0:
            return
        scale_kernel[(self.num_sets * self.padded_rows,)](
            x,
            self.copy,
            self.inverse_norm,
            self.scale,
            self.num_rows,
            self.padded_rows,
            self.size,
            self.padded_size,
            *x.stride(),
            BLOCK=min(ROW_BLOCK, triton.next_power_of_2(self.padded_size)),
            num_warps=4,
        )


class Problem:
    """One call's vectors and options; arguments as the op ``info_nce`` takes them."""

    def __init__(
        self,
        query,
        keys,
        hard_negatives,
        query_ids,
        key_ids,
        hard_negative_ids,
        temperature,
        row_offset,
        multi_positive,
        hard_negative_weight,
        own_hard_negative_weight,
    ):
        dtype = torch.promote_types(query.dtype, keys.dtype)
        dtype = dtype if hard_negatives is None else torch.promote_types(dtype, hard_negatives.dtype)
        self.dtype, self.device = dtype, query.device
        self.query = Vectors(query.unsqueeze(0), dtype)
        self.keys = Vectors(keys, dtype)
        self.hard = None if hard_negatives is None else Vectors(hard_negatives.unsqueeze(0), dtype)
        ids = (query_ids, key_ids, hard_negative_ids)
        self.query_ids, self.key_ids, self.hard_ids = (None if i is None else i.contiguous() for i in ids)
        self.temperature, self.row_offset, self.multi_positive = temperature, row_offset, multi_positive
        self.weights = hard_negative_weight, own_hard_negative_weight
        self.num_rows = self.query.num_rows

    def column_options(self, is_hard: bool) -> tuple:
        """What the kernels that make logits are told of the keys, or of the hard negatives."""
        ids = self.hard_ids if is_hard else self.key_ids
        weight, own_weight = self.weights if is_hard else (1.0, 1.0)
        return ids, weight, own_weight

    def log_sum_exp(self, columns: Vectors, is_hard: bool) -> Tensor:
        """Of each row's negatives in each set, (sets, N)."""
        options = tile_options(self.dtype)
        tiles = triton.cdiv(columns.num_rows, options["BLOCK_C"])
        row_tiles = triton.cdiv(self.num_rows, options["BLOCK_R"])
        num_parts = min(max(1, tiles), triton.cdiv(ENOUGH_PROGRAMS, row_tiles * columns.num_sets))
        part_tiles = triton.cdiv(tiles, num_parts)
        out = torch.empty(columns.num_sets, num_parts, self.num_rows, dtype=torch.float32, device=self.device)
        ids, weight, own_weight = self.column_options(is_hard)
        log_sum_exp_kernel[(row_tiles, num_parts, columns.num_sets)](
            self.query.copy,
            columns.copy,
            self.query.inverse_norm,
            columns.inverse_norm,
            self.query_ids if ids is not None else None,
            ids,
            out,
            1 / self.temperature,
            weight,
            own_weight,
            self.row_offset,
            self.num_rows,
            columns.num_rows,
            columns.padded_rows,
            self.query.padded_size,
            part_tiles,
            IS_HARD=is_hard,
            HAS_IDS=ids is not None,
            **options,
        )
        return out.logsumexp(dim=1)

    def positive(self) -> Tensor:
        """The positives' logits, (S, N)."""
        out = torch.empty(self.keys.num_sets, self.num_rows, dtype=torch.float32, device=self.device)
        positive_kernel[(self.num_rows, self.keys.num_sets)](
            self.query.copy,
            self.keys.copy,
            self.query.inverse_norm,
            self.keys.inverse_norm,
            out,
            1 / self.temperature,
            self.row_offset,
            self.num_rows,
            self.keys.padded_rows,
            self.query.padded_size,
            BLOCK=min(ROW_BLOCK, triton.next_power_of_2(self.query.padded_size)),
            num_warps=4,
        )
        return out


def launch_forward(*arguments) -> tuple[Tensor, Tensor]:
    """Losses (N,) and the negatives' log-sum-exps (G, N). Arguments as the op takes them."""
    with _on_device_of(arguments[0]):
        problem = Problem(*arguments)
        if problem.num_rows == 0:
            num_groups = problem.keys.num_sets if problem.multi_positive == "separate" else 1
            return problem.query.scale.new_empty(0), problem.query.scale.new_empty(num_groups, 0)
        negative = problem.log_sum_exp(problem.keys, is_hard=False)
        if problem.multi_positive != "separate":
            negative = negative.logsumexp(dim=0, keepdim=True)
        if problem.hard is not None:
            negative = torch.logaddexp(negative, problem.log_sum_exp(problem.hard, is_hard=True))
        return row_losses(problem.positive(), negative, problem.multi_positive), negative


def launch_backward(grad_loss: Tensor, negative: Tensor, *arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives by query, keys and hard negatives; empty where its flag, of the last three arguments, is off."""
    *arguments, needs_query, needs_keys, needs_hard = arguments
    query, keys, hard_negatives = arguments[:3]
    with _on_device_of(query):
        grads = [
            torch.empty(
                0 if not needed else x.shape, dtype=torch.float32 if x is None else x.dtype, device=query.device
            )
            for x, needed in ((query, needs_query), (keys, needs_keys), (hard_negatives, needs_hard))
        ]
        problem = Problem(*arguments)
        if problem.num_rows == 0:
            return tuple(grad.zero_() for grad in grads)
        grad_loss = grad_loss.float().contiguous()
        scales = row_scales(problem.positive(), negative, problem.multi_positive)
        key_scale, hard_scale, slope = (scale.contiguous() for scale in scales)
        sums = [
            None if not needed else torch.zeros(vectors.copy.shape, dtype=torch.float32, device=query.device)
            for vectors, needed in (
                (problem.query, needs_query),
                (problem.keys, needs_keys),
                (problem.hard, needs_hard),
            )
        ]
        for number in range(problem.keys.num_sets if needs_query or needs_keys else 0):
            key_sum = sums[1][number] if needs_keys else None
            _add_products(problem, problem.keys, number, False, grad_loss, key_scale[number], sums[0], key_sum)
        if problem.hard is not None and (needs_query or needs_hard):
            hard_sum = sums[2][0] if needs_hard else None
            _add_products(problem, problem.hard, 0, True, grad_loss, hard_scale, sums[0], hard_sum)
        coefficient = slope * grad_loss
        if needs_query:
            _finish(problem, problem.query, sums[0], grads[0], coefficient, problem.keys, "query")
        if needs_keys:
            _finish(problem, problem.keys, sums[1], grads[1], coefficient, problem.query, "key")
        if needs_hard:
            _finish(problem, problem.hard, sums[2], grads[2], coefficient, problem.query, "none")
        return tuple(grads)


def _add_products(problem, columns, number, is_hard, grad_loss, scale, query_sum, column_sum) -> None:
    """Adds what one set of columns gives to the sums of the queries and of these columns, slab by slab."""
    options, products = tile_options(problem.dtype), product_options(problem.dtype)
    ids, weight, own_weight = problem.column_options(is_hard)
    slab_dtype = torch.bfloat16 if problem.dtype == torch.bfloat16 else torch.float32
    num_rows, num_columns = problem.query.padded_rows, columns.padded_rows
    # No larger than what is used, so that small problems do not allocate 128 MiB.
    slab_columns = min(SLAB_COLUMNS, num_columns)
    slab = torch.empty(min(SLAB_ROWS, num_rows) * slab_columns, dtype=slab_dtype, device=problem.device)
    size = problem.query.padded_size
    for row in range(0, num_rows, SLAB_ROWS):
        rows = min(SLAB_ROWS, num_rows - row)
        for column in range(0, num_columns, SLAB_COLUMNS):
            width = min(SLAB_COLUMNS, num_columns - column)
            derivative_kernel[(rows // options["BLOCK_R"], width // options["BLOCK_C"])](
                problem.query.copy,
                columns.copy[number],
                problem.query.inverse_norm,
                columns.inverse_norm[number],
                problem.query_ids if ids is not None else None,
                ids,
                grad_loss,
                scale,
                slab,
                1 / problem.temperature,
                weight,
                own_weight,
                problem.row_offset,
                row,
                column,
                problem.num_rows,
                columns.num_rows,
                size,
                width,
                IS_HARD=is_hard,
                HAS_IDS=ids is not None,
                **options,
            )
            if query_sum is not None:
                _add_product(slab, columns.copy[number, column:], query_sum[0, row:], rows, width, width, 1, products)
            if column_sum is not None:
                _add_product(slab, problem.query.copy[0, row:], column_sum[column:], width, rows, 1, width, products)


def _add_product(slab, vectors, out, num_rows, num_inner, row_stride, inner_stride, options) -> None:
    """out (num_rows, size) += slab (num_rows, num_inner), by its strides, times vectors (num_inner, size)."""
    size = vectors.shape[1]
    accumulate_kernel[(num_rows // options["BLOCK_R"], size // options["BLOCK_C"])](
        slab, vectors, out, num_inner, size, row_stride, inner_stride, **options
    )


def _finish(problem, vectors, sums, out, coefficient, partners, role) -> None:
    """Adds the positives' part to the sums and leads them through the normalisation, into ``out``."""
    finish_kernel[(vectors.num_sets * vectors.num_rows,)](
        sums,
        vectors.copy,
        vectors.inverse_norm,
        vectors.scale,
        partners.copy,
        partners.inverse_norm,
        coefficient,
        out,
        1 / problem.temperature,
        problem.row_offset,
        problem.num_rows,
        problem.keys.num_sets,
        vectors.num_rows,
        vectors.padded_rows,
        partners.padded_rows,
        vectors.size,
        vectors.padded_size,
        ROLE=role,
        BLOCK=min(ROW_BLOCK, triton.next_power_of_2(vectors.padded_size)),
        num_warps=4,
    )
