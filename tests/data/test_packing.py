"""PackedBatch: sentences laid end to end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.packing import PackedBatch

token_lists = st.lists(st.lists(st.integers(0, 30_000), min_size=1, max_size=9), min_size=1, max_size=8)


def pack(lists, **options):
    special = [[i in (0, len(tokens) - 1) for i in range(len(tokens))] for tokens in lists]
    return PackedBatch.from_token_lists(lists, special, **options)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(token_lists, st.integers(0, 3))
def test_packing_is_concatenation(lists, offset):
    batch = pack(lists, position_offset=offset)
    lengths = [len(tokens) for tokens in lists]
    assert (batch.num_sentences, batch.num_tokens) == (len(lists), sum(lengths))
    assert batch.max_seqlen == max(lengths) and isinstance(batch.max_seqlen, int)
    assert batch.lengths.tolist() == lengths and batch.lengths.dtype == torch.int64
    assert batch.cu_seqlens.dtype == torch.int32 and batch.cu_seqlens[0] == 0
    bounds = batch.cu_seqlens.tolist()
    for b, (start, end) in enumerate(zip(bounds, bounds[1:])):
        assert batch.input_ids[start:end].tolist() == lists[b]
        assert batch.position_ids[start:end].tolist() == list(range(offset, offset + lengths[b]))
        assert batch.token_sentence[start:end].tolist() == [b] * lengths[b]
        assert batch.is_special[start] and batch.is_special[end - 1]
        assert not batch.is_special[start + 1 : end - 1].any()
    for name in ("input_ids", "token_type_ids", "position_ids", "sentence_ids", "token_sentence"):
        assert getattr(batch, name).dtype == torch.int64
    assert batch.is_special.dtype == torch.bool
    assert not batch.token_type_ids.any()


def test_sentences_without_ids_never_count_as_equal():
    assert pack([[1], [1], [1]]).sentence_ids.unique().numel() == 3


def test_ids_of_64_bits_and_labels_are_kept():
    ids = [-(2**63), 2**63 - 1]
    batch = pack([[1, 2], [3]], sentence_ids=ids, labels=[1, 0], token_type_lists=[[0, 1], [1]])
    assert batch.sentence_ids.tolist() == ids
    assert batch.labels.tolist() == [1, 0]
    assert batch.token_type_ids.tolist() == [0, 1, 1]


def test_to_moves_everything_and_loses_nothing():
    batch = pack([[1, 2], [3]], labels=[1, 0])
    moved = batch.to("meta")
    for name, value in vars(batch).items():
        if isinstance(value, torch.Tensor):
            assert getattr(moved, name).device.type == "meta", name
            assert getattr(moved, name).shape == value.shape, name
    assert moved.max_seqlen == batch.max_seqlen
    assert pack([[1]]).to("cpu").labels is None


@pytest.mark.parametrize("lists, special", [([], []), ([[]], [[]]), ([[1], []], [[True], []]), ([[1, 2]], [[True]])])
def test_batches_that_cannot_be_are_refused(lists, special):
    with pytest.raises(ValueError):
        PackedBatch.from_token_lists(lists, special)
