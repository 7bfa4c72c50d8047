"""Dropout whose mask is not kept: it is a function of a seed and of an element's place.

    y_i = x_i / (1 - p)  where  u_i >= p,  else 0         u_i = hash(seed, i) / 2^32, uniform on [0, 1)

``seed`` is one int64 drawn from torch's generator, so the generator's state alone decides the masks, and the backward
draws the same mask anew: nothing but the seed is stored. torch's own dropout on a CPU draws element by element from a
generator that cannot skip ahead, which costs more than all other element-wise work of a step.

The hash is MurmurHash3's 32-bit finaliser (Appleby, public domain), once over the place under one half of the seed,
once more over the result and the other half. p is rounded to 2^-32.
"""

from typing import Optional

import torch
from torch import Tensor

from .backend import Form, native_library, resolve
from .library import LIBRARY, define_op, run_op
from .segment import at_least_float32

_LOW = 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    """MurmurHash3's finaliser of 32-bit numbers held in int64, whose products wrap around above the bits that count."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & _LOW
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & _LOW
    return x ^ (x >> 16)


def _threshold(p: float) -> int:
    return round(p * 2**32)


def dropout_reference(x: Tensor, p: float, seed: Tensor) -> Tensor:
    seed = seed.to(x.device)
    low, high = seed & _LOW, (seed >> 32) & _LOW
    place = torch.arange(x.numel(), device=x.device)
    first = _mixed((place & _LOW) ^ low)
    draws = _mixed((first + high + (place >> 32)) & _LOW)
    scaled = (at_least_float32(x) * (1 / (1 - p))).to(x.dtype)
    return torch.where((draws < _threshold(p)).view(x.shape), 0, scaled)


def _dropout_native(x: Tensor, p: float, seed: Tensor) -> Tensor:
    _check(x, p, seed)
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dropout: x is {x.dtype} on {x.device}; allowed: torch.float32 or torch.bfloat16 on cpu")
    x = x.contiguous()
    out = torch.empty_like(x)
    native_library.dropout(
        x.data_ptr(),
        out.data_ptr(),
        seed.data_ptr(),
        size=x.numel(),
        threshold=_threshold(p),
        scale=1 / (1 - p),
        is_bfloat16=x.dtype == torch.bfloat16,
    )
    return out


def _check(x: Tensor, p: float, seed: Tensor) -> None:
    if not x.is_floating_point():
        raise ValueError(f"dropout: x is {x.dtype}; allowed: a floating-point type")
    # At 2^-32 below 1 the threshold would not fit, and nobody means it.
    if not 0 <= p < 1 or _threshold(p) > _LOW:
        raise ValueError(f"dropout: p is {p}; allowed: 0 to below 1")
    if seed.dtype != torch.int64 or seed.numel() != 1 or seed.device.type != "cpu":
        raise ValueError(
            f"dropout: seed is {seed.dtype} {tuple(seed.shape)} on {seed.device}; allowed: one int64 on cpu"
        )


def _fake(x: Tensor, p: float, seed: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx, inputs, output) -> None:
    _, ctx.p, seed = inputs
    ctx.save_for_backward(seed)


def _backward(ctx, grad: Tensor):
    (seed,) = ctx.saved_tensors
    return torch.ops.fastadv.dropout(grad, ctx.p, seed), None, None


define_op(
    "dropout(Tensor x, float p, Tensor seed) -> Tensor",
    _fake,
    _dropout_native,
    native_form=Form("cpu", (torch.float32, torch.bfloat16), needs_library=True, has_derivative=True),
)
torch.library.register_autograd("fastadv::dropout", _backward, setup_context=_setup, lib=LIBRARY)


def dropout(x: Tensor, p: float, seed: Optional[Tensor] = None, *, backend: Optional[str] = None) -> Tensor:
    """``x`` with each element 0 with probability ``p``, else divided by 1 - p. Differentiable.

    Args:
        x: any shape.
        p: in [0, 1).
        seed: one int64 on the CPU; None draws one from torch's generator.

    Raises:
        ValueError: a type, probability or seed that is not allowed.
        BackendError: the named backend cannot run.
    """
    if seed is None:
        # Not random_(), which torch.compile does not trace.
        seed = torch.randint(2**63 - 1, (1,))
    _check(x, p, seed)
    chosen = resolve("dropout", x, backend)
    return dropout_reference(x, p, seed) if chosen == "reference" else run_op("dropout", chosen, x, p, seed)
