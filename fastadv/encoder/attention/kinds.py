"""Which attention runs inside each sentence: ``engine.attention``.

| kind | how | where |
|---|---|---|
| ``matmul`` | two matrix products and a softmax, head by head | anywhere |
| ``sdpa`` | torch's scaled_dot_product_attention on the padded layout | anywhere |
| ``varlen`` | torch.nn.attention.varlen (torch 2.10 on) on packed tokens | CUDA, half precision, no attention dropout |
| ``flash_attn`` | flash_attn_varlen_func of the flash-attn package on packed tokens | CUDA, half precision |
| ``auto`` | the faster of ``matmul`` and ``sdpa``, as ``choose`` says | |

Every kind computes the same function and draws its dropout from torch's generator. ``varlen`` and ``flash_attn`` were
run against stand-ins of their library calls, not on a GPU.
"""

import importlib.util
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.encoder.attention.layout import Padding, pad_filled, pad_heads, unpad, unpad_heads
from fastadv.encoder.dropout import drop
from fastadv.errors import UserError

KINDS = ("auto", "sdpa", "varlen", "flash_attn", "matmul")

HALF = (torch.bfloat16, torch.float16)


def self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Padding,
    num_heads: int,
    dropout_p: float,
    first_tokens_only: bool = False,
    kind: str = "auto",
) -> Tensor:
    """Softmax attention inside each sentence, logits scaled by 1 / sqrt(head size).

    Args:
        query: (T, D), or (B, D) with ``first_tokens_only``: then the first token of each sentence asks alone.
        key, value: (T, D).
        dropout_p: probability with which an attention weight is dropped; 0 is off.
        kind: one of ``KINDS``.

    Returns:
        (T, D) or (B, D), as ``query``.

    Raises:
        UserError: the kind cannot run on these tensors; one line that says what can.
    """
    if kind == "auto":
        kind = choose(query.device.type, query.dtype, padding.max_seqlen, dropout_p, first_tokens_only)
    elif kind in _UNPADDED:
        obstacle = why_not(kind, query.device.type, query.dtype, dropout_p)
        if obstacle is not None:
            raise UserError(f"attention {kind}: {obstacle}")
    attend = {"matmul": _matmul, "sdpa": _sdpa, "varlen": _varlen, "flash_attn": _flash_attn}[kind]
    return attend(query, key, value, padding, num_heads, dropout_p, first_tokens_only)


def choose(device: str, dtype: torch.dtype, max_seqlen: int, dropout_p: float, first_tokens_only: bool) -> str:
    """What ``auto`` runs: on a GPU ``sdpa``; on a CPU, as measured there, ``matmul`` but for long float32 sentences.

    Torch's fused form never writes the logits down, which pays where they are many. But it is slow in half precision
    on a CPU, and with dropout it is not taken: torch then computes what ``matmul`` does, less directly.
    """
    if device != "cpu":
        return "sdpa"
    is_fused = dtype not in HALF and dropout_p == 0 and not first_tokens_only
    return "sdpa" if is_fused and max_seqlen > _LONGEST_SHORT else "matmul"


_LONGEST_SHORT = 96
"""tokens of a sentence up to which the fused form has no advantage on a CPU"""


def _matmul(query, key, value, padding, num_heads, dropout_p, first_tokens_only):
    layout = padding.heads(num_heads, query.dtype)
    head_size = query.shape[1] // num_heads

    def by_head(rows: Tensor) -> Tensor:
        return pad_heads(rows, layout, num_heads, padding.max_seqlen)

    query = query * head_size**-0.5
    asking = query.reshape(-1, 1, head_size) if first_tokens_only else by_head(query)
    logits = asking @ by_head(key).transpose(1, 2)
    if layout.bias is not None:
        # In place: the product's gradient asks for its factors, not for its result.
        logits = logits.add_(layout.bias)
    weights = logits.softmax(-1)
    if dropout_p > 0:
        weights = drop(weights, dropout_p)
    states = weights @ by_head(value)
    return states.view(len(query), -1) if first_tokens_only else unpad_heads(states, layout, num_heads)


def _sdpa(query, key, value, padding, num_heads, dropout_p, first_tokens_only):
    asking = query.unsqueeze(1) if first_tokens_only else pad_filled(query, padding)
    grids = asking, pad_filled(key, padding), pad_filled(value, padding)
    # (B, L, D) -> (B, H, L, D / H)
    heads = [grid.unflatten(-1, (num_heads, -1)).transpose(1, 2) for grid in grids]
    states = F.scaled_dot_product_attention(*heads, attn_mask=padding.bias(query.dtype), dropout_p=dropout_p)
    states = states.transpose(1, 2).flatten(2)
    return states.squeeze(1) if first_tokens_only else unpad(states, padding)


def _varlen(query, key, value, padding, num_heads, dropout_p, first_tokens_only):
    from torch.nn.attention.varlen import varlen_attn

    heads = [rows.unflatten(-1, (num_heads, -1)) for rows in (query, key, value)]
    cu_seqlens, max_seqlen = _asking(padding, first_tokens_only)
    return varlen_attn(*heads, cu_seqlens, padding.cu_seqlens, max_seqlen, padding.max_seqlen).flatten(1)


def _flash_attn(query, key, value, padding, num_heads, dropout_p, first_tokens_only):
    from flash_attn import flash_attn_varlen_func

    heads = [rows.unflatten(-1, (num_heads, -1)) for rows in (query, key, value)]
    cu_seqlens, max_seqlen = _asking(padding, first_tokens_only)
    states = flash_attn_varlen_func(
        *heads,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=padding.cu_seqlens,
        max_seqlen_q=max_seqlen,
        max_seqlen_k=padding.max_seqlen,
        dropout_p=dropout_p,
        softmax_scale=heads[0].shape[-1] ** -0.5,
    )
    return states.flatten(1)


def _asking(padding: Padding, first_tokens_only: bool) -> tuple[Tensor, int]:
    """Offsets of each sentence's queries, and the most of one sentence."""
    if not first_tokens_only:
        return padding.cu_seqlens, padding.max_seqlen
    offsets = torch.arange(padding.num_sentences + 1, dtype=torch.int32, device=padding.cu_seqlens.device)
    return offsets, 1


_UNPADDED = {"varlen": "torch.nn.attention.varlen", "flash_attn": "flash_attn"}
"""kind -> the module it calls"""

_WHERE_FROM = {
    "varlen": "torch 2.10 or later has it",
    "flash_attn": "it comes with the extra flash: pip install 'fastadv[flash]'",
}


def why_not(kind: str, device: str, dtype: torch.dtype, dropout_p: float = 0.0) -> Optional[str]:
    """Why ``kind`` cannot run on such tensors, with what can; None if it can. ``device``: "cpu" or "cuda"."""
    module = _UNPADDED.get(kind)
    if module is None:
        return None
    if not _is_installed(module):
        return f"{module} is not installed ({_WHERE_FROM[kind]}); allowed here: auto, sdpa, matmul"
    if device != "cuda":
        return f"it runs on CUDA devices, got {device}; allowed there: auto, sdpa, matmul"
    if dtype not in HALF:
        name = str(dtype).removeprefix("torch.")
        return f"it runs in bfloat16 and float16, got {name}; allowed there: auto, sdpa, matmul"
    if kind == "varlen" and dropout_p > 0:
        return f"it has no attention dropout, got {dropout_p:g}; allowed: dropout 0, or auto, sdpa, flash_attn, matmul"
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
