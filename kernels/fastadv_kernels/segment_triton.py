"""What the Triton kernels share: norms without overflow, the step, and the ball, of rows and of sentences.

Rows are tiles (R, C) in registers. A sentence is the flat range of entries ``begin:end``, its tokens lying end to end,
and is read from memory once a pass: the passes after the first find it in a cache.

Largest magnitudes are taken of the bits, as integers: these order like the magnitudes, and NaN and infinity come out on
top, where a floating-point maximum may drop NaN. Whatever is divided is one number a row or a sentence, so the rounded
division costs nothing.
"""

from contextlib import AbstractContextManager, nullcontext
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

INFINITY_BITS = tl.constexpr(0x7F800000)
# Largest magnitudes between 2^-50 and 2^50, as bits. Their squares, and sums of 2^28 of them, stay in float32's range,
# and what the smaller squares lose below it is under 2^-24 of the sum.
SMALLEST_SAFE_BITS = tl.constexpr((127 - 50) << 23)
LARGEST_SAFE_BITS = tl.constexpr((127 + 50) << 23)

LANES = tl.constexpr(4)
"""neighbours that one thread holds, of whatever dtype: a 16-byte load or half of one"""
SENTENCE_BLOCK = 8192
NUM_WARPS = 16
"""A program has a multiprocessor nearly to itself: what its sentence needs again is then still in the caches."""
MAX_REGISTERS = 128
"""a thread's, of 65,536 for 16 warps of 32"""


def alignment(size: int) -> int:
    """What ``size`` is a multiple of, up to 16.

    Kernels take sizes as a count of units and this constant, so that the compiler sees where vectors may be loaded;
    no other property of a size makes another kernel.
    """
    return gcd(size, 16)


