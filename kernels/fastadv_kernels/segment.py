"""Norms of packed tokens, per sentence and per token.

    segment_norm: ||x||_P over all tokens and entries of a sentence      (T, E) -> (B,)
    row_norm:     ||x_i||_P over the entries of one token                (T, E) -> (T,)

P is "linf", "l2" or "l1" (METHODS.md 1). Sentence b owns rows ``cu_seqlens[b]:cu_seqlens[b + 1]``,
``cu_seqlens`` being int32 (B + 1,). Norms are float32, or float64 for float64 input. The l2 norm divides by
the largest magnitude before it squares, so that neither 1e-30 nor 1e30 leaves float32's range, and its
gradient at zero is zero.
"""

from typing import Optional

import torch
from torch import Tensor

from .backend import reference_alone, resolve

NORMS = ("linf", "l2", "l1")
reference_alone("row_norm")
reference_alone("segment_norm")


def check_norm(norm: str) -> None:
    """Raises ValueError unless ``norm`` is one of ``NORMS``."""
    if norm not in NORMS:
        raise ValueError(f"norm is {norm!r}; allowed: {', '.join(NORMS)}")


def check_floating(op: str, name: str, x: Tensor) -> None:
    """Raises ValueError unless ``x`` is a (T, E) tensor of a floating-point type."""
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"{op}: {name} is {x.dtype} {tuple(x.shape)}; allowed: a floating-point type, (T, E)")


def check_cu_seqlens(op: str, cu_seqlens: Tensor, device: torch.device) -> None:
    """Raises ValueError unless ``cu_seqlens`` is int32 (B + 1,) on ``device``."""
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype != torch.int32:
        raise ValueError(f"{op}: cu_seqlens is {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}; allowed: int32 (B + 1,)")
    if cu_seqlens.device != device:
        raise ValueError(f"{op}: cu_seqlens is on {cu_seqlens.device}; allowed: {device}, where the tokens are")


def check_size(op: str, name: str, size: Optional[float | Tensor], num_balls: int, device: torch.device) -> None:
    """Raises ValueError unless a step or radius is a number, one element, or one a ball on ``device``."""
    if not isinstance(size, Tensor):
        return
    if size.shape not in ((), (1,), (num_balls,)):
        raise ValueError(f"{op}: {name} has shape {tuple(size.shape)}; allowed: a number or ({num_balls},)")
    if size.device != device:
        raise ValueError(f"{op}: {name} is on {size.device}; allowed: a number, or a tensor on {device}")


def check_packed(
    op: str, points: dict[str, Tensor], grad: Tensor, cu_seqlens: Tensor, **sizes: Optional[float | Tensor]
) -> None:
    """Raises ValueError, in one line, where the arguments of a step do not fit each other.

    Args:
        points: what moves, by the argument's name; each (T, E), as ``grad`` is.
        sizes: steps and radii, by the argument's name.
    """
    for name, x in points.items():
        check_floating(op, name, x)
        check_floating(op, "grad", grad)
        if x.shape != grad.shape:
            shapes = f"{name} is {tuple(x.shape)} and its gradient {tuple(grad.shape)}"
            raise ValueError(f"{op}: {shapes}; allowed: (T, E) for both")
        if x.device != grad.device:
            raise ValueError(f"{op}: {name} is on {x.device} and grad on {grad.device}; allowed: one device for both")
    check_cu_seqlens(op, cu_seqlens, grad.device)
    for name, size in sizes.items():
        check_size(op, name, size, cu_seqlens.shape[0] - 1, grad.device)


