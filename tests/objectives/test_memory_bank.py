"""The banks of CARL: what is drawn, what is written, and that shards of several ranks are one bank."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.objectives.classes.memory_bank import MemoryBanks
from fastadv.objectives.ranks import ALONE, Ranks

LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 4])


def vectors_of(num_rows, seed=0, size=3):
    return torch.randn(num_rows, 2, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def banks_of(written=(), momentum=0.5, is_normalized=True, ranks=ALONE, labels=LABELS):
    banks = MemoryBanks(labels, momentum, is_normalized, ranks)
    if len(written):
        banks.write(torch.tensor(written), vectors_of(len(written)))
    return banks


def drawn(banks, labels, count=50, sharing="per_batch", seed=0):
    return banks.draw(torch.tensor(labels), count, sharing, torch.Generator().manual_seed(seed))


class RanksOfOneProcess(Ranks):
    """One of several ranks, whose parts are given by hand."""

    def __init__(self, rank, num_ranks):
        self.rank, self.num_ranks, self.parts = rank, num_ranks, None

    def stack(self, values):
        return torch.stack(self.parts)


@pytest.mark.parametrize("sharing", ["per_batch", "per_row"])
@given(
    written=st.sets(st.integers(0, 9), max_size=10),
    batch=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    count=st.sampled_from([1, 3, 40]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_negatives_are_written_rows_of_other_classes(sharing, written, batch, count, seed):
    """Also where the batch has one class or one row, and where more are drawn than there are; class 5 has no row."""
    found = drawn(banks_of(sorted(written)), batch, count, sharing, seed)
    rows = [row for entry in found for row in entry.rows.tolist()]
    served = [i for i, label in enumerate(batch) if any(LABELS[row] != label for row in written)]
    assert sorted(rows) == served
    for entry in found:
        assert len({batch[row] for row in entry.rows.tolist()}) == 1
        assert len(entry.bank_rows) == count
        assert set(entry.bank_rows.tolist()) <= written
        assert (LABELS[entry.bank_rows] != batch[entry.rows[0]]).all()
    if sharing == "per_row":
        assert all(len(entry.rows) == 1 for entry in found)
    else:
        assert len(found) == len({batch[row] for row in served})


def test_rows_of_one_class_share_a_draw_and_rows_by_themselves_do_not():
    banks = banks_of(range(10))
    shared = drawn(banks, [0, 1, 0], sharing="per_batch")
    assert [entry.rows.tolist() for entry in shared] == [[0, 2], [1]]
    own = drawn(banks, [0, 1, 0], sharing="per_row")
    assert not torch.equal(own[0].bank_rows, own[2].bank_rows)


def test_every_allowed_row_is_as_likely_as_another():
    """Class 0 has three of ten rows; the seven others are drawn alike: a chi-square of 6 degrees, 1e-6 at 38."""
    (entry,) = drawn(banks_of(range(10)), [0], count=7000)
    counts = torch.bincount(entry.bank_rows, minlength=10)
    assert counts[[0, 4, 8]].sum() == 0
    others = counts[counts > 0].double()
    assert len(others) == 7 and ((others - 1000) ** 2 / 1000).sum() < 38


def test_new_rows_are_drawn_from_then_on():
    banks = banks_of([0, 1])
    assert set(drawn(banks, [0])[0].bank_rows.tolist()) == {1}
    banks.write(torch.tensor([2]), vectors_of(1))
    assert set(drawn(banks, [0])[0].bank_rows.tolist()) == {1, 2}


def test_momentum_and_length():
    banks, first, second = banks_of(momentum=0.75), vectors_of(1, 1), vectors_of(1, 2)
    banks.write(torch.tensor([4]), first)
    whole = banks.state_dict()["carl_banks"]
    np.testing.assert_allclose(whole[4], first[0] / first[0].norm(dim=-1, keepdim=True), rtol=1e-14)
    banks.write(torch.tensor([4]), second)
    mixed = 0.75 * first[0] / first[0].norm(dim=-1, keepdim=True) + 0.25 * second[0]
    np.testing.assert_allclose(banks.state_dict()["carl_banks"][4], mixed / mixed.norm(dim=-1, keepdim=True), 1e-14)
    assert not banks.state_dict()["carl_banks"][[0, 1, 2, 3, 5, 6, 7, 8, 9]].any()


def test_a_row_twice_in_a_batch_is_written_twice_in_order():
    once, one_by_one, vectors = banks_of(is_normalized=False), banks_of(is_normalized=False), vectors_of(5)
    rows = [3, 1, 3, 3, 1]
    once.write(torch.tensor(rows), vectors)
    for row, vector in zip(rows, vectors):
        one_by_one.write(torch.tensor([row]), vector[None])
    assert torch.equal(once.state_dict()["carl_banks"], one_by_one.state_dict()["carl_banks"])


def test_a_vector_of_zeros_stays_finite():
    banks = banks_of()
    banks.write(torch.tensor([1]), torch.zeros(1, 2, 3))
    assert not banks.state_dict()["carl_banks"].any()


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_shards_are_one_bank(num_ranks):
    """Written alike, each keeps its rows; products of all are those of the whole; the whole is what is saved."""
    alone = banks_of(range(8))
    shards = [banks_of(range(8), ranks=RanksOfOneProcess(rank, num_ranks)) for rank in range(num_ranks)]
    queries = vectors_of(4, 5)[:, 0]
    labels = [0, 1, 2, 1]
    found = drawn(alone, labels)
    assert all(torch.equal(entry.bank_rows, found[0].bank_rows) for entry in drawn(shards[-1], labels)[:1])
    for side in (0, 1):
        whole = list(alone.products(queries, side, found))
        parts = [list(banks.products(queries, side, found)) for banks in shards]
        for i, entry in enumerate(found):
            joined = torch.cat([of_rank[i] for of_rank in parts], dim=1)
            order = torch.cat(
                [torch.nonzero(entry.bank_rows % num_ranks == rank).flatten() for rank in range(num_ranks)]
            )
            torch.testing.assert_close(joined, whole[i][:, order], rtol=1e-14, atol=0)
    longest = max(len(banks._shard) for banks in shards)
    assert longest - min(len(banks._shard) for banks in shards) <= 1
    padded = [torch.nn.functional.pad(b._shard, (0, 0, 0, 0, 0, longest - len(b._shard))) for b in shards]
    shards[0]._ranks.parts = padded
    saved = shards[0].state_dict()
    assert torch.equal(saved["carl_banks"], alone.state_dict()["carl_banks"])
    for before, rank in zip(shards, range(num_ranks)):
        loaded = banks_of(ranks=RanksOfOneProcess(rank, num_ranks))
        loaded.load_state_dict(saved)
        assert torch.equal(loaded._shard, before._shard) and torch.equal(loaded.is_written, before.is_written)


def test_saved_banks_move_to_where_the_vectors_are():
    """A checkpoint is read to the host, and a product of the host's numbers and a GPU's is an error there."""
    written, loaded = banks_of(range(8)), banks_of()
    (negatives,) = drawn(written, [0], count=4)
    loaded.load_state_dict(written.state_dict())
    elsewhere = torch.zeros(1, 3, dtype=torch.float64, device="meta")
    (found,) = loaded.products(elsewhere, 0, [negatives])
    assert found.shape == (1, 4)
    assert loaded.state_dict()["carl_banks"].device == elsewhere.device


def test_banks_before_the_first_write_are_saved_and_read():
    fresh, banks = banks_of(), banks_of([1, 2])
    banks.load_state_dict(fresh.state_dict())
    assert not banks.is_written.any() and drawn(banks, [0]) == []
    banks.write(torch.tensor([3]), vectors_of(1))


def test_banks_of_other_data_are_refused():
    with pytest.raises(ValueError, match="saved of 10 rows, the training data has 6"):
        banks_of(labels=LABELS[:6]).load_state_dict(banks_of([1]).state_dict())
