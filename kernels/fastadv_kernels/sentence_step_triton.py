"""Triton forms of the sentence-level steps (``sentence_step.py`` has the formulas): a program a sentence.

A sentence is one flat range of entries. Its gradient is read for its size, and again, from a cache, for the step; so
are gradient and perturbation for the norm of what is projected: from memory each is read once, and the result written
once.
"""

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from .segment_triton import (
    INFINITY_BITS,
    SENTENCE_BLOCK,
    alignment,
    left_of,
    moved,
    on_ball,
    on_device_of,
    sentence_ball,
    sentence_options,
    sentence_size,
    stride_of,
    take_step,
)

MIX_BLOCK = 4096
MIX_WARPS = 8


@triton.jit
def copy_sentence(x_ptr, out_ptr, begin, end, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    for start in range(begin, end, BLOCK):
        mask = columns < left_of(start, end, BLOCK)
        tl.store(out_ptr + start + columns, tl.load(x_ptr + start + columns, mask=mask), mask=mask)


@triton.jit
def ascent_coefficient(step_size, bits, size):
    """step_size / size, and 0 for a gradient of zeros."""
    return tl.div_rn(tl.where(bits > 0, step_size, 0.0), tl.where(bits > 0, size, 1.0))


@triton.jit(do_not_specialize=["embedding_units", "step_stride", "epsilon_stride"])
def step_kernel(
    delta_ptr,
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
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sentence = tl.program_id(0)
    embedding_size = embedding_units * ALIGNMENT
    begin = tl.load(cu_seqlens_ptr + sentence).to(tl.int64) * embedding_size
    end = tl.load(cu_seqlens_ptr + sentence + 1).to(tl.int64) * embedding_size
    step_size = tl.load(step_size_ptr + sentence * step_stride)
    # A sign step asks of its gradient only whether it is finite.
    grad_norm: tl.constexpr = NORM if STEP == "pgd" else "linf"
    bits, scale, size = sentence_size(grad_ptr, grad_ptr, 1.0, 1.0, begin, end, grad_norm, "none", BLOCK)
    if bits >= INFINITY_BITS:
        copy_sentence(delta_ptr, out_ptr, begin, end, BLOCK)
    else:
        coefficient = step_size
        if STEP == "pgd":
            coefficient = ascent_coefficient(step_size, bits, size)
        if epsilon_ptr is not None:
            epsilon = tl.load(epsilon_ptr + sentence * epsilon_stride)
            is_outside, a, b = sentence_ball(
                delta_ptr, grad_ptr, scale, coefficient, epsilon, begin, end, NORM, STEP, BLOCK
            )
        columns = tl.arange(0, BLOCK)
        for start in range(begin, end, BLOCK):
            num_left = left_of(start, end, BLOCK)
            x = moved(delta_ptr + start, grad_ptr + start, columns, num_left, scale, coefficient, STEP)
            if epsilon_ptr is not None:
                x = on_ball(x, epsilon, is_outside, a, b, NORM)
            tl.store(out_ptr + start + columns, x.to(out_ptr.dtype.element_ty), mask=columns < num_left)


@triton.jit(do_not_specialize=["embedding_units", "alpha_stride", "beta_stride", "epsilon_stride"])
def pair_kernel(
    pgd_ptr,
    fgsm_ptr,
    grad_ptr,
    out_pgd_ptr,
    out_fgsm_ptr,
    cu_seqlens_ptr,
    alpha_ptr,
    beta_ptr,
    epsilon_ptr,
    embedding_units,
    alpha_stride,
    beta_stride,
    epsilon_stride,
    ALIGNMENT: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sentence = tl.program_id(0)
    embedding_size = embedding_units * ALIGNMENT
    begin = tl.load(cu_seqlens_ptr + sentence).to(tl.int64) * embedding_size
    end = tl.load(cu_seqlens_ptr + sentence + 1).to(tl.int64) * embedding_size
    alpha = tl.load(alpha_ptr + sentence * alpha_stride)
    beta = tl.load(beta_ptr + sentence * beta_stride)
    bits, scale, size = sentence_size(grad_ptr, grad_ptr, 1.0, 1.0, begin, end, NORM, "none", BLOCK)
    if bits >= INFINITY_BITS:
        copy_sentence(pgd_ptr, out_pgd_ptr, begin, end, BLOCK)
        copy_sentence(fgsm_ptr, out_fgsm_ptr, begin, end, BLOCK)
    else:
        coefficient = ascent_coefficient(alpha, bits, size)
        if epsilon_ptr is not None:
            epsilon = tl.load(epsilon_ptr + sentence * epsilon_stride)
            is_pgd_outside, a, b = sentence_ball(
                pgd_ptr, grad_ptr, scale, coefficient, epsilon, begin, end, NORM, "pgd", BLOCK
            )
            is_fgsm_outside, c, d = sentence_ball(
                fgsm_ptr, grad_ptr, scale, beta, epsilon, begin, end, NORM, "sign", BLOCK
            )
        columns = tl.arange(0, BLOCK)
        for start in range(begin, end, BLOCK):
            mask = columns < left_of(start, end, BLOCK)
            grad = tl.load(grad_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
            pgd = tl.load(pgd_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
            fgsm = tl.load(fgsm_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
            pgd = take_step(pgd, grad, scale, coefficient, "pgd")
            fgsm = take_step(fgsm, grad, scale, beta, "sign")
            if epsilon_ptr is not None:
                pgd = on_ball(pgd, epsilon, is_pgd_outside, a, b, NORM)
                fgsm = on_ball(fgsm, epsilon, is_fgsm_outside, c, d, NORM)
            tl.store(out_pgd_ptr + start + columns, pgd.to(out_pgd_ptr.dtype.element_ty), mask=mask)
            tl.store(out_fgsm_ptr + start + columns, fgsm.to(out_fgsm_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_units"])
def mix_kernel(pgd_ptr, fgsm_ptr, out_ptr, rho, one_minus_rho, num_units, ALIGNMENT: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_units.to(tl.int64) * ALIGNMENT
    pgd = tl.load(pgd_ptr + offsets, mask=mask).to(tl.float32)
    fgsm = tl.load(fgsm_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, (rho * pgd + one_minus_rho * fgsm).to(out_ptr.dtype.element_ty), mask=mask)


def _launch_step(
    step: str,
    delta: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    step_size: Tensor,
    epsilon: Optional[Tensor],
    norm: str,
) -> Tensor:
    delta, grad = delta.contiguous(), grad.contiguous()
    out = torch.empty_like(delta)
    if out.numel() == 0:
        return out
    embedding_size = delta.shape[1]
    with on_device_of(delta):
        step_kernel[(cu_seqlens.shape[0] - 1,)](
            delta,
            grad,
            out,
            cu_seqlens.contiguous(),
            step_size.contiguous(),
            None if epsilon is None else epsilon.contiguous(),
            embedding_size // alignment(embedding_size),
            stride_of(step_size),
            0 if epsilon is None else stride_of(epsilon),
            ALIGNMENT=alignment(embedding_size),
            # A sign step without a ball has no norm: one kernel for all three.
            NORM="linf" if step == "sign" and epsilon is None else norm,
            STEP=step,
            BLOCK=SENTENCE_BLOCK,
            **sentence_options(),
        )
    return out


def launch(
    delta: Tensor, grad: Tensor, cu_seqlens: Tensor, step_size: Tensor, epsilon: Optional[Tensor], norm: str
) -> Tensor:
    """The PGD step of delta (T, E), in delta's dtype. step_size and epsilon are float32, (1,) or (B,)."""
    return _launch_step("pgd", delta, grad, cu_seqlens, step_size, epsilon, norm)


def launch_sign(
    delta: Tensor, grad: Tensor, cu_seqlens: Tensor, step_size: Tensor, epsilon: Optional[Tensor], norm: str
) -> Tensor:
    """The FGSM step of delta (T, E), in delta's dtype. step_size and epsilon are float32, (1,) or (B,)."""
    return _launch_step("sign", delta, grad, cu_seqlens, step_size, epsilon, norm)


def launch_pair(
    delta_pgd: Tensor,
    delta_fgsm: Tensor,
    grad: Tensor,
    cu_seqlens: Tensor,
    alpha: Tensor,
    beta: Tensor,
    epsilon: Optional[Tensor],
    norm: str,
) -> tuple[Tensor, Tensor]:
    """Both chains' steps from one gradient, two (T, E). alpha, beta and epsilon are float32, (1,) or (B,)."""
    delta_pgd, delta_fgsm, grad = delta_pgd.contiguous(), delta_fgsm.contiguous(), grad.contiguous()
    out_pgd, out_fgsm = torch.empty_like(delta_pgd), torch.empty_like(delta_fgsm)
    if grad.numel() == 0:
        return out_pgd, out_fgsm
    embedding_size = grad.shape[1]
    with on_device_of(grad):
        pair_kernel[(cu_seqlens.shape[0] - 1,)](
            delta_pgd,
            delta_fgsm,
            grad,
            out_pgd,
            out_fgsm,
            cu_seqlens.contiguous(),
            alpha.contiguous(),
            beta.contiguous(),
            None if epsilon is None else epsilon.contiguous(),
            embedding_size // alignment(embedding_size),
            stride_of(alpha),
            stride_of(beta),
            0 if epsilon is None else stride_of(epsilon),
            ALIGNMENT=alignment(embedding_size),
            NORM=norm,
            BLOCK=SENTENCE_BLOCK,
            **sentence_options(),
        )
    return out_pgd, out_fgsm


def launch_mix(delta_pgd: Tensor, delta_fgsm: Tensor, rho: float) -> Tensor:
    """rho · delta_pgd + (1 - rho) · delta_fgsm, (T, E), in their dtype and rounded once."""
    delta_pgd, delta_fgsm = delta_pgd.contiguous(), delta_fgsm.contiguous()
    out = torch.empty_like(delta_pgd)
    if out.numel() == 0:
        return out
    with on_device_of(out):
        mix_kernel[(triton.cdiv(out.numel(), MIX_BLOCK),)](
            delta_pgd,
            delta_fgsm,
            out,
            float(rho),
            1.0 - rho,
            out.numel() // alignment(out.numel()),
            ALIGNMENT=alignment(out.numel()),
            BLOCK=MIX_BLOCK,
            num_warps=MIX_WARPS,
        )
    return out
