"""InfoNCE over cosine similarities, with several positives a row (RobustSentEmbed eq. 9, METHODS.md 2).

    logit^m_ij = cos(query_i, key^m_j) / temperature,  m = 1 … S key sets;  the positives of row i are the S
    keys of column row_offset + i, and every other column of every set holds negatives:

    sum:       -log( Σ_m exp(pos_m) / (Σ_m exp(pos_m) + Σ_neg exp) )
    mean:      mean over m of -log( exp(pos_m) / (Σ_m exp(pos_m) + Σ_neg exp) )
    separate:  mean over m of -log( exp(pos_m) / (exp(pos_m) + Σ_neg of set m exp) )

With P and Q the log-sum-exps of positives and negatives, `sum` is softplus(Q - P), whose derivative by Q is
the negatives' whole probability taken from their own sum. The usual softmax minus one-hot loses that
probability to cancellation: a fifth of it at a logit gap of 17 in float32, all of it at 20.
"""

import math
from typing import Optional

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from . import info_nce_ops
from .backend import resolve
from .direction import direction_reference

MULTI_POSITIVE = ("sum", "mean", "separate")
REDUCTIONS = ("none", "mean", "sum")


def safe_logsumexp(logits: Tensor, present: Tensor) -> Tensor:
    """Log-sum-exp over the last axis of ``logits`` where ``present``; finite where nothing is."""
    any_present = present.any(dim=-1, keepdim=True)
    masked = logits.masked_fill(~present & any_present, -math.inf)
    return torch.where(any_present, masked, 0).logsumexp(dim=-1)


def info_nce_reference(
    query: Tensor,
    keys: Tensor,
    hard_negatives: Optional[Tensor],
    query_ids: Optional[Tensor],
    key_ids: Optional[Tensor],
    hard_negative_ids: Optional[Tensor],
    temperature: float,
    row_offset: int,
    multi_positive: str,
    hard_negative_weight: float,
    own_hard_negative_weight: float,
) -> Tensor:
    """Loss of each row, (N,). Shapes as in ``info_nce``, keys (S, M, D)."""
    num_rows, num_sets, num_keys = query.shape[0], keys.shape[0], keys.shape[1]
    unit_query = direction_reference(query, "l2")
    unit_keys = direction_reference(keys.flatten(0, 1), "l2")
    logits = (unit_query @ unit_keys.T / temperature).view(num_rows, num_sets, num_keys)
    own = torch.arange(num_rows, device=query.device) + row_offset
    positive = logits.gather(2, own.view(-1, 1, 1).expand(-1, num_sets, 1)).squeeze(2)
    present = own.unsqueeze(1) != torch.arange(num_keys, device=query.device)
    if query_ids is not None:
        present = present & (query_ids.unsqueeze(1) != key_ids)
    present = present.unsqueeze(1).expand_as(logits)
    # One denominator for all sets, or one for each: G = 1 or S.
    if multi_positive == "separate":
        negative, own_positive = logits, positive
    else:
        negative, present = logits.flatten(1).unsqueeze(1), present.flatten(1).unsqueeze(1)
        own_positive = positive.logsumexp(dim=1, keepdim=True)
    if hard_negatives is not None:
        hard = unit_query @ direction_reference(hard_negatives, "l2").T / temperature
        hard = hard + math.log(hard_negative_weight)
        if own_hard_negative_weight != 1:
            is_own = own.unsqueeze(1) == torch.arange(hard.shape[1], device=query.device)
            hard = torch.where(is_own, hard + math.log(own_hard_negative_weight), hard)
        hard_present = torch.ones_like(hard, dtype=torch.bool)
        if hard_negative_ids is not None:
            hard_present = query_ids.unsqueeze(1) != hard_negative_ids
        num_groups = negative.shape[1]
        negative = torch.cat([negative, hard.unsqueeze(1).expand(-1, num_groups, -1)], dim=2)
        present = torch.cat([present, hard_present.unsqueeze(1).expand(-1, num_groups, -1)], dim=2)
    loss = -logsigmoid(own_positive - safe_logsumexp(negative, present)).mean(dim=1)
    if multi_positive == "mean" and num_sets > 1:
        # A log-sum-exp of its own: through a shared one autograd would add 1 and the negatives' probability, and
        # lose the latter.
        loss = loss + (positive.logsumexp(dim=1) - positive.mean(dim=1))
    return torch.where(present.any(dim=2).all(dim=1), loss, 0)


