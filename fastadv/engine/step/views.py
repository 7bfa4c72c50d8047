"""From the vectors that pieces of a batch made to the views of the whole batch that an objective's losses read."""

from dataclasses import replace
from typing import Mapping, Sequence

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.passes import CleanPasses, Passed
from fastadv.objectives.base import Keys, Objective, SecondViews, Variant, Views


def clean_views(
    objective: Objective,
    whole: GlobalBatch,
    batch: PackedBatch,
    clean: Sequence[CleanPasses],
    average_logits: Tensor | None = None,
) -> Views:
    """The views of a rank's ``batch``, of what the clean passes of its pieces made.

    Args:
        average_logits: (B, C) of the average model, for an objective that keeps one.
    """
    pooled, keys, second = joined([piece.pooled for piece in clean]), None, None
    query = None if pooled is None else objective.project(pooled)
    if objective.needs.positive:
        positive, hard_negative = (joined([getattr(c, name) for c in clean]) for name in ("positive", "hard_negative"))
        keys = keys_of(objective, whole, batch, positive, hard_negative)
    if objective.needs.second_network:
        of_second, tokens = (joined(parts) for parts in zip(*(piece.second for piece in clean)))
        second = SecondViews(of_second, _variants([piece.second_variants for piece in clean], batch), tokens)
    return Views(
        query,
        batch.sentence_ids,
        keys,
        rows_a_rank=whole.rows_a_rank,
        pooled=pooled,
        labels=batch.labels,
        batch=batch,
        tokens_a_rank=whole.tokens_a_rank,
        ranks=whole,
        average_logits=average_logits,
        tokens=joined([piece.tokens for piece in clean]),
        variants=_variants([piece.variants for piece in clean], batch),
        second=second,
    )


def keys_of(
    objective: Objective, whole: GlobalBatch, batch: PackedBatch, positive: Tensor, hard_negative: Tensor | None
) -> Keys:
    """Keys of all ranks, of pooled vectors (B, D) of z+ and of given hard negatives, which go with them."""
    keys = whole.gather_keys(objective.project(positive), batch.sentence_ids)
    if hard_negative is None:
        return keys
    given = whole.gather_keys(objective.project(hard_negative), batch.hard_negative.sentence_ids)
    return keys.with_hard_negatives(given)


def with_adversarial(
    views: Views, objective: Objective, whole: GlobalBatch, pooled: Tensor, tokens: Tensor | None
) -> Views:
    """``views`` with what is made of h (B, D) of the adversarial pass, and its token states (T, D)."""
    adversarial = objective.project(pooled)
    has_keys = objective.needs.adversarial.keys
    return replace(
        views,
        adversarial=adversarial,
        adversarial_keys=whole.gather_keys(adversarial, views.sentence_ids) if has_keys else None,
        adversarial_pooled=pooled,
        adversarial_tokens=tokens,
    )


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """(B, D) of the pieces' vectors; None where they have none."""
    return None if parts[0] is None else parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _variants(pieces: Sequence[Mapping[str, Passed]], batch: PackedBatch) -> dict[str, Variant]:
    """The whole batch's variants, of those of its pieces."""
    variants = {}
    for name, texts in batch.variants.items():
        pooled, tokens = (joined(parts) for parts in zip(*(piece[name] for piece in pieces)))
        variants[name] = Variant(pooled, texts.is_present, texts, tokens)
    return variants
