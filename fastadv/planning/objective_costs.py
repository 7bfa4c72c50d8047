"""What CARL's negatives, RAR's reconstruction and TaiChi's contrasts cost beside the encoder's passes."""

from types import SimpleNamespace

import torch

from fastadv.objectives.base import Objective
from fastadv.objectives.classes.carl import CARL
from fastadv.objectives.classes.rar import RAR, TOKENS_AT_A_TIME
from fastadv.objectives.texts.taichi import TaiChi
from fastadv.planning.model_shape import ModelShape


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
    if num_own_key_sets(objective) and objective.similarity == "cosine":
        # Distances are formed by differences, which are no products.
        compared = 2.0 * num_sentences**2 * shape.hidden_size
        return {"contrasts": 3 * num_own_key_sets(objective) * compared}
    return {}


def num_own_key_sets(objective: Objective) -> int:
    """Sets of vectors that an objective gathers by itself."""
    return objective.num_contrasts if isinstance(objective, TaiChi) else 0
