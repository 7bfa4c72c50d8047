"""Passes of other texts of the sentences (`fastadv.data.variants.text_variants`), by one network or by two, piece by
piece."""

from dataclasses import replace
from typing import Callable, Optional, Sequence

import torch
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.objectives.base import Variant

Passed = tuple[Tensor, Optional[Tensor]]
"""h (b, D) and, where asked for, last hidden states (t, D)"""


def encode_texts(encoder: nn.Module, batch: PackedBatch, with_tokens: bool) -> Passed:
    """A pass from the token ids on, under a dropout mask of its own."""
    x = encoder.embed(batch)
    return encoder.encode_with_tokens(x, batch) if with_tokens else (encoder.encode(x, batch), None)


def encode_variants(encode: Callable[[PackedBatch], Passed], batch: PackedBatch) -> dict[str, Passed]:
    """What ``encode`` makes of each variant of a piece; passes do not remember their layouts, as pieces' do not."""
    return {name: encode(replace(texts)) for name, texts in batch.variants.items()}


def joined(parts: Sequence[Optional[Tensor]]) -> Optional[Tensor]:
    """(B, D) of the pieces' vectors; None where they have none."""
    return None if parts[0] is None else parts[0] if len(parts) == 1 else torch.cat(list(parts))


def joined_variants(pieces: Sequence[dict[str, Passed]], batch: PackedBatch) -> dict[str, Variant]:
    """The whole batch's variants, of those of its pieces."""
    variants = {}
    for name, texts in batch.variants.items():
        pooled, tokens = (joined(parts) for parts in zip(*(piece[name] for piece in pieces)))
        variants[name] = Variant(pooled, texts.is_present, texts, tokens)
    return variants