def on_device_of(x: Tensor) -> AbstractContextManager:
    """Triton launches on the current device, which need not be that of ``x``."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def sentence_options() -> dict[str, int]:
    """How a program for a whole sentence is compiled."""
    if triton.knobs.runtime.interpret or triton.runtime.driver.active.get_current_target().backend != "cuda":
        return {"num_warps": NUM_WARPS}
    # Left to itself ptxas spills a few registers where that lets one more program onto a multiprocessor.
    return {"num_warps": NUM_WARPS, "maxnreg": MAX_REGISTERS}


def stride_of(values: Tensor) -> int:
    """From one sentence's (or row's) value to the next: 0 where one value serves all."""
    return 0 if values.shape[0] == 1 else 1


@triton.jit
def magnitude_bits(x):
    """|x| of float32 as int32 that order alike; ``INFINITY_BITS`` or more for what is not finite."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def exact_scale(bits):
    """The power of two that brings a magnitude near 1, as far as float32 holds it. Scaling by it is exact."""
    return (tl.maximum(254 - (bits >> 23), 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def row_bits(x):
    """Largest magnitude of each row of ``x`` (R, C), as bits: (R,)."""
    return tl.max(magnitude_bits(x), 1)


@triton.jit
def scaled_row_size(scaled, bits, scale, NORM: tl.constexpr):
    """Norms (R,) of rows already multiplied by ``exact_scale(bits)``."""
    if NORM == "linf":
        size = bits.to(tl.float32, bitcast=True) * scale
    elif NORM == "l2":
        size = tl.sqrt_rn(tl.sum(scaled * scaled, 1))
    else:
        size = tl.sum(tl.abs(scaled), 1)
    return size


@triton.jit
def row_size(x, NORM: tl.constexpr):
    """Norms (R,) of the rows of ``x`` (R, C)."""
    bits = row_bits(x)
    scale = exact_scale(bits)
    if NORM == "linf":
        size = bits.to(tl.float32, bitcast=True)
    else:
        size = tl.div_rn(scaled_row_size(x * scale[:, None], bits, scale, NORM), scale)
    return size


@triton.jit
def ascend_rows(x, grad, bits, step_size, NORM: tl.constexpr):
    """x + step_size · dir(grad) by rows, for finite gradients of the given largest magnitudes (as bits)."""
    scale = exact_scale(bits)
    scaled = grad * scale[:, None]
    size = scaled_row_size(scaled, bits, scale, NORM)
    coefficient = tl.div_rn(tl.where(bits > 0, step_size, 0.0), tl.where(bits > 0, size, 1.0))
    return x + scaled * coefficient[:, None]


@triton.jit
def clamp(x, epsilon):
    """Like torch's clamp, NaN stays NaN."""
    return tl.where(x > epsilon, epsilon, tl.where(x < -epsilon, -epsilon, x))


@triton.jit
def shrink(x, largest, level):
    """sign(x) · max(level - (largest - |x|), 0): the l1 projection, counted down from the largest magnitude."""
    shrunk = tl.maximum(level - (largest - tl.abs(x)), 0.0)
    return tl.where(x < 0, -shrunk, shrunk)


@triton.jit
def project_rows_l1(x, epsilon):
    """Rows of ``x`` (R, C) on the l1-balls of radius ``epsilon`` (R,), exactly, by Michelot's iteration.

    (Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex of R^n", 1986.)
    With d the distance of a magnitude below the largest, the kept entries are those with d < level and level =
    (epsilon + sum of their d) / their count. The level of a set that holds all kept entries, and others, is no lower
    than theirs. The first set, d < min(epsilon, largest), holds them all, since the level exceeds neither; each round
    takes the entries below the level and lowers the level to theirs. So the sets are nested and equal counts mean
    equal sets: it ends, after at most C + 1 rounds, at the exact set.

    Error: the terms of the sum are not negative, so with a summation depth of k a level is off by (k + 2) · 2^-24 of
    itself and an entry by (k + 4) · 2^-24 of the largest entry that remains. One wrongly kept or left is within that.
    """
    magnitude = tl.abs(x)
    largest = tl.max(magnitude, 1)
    is_outside = tl.sum(magnitude, 1) > epsilon
    below = largest[:, None] - magnitude
    level = tl.minimum(epsilon, largest)
    count = tl.full((x.shape[0],), -1, tl.int32)
    num_changed = 1
    while num_changed > 0:
        is_kept = below < level[:, None]
        num_kept = tl.sum(is_kept.to(tl.int32), 1)
        total = tl.sum(tl.where(is_kept, below, 0.0), 1)
        level = tl.minimum(level, tl.div_rn(epsilon + total, tl.maximum(num_kept, 1).to(tl.float32)))
        num_changed = tl.sum((num_kept != count).to(tl.int32), 0)
        count = num_kept
    return tl.where(is_outside[:, None], shrink(x, largest[:, None], level[:, None]), x)


@triton.jit
def project_rows(x, size, epsilon, NORM: tl.constexpr):
    """Rows of ``x`` (R, C) on the balls of radius ``epsilon`` (R,); ``size`` (R,), their norms, serves l2 alone."""
    if NORM == "linf":
        projected = clamp(x, epsilon[:, None])
    elif NORM == "l2":
        is_outside = (size > epsilon) & (magnitude_bits(size) < INFINITY_BITS)
        factor = tl.where(is_outside, tl.div_rn(epsilon, tl.where(is_outside, size, 1.0)), 1.0)
        projected = x * factor[:, None]
    else:
        projected = project_rows_l1(x, epsilon)
    return projected


@triton.jit
def left_of(start, end, BLOCK: tl.constexpr):
    """How many entries of the block at ``start`` lie before ``end``.

    A sentence may lie beyond the first 2^31 entries, a block is small. So the place of a block is a 64-bit scalar,
    and what every entry needs, its place in the block and this bound, is 32-bit: registers enough not to spill.
    """
    return tl.minimum(end - start, BLOCK).to(tl.int32)


@triton.jit
def by_lanes(x):
    """A block as (BLOCK / LANES, LANES). Reductions over a thread's own neighbours leave it fewer sums to hold."""
    return tl.reshape(x, (x.shape[0] // LANES, LANES))


@triton.jit
def moved(x_ptr, grad_ptr, columns, num_left, scale, coefficient, STEP: tl.constexpr):
    """Entries of a block after the sentence's step, before its ball, 0 from ``num_left`` on: x (STEP "none"),
    x + scale · coefficient · grad ("pgd"), x + coefficient · sign(grad) ("sign")."""
    mask = columns < num_left
    x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    if STEP != "none":
        grad = tl.load(grad_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        x = take_step(x, grad, scale, coefficient, STEP)
    return x


@triton.jit
def take_step(x, grad, scale, coefficient, STEP: tl.constexpr):
    if STEP == "pgd":
        x = x + (grad * scale) * coefficient
    else:
        x = x + coefficient * tl.where(grad > 0, 1.0, tl.where(grad < 0, -1.0, 0.0))
    return x


@triton.jit
def sentence_size(
    x_ptr, grad_ptr, scale, coefficient, begin, end, NORM: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr
):
    """Largest magnitude as bits, a power of two, and the sentence's norm times that power.

    One pass: the power is 1 unless squares could leave float32's range, which takes a second. Of NORM "linf" the norm
    is the largest magnitude.
    """
    columns = tl.arange(0, BLOCK)
    power = 1.0
    largest = 0
    size = 0.0
    is_done = False
    while not is_done:
        bits = tl.zeros((BLOCK // LANES,), tl.int32)
        total = tl.zeros((BLOCK // LANES,), tl.float32)
        for start in range(begin, end, BLOCK):
            # Masked entries take a step from zero with gradient zero.
            x = moved(x_ptr + start, grad_ptr + start, columns, left_of(start, end, BLOCK), scale, coefficient, STEP)
            bits = tl.maximum(bits, tl.max(by_lanes(magnitude_bits(x)), 1))
            if NORM == "l2":
                x *= power
                total += tl.sum(by_lanes(x * x), 1)
            elif NORM == "l1":
                total += tl.sum(by_lanes(tl.abs(x) * power), 1)
        largest = tl.max(bits, 0)
        if NORM == "linf":
            power = exact_scale(largest)
            size = largest.to(tl.float32, bitcast=True) * power
            is_done = True
        else:
            size = tl.sum(total, 0)
            is_in_range = (largest >= SMALLEST_SAFE_BITS) & (largest <= LARGEST_SAFE_BITS)
            is_in_range = is_in_range | (largest == 0) | (largest >= INFINITY_BITS)
            wanted = tl.where(is_in_range, 1.0, exact_scale(largest))
            is_done = wanted == power
            power = wanted
    if NORM == "l2":
        size = tl.sqrt_rn(size)
    return largest, power, size


@triton.jit
def sentence_level(
    x_ptr, grad_ptr, scale, coefficient, epsilon, largest, begin, end, STEP: tl.constexpr, BLOCK: tl.constexpr
):
    """The level of ``project_rows_l1`` for a sentence, one pass a round."""
    columns = tl.arange(0, BLOCK)
    level = tl.minimum(epsilon, largest)
    count = tl.full((), -1, tl.int32)
    has_changed = True
    while has_changed:
        num_kept = tl.zeros((BLOCK // LANES,), tl.int32)
        total = tl.zeros((BLOCK // LANES,), tl.float32)
        for start in range(begin, end, BLOCK):
            num_left = left_of(start, end, BLOCK)
            x = moved(x_ptr + start, grad_ptr + start, columns, num_left, scale, coefficient, STEP)
            below = largest - tl.abs(x)
            is_kept = (below < level) & (columns < num_left)
            num_kept += tl.sum(by_lanes(is_kept.to(tl.int32)), 1)
            total += tl.sum(by_lanes(tl.where(is_kept, below, 0.0)), 1)
        new_count = tl.sum(num_kept, 0)
        level = tl.minimum(level, tl.div_rn(epsilon + tl.sum(total, 0), tl.maximum(new_count, 1).to(tl.float32)))
        has_changed = new_count != count
        count = new_count
    return level


@triton.jit
def sentence_ball(
    x_ptr,
    grad_ptr,
    scale,
    coefficient,
    epsilon,
    begin,
    end,
    NORM: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What ``on_ball`` needs of a sentence: whether it is outside, and two numbers."""
    is_outside = False
    first = epsilon
    second = epsilon
    if NORM != "linf":
        bits, power, size = sentence_size(x_ptr, grad_ptr, scale, coefficient, begin, end, NORM, STEP, BLOCK)
        is_outside = (size > epsilon * power) & (bits < INFINITY_BITS)
        if NORM == "l2":
            first = power
            second = tl.div_rn(epsilon, tl.where(size > 0, size, 1.0))
        else:
            first = bits.to(tl.float32, bitcast=True)
            if is_outside:
                second = sentence_level(x_ptr, grad_ptr, scale, coefficient, epsilon, first, begin, end, STEP, BLOCK)
    return is_outside, first, second


@triton.jit
def on_ball(x, epsilon, is_outside, first, second, NORM: tl.constexpr):
    """Entries of a sentence on its ball, given what ``sentence_ball`` found."""
    if NORM == "linf":
        x = clamp(x, epsilon)
    elif NORM == "l2":
        x = tl.where(is_outside, (x * first) * second, x)
    else:
        x = tl.where(is_outside, shrink(x, first, second), x)
    return x
