"""Loader processes change neither the batches nor the training's random numbers."""

import errno
import multiprocessing.context
from functools import partial

import numpy as np
import pytest
import torch

from fastadv.data.batching import BatchOrder, make_loader
from fastadv.data.text import TokenizedText, collate
from fastadv.errors import UserError


def tokenize(texts):
    tokens = [[1, *text.encode()[:6], 2] for text in texts]
    return tokens, [[True] + [False] * (len(ids) - 2) + [True] for ids in tokens]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader")
    (folder / "a.txt").write_text("\n".join("abcdefgh"[: 1 + i % 8] + str(i) for i in range(43)))
    return TokenizedText.build(folder / "a.txt", tokenize, "bytes", 8, cache_dir=folder, progress=False)


def load(dataset, num_workers, epoch=1, start_batch=2):
    order = BatchOrder(dataset.lengths, batch_size=5, seed=3, bucket_batches=2)
    return make_loader(dataset, order, epoch, start_batch, num_workers, partial(collate, position_offset=1))


def as_lists(batches):
    return [[batch.input_ids.tolist(), batch.cu_seqlens.tolist(), batch.sentence_ids.tolist()] for batch in batches]


def test_batches_are_the_orders_own(dataset):
    order = BatchOrder(dataset.lengths, batch_size=5, seed=3, bucket_batches=2)
    expected = [[dataset[i]["sentence_id"] for i in batch] for batch in order.batches(1)][2:]
    loaded = list(load(dataset, num_workers=0))
    assert [batch.sentence_ids.tolist() for batch in loaded] == expected
    assert [batch.num_sentences for batch in loaded] == [5] * 6 + [3]
    assert all(batch.position_ids.min() == 1 for batch in loaded)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_change_neither_batches_nor_random_numbers(dataset):
    seen = []
    for num_workers in (0, 1, 4):
        torch.manual_seed(11)
        np.random.seed(11)
        draws, batches = [], []
        for batch in load(dataset, num_workers):
            draws.append(torch.rand(2).tolist())
            batches.append(batch)
        seen.append((as_lists(batches), draws, torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()))
    assert seen[0] == seen[1] == seen[2]


def test_making_a_loader_draws_no_random_number(dataset):
    before = torch.get_rng_state()
    list(load(dataset, num_workers=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_shared_memory_that_cannot_be_written_is_named(dataset, monkeypatch):
    def refuse(context):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(multiprocessing.context.BaseContext, "Lock", refuse)
    with pytest.raises(UserError, match="data.num_workers = 2: .* /dev/shm cannot be written .*; allowed here: 0"):
        load(dataset, num_workers=2)
