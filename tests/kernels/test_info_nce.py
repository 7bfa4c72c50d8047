"""InfoNCE's reference against a loop over rows in float64, and the accuracy of its gradient in float32."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from fastadv_kernels import info_nce

COMBINATIONS = ("sum", "mean", "separate")


def loop(
    query,
    keys,
    temperature,
    row_offset=0,
    query_ids=None,
    key_ids=None,
    multi_positive="sum",
    hard_negatives=None,
    hard_negative_weight=1.0,
    own_hard_negative_weight=1.0,
    hard_negative_ids=None,
):
    """The loss of each row from the definition, one logit after another."""

    def score(a, b):
        return math.exp(float(cosine_similarity(a, b, dim=0, eps=1e-300)) / temperature)

    losses = []
    num_sets, num_keys = keys.shape[:2]
    for i, row in enumerate(query):
        own = row_offset + i
        others = [j for j in range(num_keys) if j != own and (query_ids is None or query_ids[i] != key_ids[j])]
        positive = [score(row, keys[m, own]) for m in range(num_sets)]
        negative = [sum(score(row, keys[m, j]) for j in others) for m in range(num_sets)]
        hard = 0.0
        if hard_negatives is not None:
            for j, h in enumerate(hard_negatives):
                if hard_negative_ids is None or hard_negative_ids[j] != query_ids[i]:
                    own_weight = own_hard_negative_weight if j == own else 1.0
                    hard += hard_negative_weight * own_weight * score(row, h)
        if not others and hard == 0.0:
            losses.append(0.0)
            continue
        everything = sum(positive) + sum(negative) + hard
        if multi_positive == "sum":
            losses.append(-math.log(sum(positive) / everything))
        elif multi_positive == "mean":
            losses.append(sum(-math.log(p / everything) for p in positive) / num_sets)
        else:
            own_sets = zip(positive, negative, strict=True)
            losses.append(sum(-math.log(p / (p + n + hard)) for p, n in own_sets) / num_sets)
    return torch.tensor(losses, dtype=torch.float64)


def random_case(num_rows=5, num_keys=9, num_sets=2, size=6, **kwargs):
    query = torch.randn(num_rows, size, dtype=torch.float64)
    keys = torch.randn(num_sets, num_keys, size, dtype=torch.float64)
    return query, keys, {"temperature": 0.3, "row_offset": 2, **kwargs}


DUPLICATES = {
    "query_ids": torch.tensor([4, 4, 5, -6, 7]),
    "key_ids": torch.tensor([0, 7, 4, 4, 5, -6, 7, 4, 1]),
}


@pytest.mark.parametrize("multi_positive", COMBINATIONS)
@pytest.mark.parametrize("num_sets", [1, 2, 3])
@pytest.mark.parametrize("ids", [{}, DUPLICATES], ids=["all", "duplicates"])
@pytest.mark.parametrize("num_hard", [0, 3])
def test_rows_are_those_of_the_loop(multi_positive, num_sets, ids, num_hard):
    query, keys, options = random_case(num_sets=num_sets, multi_positive=multi_positive, **ids)
    if num_hard:
        options["hard_negatives"] = torch.randn(num_hard, 6, dtype=torch.float64)
        options["hard_negative_weight"] = 1.7
    rows = info_nce(query, keys, reduction="none", **options)
    torch.testing.assert_close(rows, loop(query, keys, **options), rtol=1e-12, atol=1e-13)
    weight = torch.rand(5, dtype=torch.float64)
    torch.testing.assert_close(info_nce(query, keys, **options), rows.mean())
    torch.testing.assert_close(info_nce(query, keys, reduction="sum", **options), rows.sum())
    weighted = (rows * weight).sum()
    torch.testing.assert_close(info_nce(query, keys, row_weight=weight, reduction="sum", **options), weighted)
    torch.testing.assert_close(info_nce(query, keys, row_weight=weight, **options), weighted / weight.sum())
    torch.testing.assert_close(info_nce(query, keys, row_weight=weight, reduction="none", **options), rows * weight)


@pytest.mark.parametrize("multi_positive", COMBINATIONS)
@pytest.mark.parametrize("has_ids", [False, True])
def test_a_rows_own_hard_negative_has_a_weight_of_its_own(multi_positive, has_ids):
    query, keys, options = random_case(multi_positive=multi_positive, **(DUPLICATES if has_ids else {}))
    options["hard_negatives"] = torch.randn(9, 6, dtype=torch.float64)
    options.update(hard_negative_weight=0.8, own_hard_negative_weight=2.5)
    if has_ids:
        options["hard_negative_ids"] = torch.tensor([4, 11, 12, 4, 13, -6, 14, 15, 16])
    rows = info_nce(query, keys, reduction="none", **options)
    torch.testing.assert_close(rows, loop(query, keys, **options), rtol=1e-12, atol=1e-13)
    inputs = [value.requires_grad_() for value in (query, keys, options.pop("hard_negatives"))]
    assert torch.autograd.gradcheck(lambda q, k, h: info_nce(q, k, hard_negatives=h, **options), inputs)


def test_one_set_may_come_without_its_axis_and_is_cross_entropy():
    query, keys, options = random_case(num_sets=1, num_keys=5, row_offset=0)
    expected = cross_entropy(normalize(query) @ normalize(keys[0]).T / 0.3, torch.arange(5))
    torch.testing.assert_close(info_nce(query, keys[0], **options), expected)


@pytest.mark.parametrize("multi_positive", COMBINATIONS)
@pytest.mark.parametrize("ids", [{}, DUPLICATES], ids=["all", "duplicates"])
def test_gradcheck(multi_positive, ids):
    query, keys, options = random_case(multi_positive=multi_positive, **ids)
    hard = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(5, dtype=torch.float64)
    query.requires_grad_()
    keys.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, k, h: info_nce(q, k, hard_negatives=h, hard_negative_weight=0.5, row_weight=weight, **options),
        (query, keys, hard),
    )


@pytest.mark.parametrize("multi_positive", COMBINATIONS)
def test_rows_without_negatives_cost_nothing(multi_positive):
    ids = {"query_ids": torch.tensor([1, 2, 3]), "key_ids": torch.tensor([1, 1, 1])}
    query = torch.randn(3, 6, requires_grad=True)
    keys = torch.randn(2, 3, 6, requires_grad=True)
    options = {"temperature": 0.05, "multi_positive": multi_positive}
    rows = info_nce(query, keys, reduction="none", **ids, **options)
    assert rows[0] == 0 and (rows[1:] > 0).all()
    grad_query, grad_keys = torch.autograd.grad(rows.sum(), (query, keys))
    assert (grad_query[0] == 0).all() and torch.isfinite(grad_query).all() and torch.isfinite(grad_keys).all()
    # A batch of one has no negative either.
    single = info_nce(query[:1], keys[:, :1], **options)
    assert single == 0
    assert all((g == 0).all() for g in torch.autograd.grad(single, (query, keys)))


@pytest.mark.parametrize("multi_positive", COMBINATIONS)
def test_zero_vectors_have_cosine_zero_and_gradient_zero(multi_positive):
    query, keys = torch.zeros(3, 6, requires_grad=True), torch.zeros(2, 3, 6, requires_grad=True)
    loss = info_nce(query, keys, temperature=0.05, multi_positive=multi_positive)
    # All logits are 0: 2 positives and 4 negatives, of which each set has 2 beside its own positive.
    expected = {"sum": math.log(6 / 2), "mean": math.log(6), "separate": math.log(3)}[multi_positive]
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert all((g == 0).all() for g in torch.autograd.grad(loss, (query, keys)))
    mixed = torch.randn(3, 6).index_fill(0, torch.tensor([1]), 0.0).requires_grad_()
    (slope,) = torch.autograd.grad(info_nce(mixed, torch.randn(2, 3, 6), temperature=0.05), mixed)
    assert torch.isfinite(slope).all() and (slope[1] == 0).all() and (slope[0] != 0).all()


def gradients(loss_of, query, keys, dtype):
    query, keys = query.to(dtype).requires_grad_(), keys.to(dtype).requires_grad_()
    return [g.double() for g in torch.autograd.grad(loss_of(query, keys), (query, keys))]


@pytest.mark.parametrize("gap", [5.0, 17.0, 20.0, 30.0])
def test_float32_gradients_hold_at_large_logit_gaps(gap):
    # cos 0.9 to the own key and near 0 to the others, at the temperature that puts `gap` between the logits.
    size, temperature = 16, 0.9 / gap
    query = torch.eye(4, size, dtype=torch.float64)
    keys = 0.9 * query + math.sqrt(1 - 0.81) * torch.eye(size, dtype=torch.float64)[8:12]

    def ours(query, keys):
        return info_nce(query, keys, temperature=temperature)

    def usual(query, keys):
        return cross_entropy(normalize(query) @ normalize(keys).T / temperature, torch.arange(4))

    exact = gradients(ours, query, keys, torch.float64)
    for value, expected in zip(gradients(ours, query, keys, torch.float32), exact, strict=True):
        # A logit rounds to about gap · 2^-24, and the probabilities by as much.
        assert (value - expected).norm() < 4 * gap * 2**-23 * expected.norm()
    if gap < 20:
        for value, expected in zip(gradients(usual, query, keys, torch.float64), exact, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    if gap >= 20:
        # What is avoided: nothing is left of the positive key's gradient.
        lost = gradients(usual, query, keys, torch.float32)[1]
        assert (lost - exact[1]).norm() > 0.5 * exact[1].norm()


def test_scale_of_the_vectors_does_not_matter():
    query, keys, options = random_case()
    query, keys = query.float(), keys.float()
    loss = info_nce(query, keys, **options)
    for scale in (2.0**-100, 2.0**100):
        assert torch.equal(info_nce(query * scale, keys * scale, **options), loss)


def test_half_precision_is_computed_in_float32():
    query, keys, options = random_case()
    query, keys = query.bfloat16(), keys.bfloat16()
    loss = info_nce(query, keys, **options)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, info_nce(query.float(), keys.float(), **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"multi_positive": "all"}, "multi_positive is 'all'; allowed: sum, mean, separate"),
        ({"reduction": "max"}, "reduction is 'max'; allowed: none, mean, sum"),
        ({"temperature": 0.0}, "temperature is 0.0; allowed: above 0"),
        ({"hard_negative_weight": 0.0}, "hard_negative_weight is 0.0; allowed: above 0"),
        ({"own_hard_negative_weight": 0.0}, "own_hard_negative_weight is 0.0; allowed: above 0"),
        (
            {"own_hard_negative_weight": 2.0, "hard_negatives": torch.zeros(4, 6)},
            "own_hard_negative_weight with 4 hard negatives; allowed: one a key, 9",
        ),
        ({"hard_negative_ids": torch.arange(4)}, "hard_negative_ids need query_ids"),
        ({"query_ids": torch.arange(5)}, "query_ids and key_ids are given together or not at all"),
        ({"row_offset": 5}, "row_offset 5 with 5 rows; allowed: at most 9 together"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_it_cannot_mean_is_named(change, message):
    query, keys, options = random_case()
    with pytest.raises(ValueError, match=message):
        info_nce(query, keys, **{**options, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(5)}, r"info_nce: query is \(5,\); allowed: \(N, D\)"),
        ({"keys": torch.zeros(2, 9, 5)}, r"info_nce: keys is \(2, 9, 5\); allowed: \(S, M, 6\) or \(M, 6\)"),
        ({"hard_negatives": torch.zeros(2, 5)}, r"info_nce: hard_negatives is \(2, 5\); allowed: \(H, 6\)"),
        ({"keys": torch.zeros(2, 9, 6).long()}, "info_nce: keys is torch.int64; allowed: a floating-point dtype"),
        ({"query_ids": torch.zeros(5)}, "info_nce: query_ids is torch.float32; allowed: an integer dtype"),
        ({"key_ids": torch.zeros(5).long()}, r"info_nce: key_ids is \(5,\); allowed: \(9,\)"),
        ({"row_weight": torch.zeros(9)}, r"info_nce: row_weight is \(9,\); allowed: \(5,\)"),
        ({"keys": torch.zeros(9, 6, device="meta")}, "info_nce: keys is on meta; allowed: cpu, as query"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message):
    query, keys, options = random_case()
    options = {"query": query, "keys": keys, **DUPLICATES, **options, **change}
    with pytest.raises(ValueError, match=message):
        info_nce(**options)