def size_vector(size: Optional[float | Tensor], device: torch.device) -> Optional[Tensor]:
    """A step or radius as fast forms take it: float32, (1,) for all or one a ball; None stays None."""
    if size is None:
        return None
    if isinstance(size, Tensor):
        return size.to(torch.float32).reshape(-1)
    return torch.full((1,), size, dtype=torch.float32, device=device)


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` itself if it is float32 or float64, else ``x`` in float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def sentence_of_token(cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    """(T,) int64, the sentence each packed token belongs to."""
    sentences = torch.arange(cu_seqlens.shape[0] - 1, device=cu_seqlens.device)
    return torch.repeat_interleave(sentences, cu_seqlens.diff().long(), output_size=num_tokens)


def spread(per_sentence: Tensor, cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    """A value per sentence (B,) as a column (T, 1) over the tokens."""
    return per_sentence[sentence_of_token(cu_seqlens, num_tokens)].unsqueeze(1)


def per_token(value: float | Tensor, cu_seqlens: Tensor, num_tokens: int, dtype: torch.dtype) -> float | Tensor:
    """A size given per sentence (B,) as a (T, 1) column of ``dtype``; a plain number stays as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.numel() == 1:
        return value.to(dtype).reshape(())
    return spread(value.to(dtype), cu_seqlens, num_tokens)


def segment_sum(rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Sums of ``rows`` (T, ...) by sentence: (B, ...). In token order on every device, so deterministic."""
    return torch.segment_reduce(rows, "sum", lengths=cu_seqlens.diff().long(), axis=0, unsafe=True, initial=0)


def segment_max(rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The largest of the non-negative ``rows`` (T,) of each sentence: (B,); NaN where it holds one."""
    return torch.segment_reduce(rows, "max", lengths=cu_seqlens.diff().long(), axis=0, unsafe=True, initial=0)


def largest_magnitude(x: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
    """max |x| of each token, or of each token's sentence: (T, 1)."""
    magnitude = x.abs().amax(dim=1)
    if cu_seqlens is None:
        return magnitude.unsqueeze(1)
    return spread(segment_max(magnitude, cu_seqlens), cu_seqlens, x.shape[0])


def scale_down(x: Tensor, magnitude: Tensor) -> Tensor:
    """``x / magnitude``, or ``x`` where the magnitude is 0."""
    return x / torch.where(magnitude != 0, magnitude, 1)


def root_sum_square(scaled: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
    """l2 norm of tokens (T,) or sentences (B,) of magnitude 1; 1 for zeros, where a root has no slope."""
    total = scaled.square().sum(dim=1)
    if cu_seqlens is not None:
        total = segment_sum(total, cu_seqlens)
    return torch.where(total != 0, total, 1).sqrt()


def row_norm_reference(x: Tensor, norm: str) -> Tensor:
    x = at_least_float32(x)
    if norm == "linf":
        return x.abs().amax(dim=1)
    if norm == "l1":
        return x.abs().sum(dim=1)
    # The norm does not depend on the scale it is computed at, so the scale is a constant to autograd.
    magnitude = largest_magnitude(x.detach())
    return magnitude.squeeze(1) * root_sum_square(scale_down(x, magnitude))


def segment_norm_reference(x: Tensor, cu_seqlens: Tensor, norm: str) -> Tensor:
    x = at_least_float32(x)
    if norm == "linf":
        return segment_max(x.abs().amax(dim=1), cu_seqlens)
    if norm == "l1":
        return segment_sum(x.abs().sum(dim=1), cu_seqlens)
    magnitude = segment_max(x.detach().abs().amax(dim=1), cu_seqlens)
    scaled = scale_down(x, spread(magnitude, cu_seqlens, x.shape[0]))
    return magnitude * root_sum_square(scaled, cu_seqlens)


def row_norm(x: Tensor, norm: str, *, backend: Optional[str] = None) -> Tensor:
    """||x_i||_P of each row of ``x`` (T, E): (T,), float32 at least.

    Raises ValueError for an unknown norm.
    """
    check_norm(norm)
    resolve("row_norm", x, backend)
    return row_norm_reference(x, norm)


def segment_norm(x: Tensor, cu_seqlens: Tensor, norm: str, *, backend: Optional[str] = None) -> Tensor:
    """||x||_P of each sentence of packed ``x`` (T, E): (B,), float32 at least.

    Raises ValueError for an unknown norm.
    """
    check_norm(norm)
    resolve("segment_norm", x, backend)
    return segment_norm_reference(x, cu_seqlens, norm)
