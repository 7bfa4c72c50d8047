"""What stands between torch's tensors and the C++ library, which sees addresses alone.

An op can be called past its public function, as ``torch.ops.fastadv``; so what C++ takes on trust is checked here.
"""

from typing import Any, Optional

import torch
from torch import Tensor


def packed_arguments(op: str, cu_seqlens: Optional[Tensor], **rows: Tensor) -> tuple[Tensor, ...]:
    """The float32 (T, E) ``rows`` and ``cu_seqlens`` (last, where given), contiguous.

    Raises:
        ValueError: names the op, the argument and what is allowed.
    """
    first = next(iter(rows.values()))
    for name, tensor in rows.items():
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
            raise ValueError(f"{op}: {name} is {tensor.dtype} on {tensor.device}; allowed: torch.float32 on cpu")
        if tensor.ndim != 2 or tensor.shape != first.shape:
            shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in rows.items())
            raise ValueError(f"{op}: shapes are {shapes}; allowed: (T, E) for all")
    contiguous = tuple(tensor.contiguous() for tensor in rows.values())
    if cu_seqlens is None:
        return contiguous
    return (*contiguous, vector(op, "cu_seqlens", cu_seqlens, torch.int32))


def vector(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous one-dimensional tensor of ``dtype`` on the CPU, not empty where it holds offsets or sizes.

    Raises:
        ValueError: names the op, the argument and what is allowed.
    """
    if tensor.device.type != "cpu" or tensor.dtype != dtype or tensor.ndim != 1:
        given = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{op}: {name} is {given}; allowed: {dtype}, one-dimensional, on cpu")
    return tensor.contiguous()


def sizes(op: str, num_balls: int, **given: Optional[Tensor]) -> tuple[list[Optional[Tensor]], dict[str, Any]]:
    """Steps and radii, float32 of (1,) or one a ball, and ``*_stride`` for each: 0 where one serves all."""
    vectors, strides = [], {}
    for name, tensor in given.items():
        if tensor is not None:
            tensor = vector(op, name, tensor, torch.float32)
            if tensor.shape[0] not in (1, num_balls):
                raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}; allowed: (1,) or ({num_balls},)")
        vectors.append(tensor)
        strides[f"{name}_stride"] = 0 if tensor is None or tensor.shape[0] == 1 else 1
    return vectors, strides


def address(tensor: Optional[Tensor]) -> int:
    """Where its first element lies; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
