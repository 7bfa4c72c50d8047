"""Laws of the order of batches: a function of (seed, epoch), each sentence once, resumable anywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.batching import BatchOrder, rank_rows
from fastadv.errors import UserError

orders = st.builds(
    BatchOrder,
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    bucket_batches=st.integers(0, 4),
)
law = settings(derandomize=True, deadline=None, max_examples=80)


def as_lists(batches):
    return [batch.tolist() for batch in batches]


@law
@given(orders, st.integers(0, 5))
def test_every_sentence_once_and_the_incomplete_batch_last(order, epoch):
    batches = order.batches(epoch)
    num_sentences = len(order.lengths)
    assert sorted(np.concatenate(batches).tolist()) == list(range(num_sentences))
    assert len(batches) == order.batches_per_epoch
    assert all(len(batch) == order.batch_size for batch in batches[:-1])
    assert len(batches[-1]) == num_sentences - order.batch_size * (len(batches) - 1)


@law
@given(st.integers(0, 40), st.integers(1, 9))
def test_ranks_share_a_batch_in_order_and_evenly(num_rows, num_ranks):
    shares = [list(range(num_rows))[rank_rows(num_rows, rank, num_ranks)] for rank in range(num_ranks)]
    assert sum(shares, []) == list(range(num_rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("num_sentences, num_left_out", [(16, 0), (17, 1), (19, 3), (20, 0), (23, 0)])
@pytest.mark.parametrize("bucket_batches", [0, 2])
def test_a_last_batch_of_fewer_sentences_than_ranks_is_left_out(num_sentences, num_left_out, bucket_batches):
    order = BatchOrder([5] * num_sentences, 8, 0, bucket_batches, num_ranks=4)
    batches = order.batches(0)
    assert order.num_left_out == num_left_out
    assert len(batches) == order.batches_per_epoch == -(-(num_sentences - num_left_out) // 8)
    assert sum(map(len, batches)) == num_sentences - num_left_out and min(map(len, batches)) >= 4


@pytest.mark.parametrize("num_sentences, batch_size, named", [(9, 3, "train.batch_size is 3"), (3, 8, "3 sentences")])
def test_batches_that_ranks_cannot_share_are_refused(num_sentences, batch_size, named):
    with pytest.raises(UserError, match=named):
        BatchOrder([5] * num_sentences, batch_size, 0, num_ranks=4)


@law
@given(orders, st.integers(0, 5), st.data())
def test_resuming_gives_the_rest(order, epoch, data):
    start = data.draw(st.integers(0, order.batches_per_epoch))
    again = BatchOrder(order.lengths.tolist(), order.batch_size, order.seed, order.bucket_batches)
    assert as_lists(again.iterate(epoch, start)) == as_lists(order.batches(epoch))[start:]


def test_epochs_and_seeds_differ_and_nothing_else_matters():
    lengths = [1] * 100
    orders = {
        (seed, epoch): as_lists(BatchOrder(lengths, 10, seed).batches(epoch)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len({str(order) for order in orders.values()}) == 4
    order = BatchOrder(lengths, 10, 0)
    np.random.seed(7)
    # Asked out of turn, and with other epochs asked before.
    assert as_lists(order.batches(1)) == orders[0, 1] and as_lists(order.batches(0)) == orders[0, 0]


def test_the_order_of_one_seed_is_pinned():
    # A run started with one release of numpy must be resumable with the next.
    assert as_lists(BatchOrder([1] * 7, 3, seed=5).batches(2)) == [[0, 4, 5], [3, 1, 2], [6]]
    assert as_lists(BatchOrder([3, 1, 2, 5, 4, 9, 8], 2, seed=5, bucket_batches=2).batches(2)) == [
        [0, 4],
        [1, 2],
        [3, 5],
        [6],
    ]


def test_buckets_waste_less_padding_and_stay_random():
    lengths = np.random.Generator(np.random.PCG64(0)).integers(1, 60, size=2000)

    def padded(order, epoch):
        return sum(len(batch) * lengths[batch].max() for batch in order.batches(epoch))

    plain, bucketed = BatchOrder(lengths, 20, 0), BatchOrder(lengths, 20, 0, bucket_batches=10)
    # Uniform lengths of mean 30: a plain batch of 20 pads to about 57, one of a sorted window of 200 by 3.
    assert padded(plain, 0) > 1.7 * lengths.sum()
    assert padded(bucketed, 0) < 1.2 * lengths.sum()
    longest = [lengths[batch].max() for batch in bucketed.batches(0)]
    # Shuffled: the correlation of 100 independent pairs has a standard deviation of 0.1.
    assert abs(np.corrcoef(longest[1:], longest[:-1])[0, 1]) < 0.4
    assert as_lists(bucketed.batches(0)) != as_lists(bucketed.batches(1))


def test_buckets_are_stably_sorted_windows_of_the_plain_shuffle():
    lengths = [1 + i % 3 for i in range(1007)]
    plain, bucketed = BatchOrder(lengths, 10, 4), BatchOrder(lengths, 10, 4, bucket_batches=30)
    shuffled = np.concatenate(plain.batches(0)).tolist()
    windows = [sorted(shuffled[i : i + 300], key=lambda j: lengths[j]) for i in range(0, 1007, 300)]
    expected = [window[i : i + 10] for window in windows for i in range(0, len(window), 10)]
    batches = as_lists(bucketed.batches(0))
    assert batches[-1] == expected[-1]
    assert sorted(batches) == sorted(expected) and batches != expected


def test_one_bucket_of_everything_is_sorted():
    lengths = [5, 3, 9, 1, 7, 2, 8]
    batches = BatchOrder(lengths, 2, 0, bucket_batches=100).batches(0)
    assert sorted(sorted(lengths[i] for i in batch) for batch in batches) == [[1, 2], [3, 5], [7, 8], [9]]
    assert batches[-1].tolist() == [2]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"bucket_batches": -2}, "bucket_batches is -2"),
        ({"lengths": []}, "no sentence"),
    ],
)
def test_impossible_orders_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        BatchOrder(**{"lengths": [1, 2], "batch_size": 1, "seed": 0, **options})