def check_tensors(query, keys, query_ids, key_ids, hard_negatives, hard_negative_ids, row_weight):
    """Raises ValueError, in one line, for a tensor whose shape, dtype or device does not fit the others."""
    if query.ndim != 2:
        raise ValueError(f"info_nce: query is {tuple(query.shape)}; allowed: (N, D)")
    rows, size = query.shape
    if keys.ndim != 3 or keys.shape[2] != size:
        raise ValueError(f"info_nce: keys is {tuple(keys.shape)}; allowed: (S, M, {size}) or (M, {size})")
    if hard_negatives is not None and (hard_negatives.ndim != 2 or hard_negatives.shape[1] != size):
        raise ValueError(f"info_nce: hard_negatives is {tuple(hard_negatives.shape)}; allowed: (H, {size})")
    num_hard = None if hard_negatives is None else hard_negatives.shape[0]
    vectors = {"query": query, "keys": keys, "hard_negatives": hard_negatives}
    ids = {
        "query_ids": (query_ids, rows),
        "key_ids": (key_ids, keys.shape[1]),
        "hard_negative_ids": (hard_negative_ids, num_hard),
    }
    for name, (value, length) in {**ids, "row_weight": (row_weight, rows)}.items():
        if value is not None and length is not None and value.shape != (length,):
            raise ValueError(f"info_nce: {name} is {tuple(value.shape)}; allowed: ({length},)")
    for name, value in {**vectors, **{name: value for name, (value, _) in ids.items()}}.items():
        if value is not None and value.is_floating_point() != (name in vectors):
            allowed = "a floating-point dtype" if name in vectors else "an integer dtype"
            raise ValueError(f"info_nce: {name} is {value.dtype}; allowed: {allowed}")
        if value is not None and value.device != query.device:
            raise ValueError(f"info_nce: {name} is on {value.device}; allowed: {query.device}, as query")


def check_arguments(
    query,
    keys,
    temperature,
    row_offset,
    query_ids,
    key_ids,
    multi_positive,
    hard_negatives,
    hard_negative_weight,
    own_hard_negative_weight,
    hard_negative_ids,
    row_weight,
    reduction,
):
    """Raises ValueError, in one line, for anything ``info_nce`` cannot mean."""
    check_tensors(query, keys, query_ids, key_ids, hard_negatives, hard_negative_ids, row_weight)
    if multi_positive not in MULTI_POSITIVE:
        raise ValueError(f"multi_positive is {multi_positive!r}; allowed: {', '.join(MULTI_POSITIVE)}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; allowed: above 0")
    if not hard_negative_weight > 0:
        raise ValueError(f"hard_negative_weight is {hard_negative_weight}; allowed: above 0")
    if not own_hard_negative_weight > 0:
        raise ValueError(f"own_hard_negative_weight is {own_hard_negative_weight}; allowed: above 0")
    if own_hard_negative_weight != 1 and hard_negatives is not None and len(hard_negatives) != keys.shape[1]:
        raise ValueError(
            f"own_hard_negative_weight with {len(hard_negatives)} hard negatives; allowed: one a key, {keys.shape[1]}"
        )
    if hard_negative_ids is not None and query_ids is None:
        raise ValueError("hard_negative_ids need query_ids")
    if (query_ids is None) != (key_ids is None):
        raise ValueError("query_ids and key_ids are given together or not at all")
    if row_offset < 0 or row_offset + query.shape[0] > keys.shape[1]:
        raise ValueError(
            f"row_offset {row_offset} with {query.shape[0]} rows; allowed: at most {keys.shape[1]} together"
        )


