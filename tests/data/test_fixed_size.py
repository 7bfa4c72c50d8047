"""A batch filled up: its own sentences first and untouched, its shapes of a few."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastadv.data.fixed_size import fill_up, num_fillers
from fastadv.data.packing import PackedBatch


def batch_of(lengths, offset=0):
    return PackedBatch.from_token_lists(
        [[7, *range(20, 19 + n)] for n in lengths],
        [[True] + [False] * (n - 1) for n in lengths],
        position_offset=offset,
    )


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    max_length=st.integers(12, 40),
    quantum=st.sampled_from([1, 7, 64, 128, 256]),
)
def test_any_remainder_fits_into_the_same_number_of_fillers(lengths, max_length, quantum):
    batch = batch_of(lengths)
    filled = fill_up(batch, max_length, quantum)
    k = num_fillers(max_length, quantum)
    assert filled.batch.num_sentences == len(lengths) + k
    assert filled.batch.num_tokens % quantum == 0
    assert 0 < filled.batch.num_tokens - batch.num_tokens < quantum + k
    assert filled.batch.max_seqlen == max_length
    own, fillers = filled.batch.lengths[: len(lengths)], filled.batch.lengths[len(lengths) :]
    assert own.tolist() == lengths
    assert fillers.min() >= 1 and fillers.max() <= max_length
    # Were the grid full, attention would need no mask: another program.
    assert filled.batch.num_tokens < filled.batch.num_sentences * max_length
    assert torch.equal(filled.batch.cu_seqlens[-1:], torch.tensor([filled.batch.num_tokens], dtype=torch.int32))


@pytest.mark.parametrize("offset", [0, 2])
def test_own_tokens_come_first_and_fillers_have_the_positions_of_sentences(offset):
    batch = batch_of([3, 5, 1], offset)
    filled = fill_up(batch, 10, 64)
    for name in ("input_ids", "token_type_ids", "position_ids", "is_special", "token_sentence"):
        assert torch.equal(filled.cut(getattr(filled.batch, name)), getattr(batch, name)), name
    assert torch.equal(filled.cut(filled.batch.sentence_ids), batch.sentence_ids)
    starts = filled.batch.cu_seqlens[:-1].long()[filled.batch.token_sentence]
    assert torch.equal(filled.batch.position_ids, torch.arange(filled.batch.num_tokens) - starts + offset)
    assert (filled.batch.input_ids[9:] == 7).all() and filled.batch.is_special[9:].all()


def test_rows_are_padded_and_cut_by_tokens_and_by_sentences():
    filled = fill_up(batch_of([3, 5]), 10, 16)
    rows, sizes = torch.randn(8, 4), torch.rand(2)
    assert torch.equal(filled.cut(filled.pad(rows)), rows)
    assert filled.pad(rows).shape == (filled.batch.num_tokens, 4) and (filled.pad(rows)[8:] == 0).all()
    assert torch.equal(filled.cut(filled.pad(sizes, 1.0)), sizes)
    assert (filled.pad(sizes, 1.0)[2:] == 1).all()


def test_too_long_a_sentence_is_refused():
    with pytest.raises(ValueError, match="max_length is 4; .*the longest sentence, 5"):
        fill_up(batch_of([3, 5]), 4)
    with pytest.raises(ValueError, match="at least 2"):
        fill_up(batch_of([1]), 1)


@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last"])
@pytest.mark.parametrize("perturb_at", ["embedding", "word"])
@pytest.mark.parametrize("attention", ["matmul", "sdpa"])
def test_own_vectors_stay_and_fillers_have_no_gradient(pooling, perturb_at, attention, tiny_encoder, sentences):
    encoder = tiny_encoder(pooling=pooling, perturb_at=perturb_at, attention=attention).eval()
    batch = encoder.pack(sentences)
    filled = fill_up(batch, 32)
    x = encoder.embed(batch).detach().requires_grad_()
    padded = filled.pad(x.detach()).requires_grad_()
    h, of_filled = encoder.encode(x, batch), filled.cut(encoder.encode(padded, filled.batch))
    torch.testing.assert_close(of_filled, h, rtol=1e-12, atol=1e-13)
    upstream = torch.randn_like(h)
    (grad,) = torch.autograd.grad(h, x, upstream)
    (grad_filled,) = torch.autograd.grad(of_filled, padded, upstream)
    torch.testing.assert_close(filled.cut(grad_filled), grad, rtol=1e-12, atol=1e-13)
    assert (grad_filled[filled.num_tokens :] == 0).all()
