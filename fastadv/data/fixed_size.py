"""Batches of a few fixed sizes, so that a compiler or a CUDA graph meets the same shapes again.

Filler sentences bring the tokens of a batch to a multiple of a quantum Q. A batch of B sentences always gets the same
number k of them, each of 1 to L tokens, so that B + k, the token count and L are all that shapes depend on. To an
encoder fillers are sentences like any other; no sentence's vector depends on them, and who filled a batch up drops
their rows again.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.data.packing import PackedBatch

QUANTUM = 128
"""tokens; a filled batch wastes Q / 2 + k of them on average"""


@dataclass(frozen=True)
class FilledBatch:
    """A batch and k filler sentences behind its own."""

    batch: PackedBatch
    """(T',) tokens, B + k sentences; ``max_seqlen`` is L"""
    num_sentences: int
    """B"""
    num_tokens: int
    """T"""

    def pad(self, rows: Tensor, fill: float = 0.0) -> Tensor:
        """(T, ...) -> (T', ...), or (B, ...) -> (B + k, ...), ``fill`` at the fillers; a scalar stays."""
        if rows.ndim == 0:
            return rows
        is_by_token = rows.shape[0] == self.num_tokens
        total = self.batch.num_tokens if is_by_token else self.batch.num_sentences
        return F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, total - rows.shape[0]), value=fill)

    def cut(self, rows: Tensor) -> Tensor:
        """(T', ...) -> (T, ...), or (B + k, ...) -> (B, ...): the rows that `pad` was given."""
        if rows.ndim == 0:
            return rows
        return rows[: self.num_tokens if rows.shape[0] == self.batch.num_tokens else self.num_sentences]


def num_fillers(max_length: int, quantum: int = QUANTUM) -> int:
    """k: so many sentences of 1 to ``max_length`` tokens hold any remainder from k to k + quantum - 1 tokens.

    One token at least stays free, so that a filled batch always has padding and one layout serves all.
    """
    return (quantum - 1) // (max_length - 1) + 1


def fill_up(batch: PackedBatch, max_length: int, quantum: int = QUANTUM) -> FilledBatch:
    """Fills ``batch`` up to the next multiple of ``quantum`` tokens that has room for the fillers.

    Nothing is asked of the device. Fillers repeat the batch's first token, count as special tokens, and have the
    positions of a sentence.

    Raises:
        ValueError: a sentence of more than ``max_length`` tokens, or a ``max_length`` below 2.
    """
    if max_length < 2 or batch.max_seqlen > max_length:
        raise ValueError(
            f"max_length is {max_length}; allowed: at least 2 and the longest sentence, {batch.max_seqlen}"
        )
    k = num_fillers(max_length, quantum)
    num_tokens = -(-(batch.num_tokens + k) // quantum) * quantum
    each, more = divmod(num_tokens - batch.num_tokens, k)
    lengths = [each + (i < more) for i in range(k)]
    device = batch.input_ids.device
    ends = batch.num_tokens + torch.tensor(lengths).cumsum(0)
    positions = torch.cat([torch.arange(n) for n in lengths]).to(device) + batch.position_ids[:1]
    rest = num_tokens - batch.num_tokens
    filled = PackedBatch(
        input_ids=torch.cat([batch.input_ids, batch.input_ids[:1].expand(rest)]),
        token_type_ids=F.pad(batch.token_type_ids, (0, rest)),
        position_ids=torch.cat([batch.position_ids, positions]),
        is_special=F.pad(batch.is_special, (0, rest), value=True),
        cu_seqlens=torch.cat([batch.cu_seqlens, ends.to(device, torch.int32)]),
        max_seqlen=max_length,
        sentence_ids=F.pad(batch.sentence_ids, (0, k)),
    )
    return FilledBatch(filled, batch.num_sentences, batch.num_tokens)
