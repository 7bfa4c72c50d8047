"""Rows added to fill tiles of half-precision products: they lie where no token does and change nothing."""

import pytest
import torch

from fastadv.encoder import packed
from fastadv.encoder.attention.layout import padding_of


@pytest.fixture
def aligns_float64(monkeypatch):
    """The rule for half precision, on float64, where a difference would be a mistake and not rounding."""
    monkeypatch.setattr(packed, "HALF", (torch.float64,))

    def set_tile(rows):
        monkeypatch.setattr(packed, "_HALF_TILE", rows)

    return set_tile


def outcome(encoder, batch, dropout, states_of):
    encoder.zero_grad(set_to_none=True)
    torch.manual_seed(2)
    x = encoder.embed(batch, dropout).detach().requires_grad_()
    states = states_of(encoder, x, batch, dropout)
    (states.cos() * torch.arange(states.numel()).view(states.shape).sin()).sum().backward()
    return [states.detach(), x.grad, *[p.grad for p in encoder.parameters() if p.grad is not None]]


@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last", "tokens"])
@pytest.mark.parametrize("attention", ["matmul", "sdpa"])
@pytest.mark.parametrize("tile", [16, 64])
def test_results_are_those_without_them(aligns_float64, tiny_encoder, sentences, pooling, attention, tile):
    encoder = tiny_encoder(pooling="mean" if pooling == "tokens" else pooling, attention=attention)
    states_of = type(encoder).token_states if pooling == "tokens" else type(encoder).encode
    found = {}
    for rows in (1, tile):
        aligns_float64(rows)
        found[rows] = outcome(encoder, encoder.pack(sentences), False, states_of)
    assert len(found[1]) == len(found[tile]) > 10
    for plain, aligned in zip(found[1], found[tile]):
        assert plain.shape == aligned.shape
        assert (plain - aligned).abs().max() <= 1e-12 * max(1.0, plain.abs().max())


def test_a_multiple_of_rows_is_run_where_there_is_room(tiny_encoder, sentences):
    batch = tiny_encoder().pack(sentences)
    padding = padding_of(batch)
    aligned = padding.aligned(16)
    assert batch.num_tokens % 16 and len(aligned.index) % 16 == 0 and len(aligned.index) - batch.num_tokens < 16
    assert torch.equal(aligned.index[: batch.num_tokens], padding.index)
    assert len(aligned.index.unique()) == len(aligned.index)
    assert padding.aligned(16) is aligned and padding.aligned(1) is padding
    # More than the layout has places for.
    assert padding.aligned(1009) is padding


def test_no_room_in_a_batch_of_equal_lengths(tiny_encoder):
    padding = padding_of(tiny_encoder().pack(["never", "never", "never"]))
    assert padding.mask is None and padding.aligned(16) is padding


def test_what_is_not_finite_stays_in_its_sentence(aligns_float64, tiny_encoder, sentences):
    aligns_float64(16)
    encoder = tiny_encoder(pooling="mean").eval()
    batch = encoder.pack(sentences)
    x = encoder.embed(batch).detach()
    clean = encoder.encode(x, batch)
    x[batch.token_sentence == 2] = torch.nan
    broken = encoder.encode(x, batch)
    assert broken[2].isnan().all()
    others = torch.arange(len(sentences)) != 2
    assert torch.equal(broken[others], clean[others])
