"""Tokens are drawn from the softmax, independently, and what has no probability never is."""

import pytest
import torch

from fastadv.objectives.sentences.rtd_sampling import draw_columns, draw_tokens


def pearson(counts, probabilities):
    """Pearson's statistic of ``counts`` less its mean, in standard deviations (both exact for a multinomial)."""
    possible = probabilities > 0
    assert not counts[~possible].any()
    p, num_draws, num_kinds = probabilities[possible], counts.sum(), int(possible.sum())
    statistic = ((counts[possible] - num_draws * p) ** 2 / (num_draws * p)).sum()
    variance = 2 * (num_kinds - 1) + ((1 / p).sum() - num_kinds**2 - 2 * num_kinds + 2) / num_draws
    return float((statistic - (num_kinds - 1)) / variance.sqrt())


# Blocks of one token, whole blocks, a tail, one block, and one that is longer than the vocabulary.
@pytest.mark.parametrize("block", [1, 5, 7, 40, 64])
def test_frequencies_are_the_softmax(block):
    logits = 2 * torch.randn(40, dtype=torch.float64)
    logits[[0, 17, 39]] = -torch.inf
    probabilities = logits.softmax(0)
    drawn = draw_tokens((logits + 300).repeat(100_000, 1), block)
    counts = torch.bincount(drawn, minlength=40).double()
    # 100,000 draws of a skewed statistic: its tail beyond five standard deviations is below 1e-4.
    assert pearson(counts, probabilities) < 5


def test_frequencies_are_the_softmax_over_a_large_vocabulary_in_float32():
    logits = torch.randn(30_522)
    probabilities = logits.double().softmax(0)
    counts = torch.zeros(30_522, dtype=torch.float64)
    for _ in range(200):
        counts += torch.bincount(draw_tokens(logits.repeat(200, 1)), minlength=30_522)
    # About one draw a token, so the bound is on a hundred groups of tokens that lie apart.
    groups = torch.randperm(30_522) % 100
    folded = [torch.zeros(100, dtype=torch.float64).index_add(0, groups, of) for of in (counts, probabilities)]
    assert pearson(*folded) < 5


def test_rows_and_calls_are_independent():
    logits = torch.randn(6, dtype=torch.float64)
    drawn = torch.cat([draw_tokens(logits.repeat(50_000, 1), 2) for _ in range(2)]).view(2, 25_000, 2)
    single = logits.softmax(0)
    pairs = torch.outer(single, single).flatten()
    for first, second in ((drawn[0, :, 0], drawn[0, :, 1]), (drawn[0, :, 0], drawn[1, :, 0])):
        counts = torch.bincount(first * 6 + second, minlength=36).double()
        assert pearson(counts, pairs) < 5


def test_each_row_has_its_own_probabilities():
    logits = torch.full((50, 300), -torch.inf)
    only = torch.randint(300, (50,))
    logits[torch.arange(50), only] = torch.randn(50) * 1e4
    assert torch.equal(draw_tokens(logits, 16), only)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_draw_choose_a_column_of_some_weight(monkeypatch, uniform):
    weights = torch.tensor([[0, 0, 3e-9, 5, 0], [0.1, 0.2, 0.3, 1e-30, 0], [0, 0, 0, 0, 7]])
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.full(shape[0], uniform, dtype=torch.float64))
    chosen = draw_columns(weights)
    assert (weights.gather(1, chosen) > 0).all()
    assert chosen[:, 0].tolist()[0] == (2 if uniform == 0 else 3) and chosen[2] == 4


def test_a_seed_repeats_the_draw():
    logits, found = torch.randn(9, 1000), []
    for _ in range(2):
        torch.manual_seed(4)
        found.append(draw_tokens(logits.clone()))
    assert torch.equal(*found)
