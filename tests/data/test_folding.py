"""Batches folded into one tensor come back as they were."""

import pickle
from dataclasses import fields, replace

import torch

from fastadv.data.folding import FoldedCollate, folded, unfolded
from fastadv.data.packing import PackedBatch

TENSORS = {
    "bools": torch.tensor([True, False, True]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "integers": torch.arange(6, dtype=torch.int32).reshape(2, 3),
    "of another's memory": torch.arange(12).reshape(3, 4).T[1:, ::2],
    "halves": torch.tensor([0.5, float("inf")], dtype=torch.bfloat16),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "nothing": torch.empty(0, 3),
}


def test_tensors_come_back_as_they_were():
    given = {**TENSORS, "twice": [TENSORS["bools"], None, ("text", 7)]}
    (back,) = unfolded(iter([folded(given)]))
    assert back.keys() == given.keys() and back["twice"][1:] == [None, ("text", 7)]
    for name, tensor in {**TENSORS, "twice": given["twice"][0]}.items():
        found = back["twice"][0] if name == "twice" else back[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape) and torch.equal(found, tensor), name
        assert not found.numel() or found.data_ptr() % found.element_size() == 0
    # Each has memory of its own.
    back["bytes"].zero_()
    assert torch.equal(back["integers"], TENSORS["integers"])


def packed(num_sentences):
    tokens = [list(range(n + 1)) for n in range(num_sentences)]
    return PackedBatch.from_token_lists(tokens, [[False] * len(ids) for ids in tokens], labels=[1] * num_sentences)


def test_a_batch_comes_back_with_all_that_is_given_with_it():
    copies = [replace(packed(3), is_present=torch.tensor([True, False, True])) for _ in range(2)]
    batch = replace(packed(3), positive=packed(3), variants={"fickle": packed(3)}, proposals={"text": copies})
    collate = pickle.loads(pickle.dumps(FoldedCollate(given_batch)))
    (back,) = unfolded(iter([collate([batch])]))
    for own, other in [(batch, back), (batch.positive, back.positive), (copies[1], back.proposals["text"][1])]:
        for field in fields(PackedBatch):
            value, found = getattr(own, field.name), getattr(other, field.name)
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, found), field.name
    assert back.host_lengths == batch.host_lengths and list(back.variants) == ["fickle"]


def given_batch(rows):
    return rows[0]
