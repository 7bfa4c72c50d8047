"""What CARL's negatives and RAR's reconstruction cost beside the encoder's passes."""

from types import SimpleNamespace

import torch

from fastadv.objectives.base import Objective
from fastadv.objectives.carl import CARL
from fastadv.objectives.rar import RAR, TOKENS_AT_A_TIME

from .model_shape import ModelShape


def bind_to_shape(objective: Objective, shape: ModelShape) -> Objective:
    """``objective`` with the parameters it makes in the encoder's sizes, for an encoder that is not there."""
    word_embeddings = torch.empty(shape.vocab_size, shape.embedding_size, device="meta")
    objective.bind(SimpleNamespace(word_embeddings=word_embeddings))
    return objective


def own_flops(objective: Objective, shape: ModelShape, num_sentences: int, num_tokens: float) -> dict[str, float]:
    """FLOPs by part of a batch of all ranks, once CARL's contrast has begun."""
    if isinstance(objective, CARL):
        # Both anchors' scores, and their gradients by the anchors; the banks are constants.
        return {"negatives": 2 * 2 * 2.0 * num_sentences * objective.num_negatives * shape.hidden_size}
    if isinstance(objective, RAR):
        forward = 2.0 * num_tokens * shape.embedding_size * (shape.hidden_size + shape.vocab_size)
        # Above this many tokens logits are computed once more in the backward.
        return {"reconstruction": (3 + (num_tokens > TOKENS_AT_A_TIME)) * forward}
    return {}
