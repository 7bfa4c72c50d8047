"""Several texts with weights: how often a sentence occurs, and that the order stays a function of (seed, epoch)."""

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.batching import BatchOrder
from fastadv.data.mixture import TrainingRows, WeightedSource, describe_sources, weighted_sources
from fastadv.data.records import MappedColumn
from fastadv.data.text import TokenizedText
from fastadv.errors import UserError
from tests.data.test_tokenized_text import tokenize

parts_of = st.lists(st.tuples(st.integers(1, 12), st.floats(0.1, 3.5)), min_size=1, max_size=4)
law = settings(derandomize=True, deadline=None, max_examples=60)


def occurrences(order, epoch):
    return Counter(np.concatenate(order.batches(epoch)).tolist())


@law
@given(parts_of, st.integers(1, 5), st.integers(0, 99), st.integers(0, 3), st.integers(0, 3))
def test_integer_part_always_and_the_rounded_share_once_more(parts, batch_size, seed, buckets, epoch):
    num_sentences = sum(n for n, _ in parts)
    expected = [int(w) * n + round((w - int(w)) * n) for n, w in parts]
    if not sum(expected):
        return
    lengths = [1 + i % 7 for i in range(num_sentences)]
    order = BatchOrder(lengths, batch_size, seed, buckets, parts)
    counts = occurrences(order, epoch)
    first = 0
    for (n, w), total in zip(parts, expected):
        times = [counts[i] for i in range(first, first + n)]
        assert set(times) <= {int(w), int(w) + 1} and sum(times) == total
        first += n
    assert order.sentences_per_epoch == sum(expected)
    assert len(order.batches(epoch)) == order.batches_per_epoch == -(-sum(expected) // batch_size)
    again = BatchOrder(lengths, batch_size, seed, buckets, parts)
    rest = [batch.tolist() for batch in again.iterate(epoch, 1)]
    assert rest == [batch.tolist() for batch in order.batches(epoch)][1:]


def test_the_average_over_epochs_is_the_weight():
    order = BatchOrder([1] * 30, 4, seed=3, parts=[(10, 1.3), (20, 0.25)])
    counts = sum((occurrences(order, epoch) for epoch in range(400)), Counter())
    for first, last, weight in ((0, 10, 1.3), (10, 30, 0.25)):
        share = weight % 1
        # 400 draws of probability `share`, within 5 standard deviations.
        bound = 5 * np.sqrt(share * (1 - share) / 400)
        assert all(abs(counts[i] / 400 - weight) < bound for i in range(first, last))


def test_weights_of_1_leave_the_order_alone():
    lengths = [1 + i % 5 for i in range(40)]
    for buckets in (0, 3):
        plain, weighted = (
            [batch.tolist() for batch in BatchOrder(lengths, 3, 1, buckets, parts).batches(2)]
            for parts in (None, [(15, 1.0), (25, 1)])
        )
        assert plain == weighted


def test_epochs_draw_differently():
    order = BatchOrder([1] * 100, 10, seed=0, parts=[(100, 0.5)])
    assert set(occurrences(order, 0)) != set(occurrences(order, 1))


def test_weights_that_leave_nothing_are_refused():
    with pytest.raises(UserError, match="no sentence in an epoch"):
        BatchOrder([1] * 3, 2, 0, parts=[(3, 0.1)])
    with pytest.raises(ValueError, match="parts"):
        BatchOrder([1] * 3, 2, 0, parts=[(2, 1.0)])


def test_data_train_as_a_list_and_in_words():
    assert weighted_sources("a.txt") == [WeightedSource("a.txt", 1.0)]
    entries = [{"path": "a.txt", "weight": 2.5}, {"path": "b.csv"}]
    assert weighted_sources(entries) == [("a.txt", 2.5), ("b.csv", 1.0)]
    assert describe_sources("a.txt") == "a.txt"
    assert describe_sources(entries) == "a.txt (weight 2.5), b.csv"


def test_joined_texts_are_end_to_end(tmp_path):
    (tmp_path / "a.txt").write_text("one\nfour\n")
    (tmp_path / "b.csv").write_text("id,text\n1,three\n")
    texts = [
        TokenizedText.build(tmp_path / name, tokenize, "bytes", 8, cache_dir=tmp_path / "cache", progress=False)
        for name in ("a.txt", "b.csv")
    ]
    joined = pickle.loads(pickle.dumps(TrainingRows(texts)))
    assert len(joined) == 3 and joined.lengths.tolist() == [5, 6, 7]
    assert [joined[i]["sentence_id"] for i in range(3)] == [row["sentence_id"] for text in texts for row in text]
    for outside in (3, -1):
        with pytest.raises(IndexError):
            joined[outside]
    assert joined.fingerprint == TrainingRows(texts).fingerprint != TrainingRows(texts[::-1]).fingerprint


@law
@given(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=5), st.data())
def test_a_mapped_column_is_an_array_in_pieces(pieces, data):
    column = MappedColumn([np.array(piece, np.int32) for piece in pieces], np.int32)
    whole = [value for piece in pieces for value in piece]
    assert len(column) == len(whole) and column.tolist() == whole and np.asarray(column).dtype == np.int32
    if whole:
        indices = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8)), dtype=np.int32)
        assert column[indices].tolist() == [whole[i] for i in indices]
        assert column[indices].dtype == np.int32