def row_factors(query: Tensor, row_weight: Optional[Tensor], reduction: str) -> Tensor:
    """What the rows' losses are multiplied by before they are added up, (N,) float32."""
    if row_weight is None:
        factor = 1.0 if reduction == "sum" else 1 / max(1, query.shape[0])
        return query.new_full((query.shape[0],), factor, dtype=torch.float32)
    row_weight = row_weight.float()
    if reduction == "sum":
        return row_weight
    total = row_weight.sum()
    return row_weight / torch.where(total != 0, total, 1)


def info_nce(
    query: Tensor,
    keys: Tensor,
    *,
    temperature: float,
    row_offset: int = 0,
    query_ids: Optional[Tensor] = None,
    key_ids: Optional[Tensor] = None,
    multi_positive: str = "sum",
    hard_negatives: Optional[Tensor] = None,
    hard_negative_weight: float = 1.0,
    own_hard_negative_weight: float = 1.0,
    hard_negative_ids: Optional[Tensor] = None,
    row_weight: Optional[Tensor] = None,
    reduction: str = "mean",
    backend: Optional[str] = None,
) -> Tensor:
    """InfoNCE of ``query`` (N, D) against S sets of M keys, all ranks': (S, M, D), or (M, D) for one set.

    Vectors are normalised here; a zero vector has cosine 0 with everything, and gradient 0. A row without a
    negative has loss 0 and gradient 0. Computed in float32, or float64 for float64.

    Args:
        temperature: divides the cosines.
        row_offset: column of row 0's positives; row i's are in column ``row_offset + i`` of each set.
        query_ids, key_ids: (N,) and (M,) sentence ids. Column j is no negative of row i where they are equal.
        multi_positive: how the S positives combine, see the module.
        hard_negatives: (H, D) further negatives of every row, each counted ``hard_negative_weight`` times.
        own_hard_negative_weight: row i's own, in row ``row_offset + i`` of M hard negatives, counts so many times more
            (SimCSE, Gao et al. 2021, appendix: its alpha; its code's ``hard_negative_weight`` is the logarithm).
        hard_negative_ids: (H,) sentence ids. Hard negative j is none of row i where they are equal.
        row_weight: (N,) factors of the rows' losses.
        reduction: "none" gives (N,); "sum"; "mean" divides the sum by N, or by the sum of ``row_weight``.
        backend: "reference", "native" or "triton"; the best that takes the vectors if None. Only the reference takes
            float64, makes the (N, S·M) matrix, and has a second derivative.

    Raises:
        ValueError: an unknown option, a number outside its range, rows without a column, or tensors whose shapes,
            dtypes or devices do not fit.
        BackendError: the named backend cannot run.
    """
    if keys.ndim == 2:
        keys = keys.unsqueeze(0)
    check_arguments(
        query,
        keys,
        temperature,
        row_offset,
        query_ids,
        key_ids,
        multi_positive,
        hard_negatives,
        hard_negative_weight,
        own_hard_negative_weight,
        hard_negative_ids,
        row_weight,
        reduction,
    )
    floats = (query, keys) if hard_negatives is None else (query, keys, hard_negatives)
    chosen = resolve("info_nce", floats, backend)
    ids = [None if i is None else i.to(torch.int64) for i in (query_ids, key_ids, hard_negative_ids)]
    options = float(temperature), row_offset, multi_positive, float(hard_negative_weight)
    inputs = query, keys, hard_negatives, *ids, *options, float(own_hard_negative_weight)
    # The gradients of a sum whose weights are known are formed with it, which saves a product.
    if chosen == "native" and reduction != "none" and torch.is_grad_enabled() and any(x.requires_grad for x in floats):
        return info_nce_ops.total(row_factors(query, row_weight, reduction), *inputs)
    loss = info_nce_reference(*inputs) if chosen == "reference" else info_nce_ops.rows(chosen, *inputs)
    if row_weight is not None:
        row_weight = row_weight.to(loss.dtype)
        loss = loss * row_weight
    if reduction == "none":
        return loss
    if reduction == "sum" or row_weight is None:
        return loss.sum() if reduction == "sum" else loss.mean()
    total = row_weight.sum()
    return loss.sum() / torch.where(total != 0, total, 1)
