"""Values of many sentences, in batches of near lengths; and how far a dropout mask moves a sentence's vector."""

from typing import Callable, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.evaluation.before_after.embedding_attack import evaluation_mode
from fastadv.evaluation.vectors.geometry import squared_distances


def dropout_distances(encoder, texts: Sequence[str], batch_size: int, seed: int) -> np.ndarray:
    """(N,) squared distance of a sentence's unit vectors under two dropout masks; the masks come from ``seed``."""

    def run(batch: PackedBatch, rows: Sequence[int]) -> Tuple[Tensor, Tensor]:
        h = (encoder.encode(encoder.embed(batch, dropout=True), batch, dropout=True) for _ in range(2))
        return tuple(map(getattr(encoder, "finish", lambda vectors: vectors), h))

    with evaluation_mode(encoder), torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        return squared_distances(*in_batches(encoder, texts, run, batch_size))


def in_batches(encoder, texts: Sequence[str], run: Callable, batch_size: int) -> Tuple[np.ndarray, ...]:
    """Runs ``run(batch, rows)`` over batches of near lengths and puts its row-wise tensors back in order."""
    lengths = [len(tokens) for tokens in encoder.tokenize(list(texts))[0]]
    order = np.argsort(lengths, kind="stable")
    parts = []
    for begin in range(0, len(order), batch_size):
        rows = order[begin : begin + batch_size].tolist()
        batch = encoder.pack([texts[row] for row in rows])
        parts.append([tensor.detach().float().cpu().numpy() for tensor in run(batch, rows)])
    back = np.argsort(order)
    return tuple(np.concatenate(column)[back] for column in zip(*parts))
