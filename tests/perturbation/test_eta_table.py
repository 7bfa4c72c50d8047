"""The table V: read once, written once, the mean over positions, everything else untouched."""

import pytest
import torch

from fastadv.data.packing import PackedBatch
from fastadv.perturbation import EtaTable


def packed(*token_lists):
    return PackedBatch.from_token_lists(token_lists, [[False] * len(t) for t in token_lists])


def test_starts_within_sigma_over_root_e():
    table = EtaTable(50, 16, sigma=0.2).table
    assert table.abs().max() <= 0.2 / 4
    assert table.std() > 0.02
    assert not EtaTable(50, 16, sigma=0.0).table.any()


def test_commit_writes_the_mean_over_all_positions_of_a_word_and_no_other_row():
    table = EtaTable(10, 4, sigma=0.1, dtype=torch.float64)
    before = table.table.clone()
    first, second = packed([1, 2, 1], [3, 1]), packed([2, 2])
    eta_first, eta_second = torch.randn(5, 4).double(), torch.randn(2, 4).double()
    table.accumulate(eta_first, first)
    table.accumulate(eta_second, second)
    assert torch.equal(table.read(first), before[first.input_ids])
    table.commit()
    expected = before.clone()
    expected[1] = eta_first[[0, 2, 4]].mean(0)
    expected[2] = torch.stack([eta_first[1], eta_second[0], eta_second[1]]).mean(0)
    expected[3] = eta_first[3]
    torch.testing.assert_close(table.table, expected, rtol=1e-14, atol=0)
    untouched = [0, 4, 5, 6, 7, 8, 9]
    assert torch.equal(table.table[untouched], before[untouched])


def test_a_second_commit_starts_from_nothing():
    table = EtaTable(5, 2, sigma=0.0)
    batch = packed([1])
    table.accumulate(torch.ones(1, 2), batch)
    table.commit()
    table.accumulate(torch.full((1, 2), 3.0), batch)
    table.commit()
    assert table.table[1].tolist() == [3.0, 3.0]


def test_tokens_that_are_not_active_write_nothing():
    table = EtaTable(5, 2, sigma=0.1)
    before = table.table.clone()
    table.accumulate(torch.ones(3, 2), packed([1, 2, 2]), active=torch.tensor([False, True, False]))
    table.commit()
    assert torch.equal(table.table[1], before[1])
    assert table.table[2].tolist() == [1.0, 1.0]


def test_dead_share_counts_rows_under_a_hundredth_of_the_radius():
    table = EtaTable(4, 2, sigma=0.0)
    table.accumulate(torch.tensor([[0.5, 0.0], [0.004, 0.0]]), packed([0, 1]))
    table.commit()
    assert table.dead_share(torch.tensor(0.5)) == 0.75
    assert table.dead_share(torch.tensor(0.1)) == 0.5


def test_state_survives_and_another_shape_is_refused():
    table, other = EtaTable(4, 2, sigma=0.1), EtaTable(4, 2, sigma=0.1)
    other.load_state_dict(table.state_dict())
    assert torch.equal(other.table, table.table)
    with pytest.raises(ValueError, match=r"eta_table: saved with shape \(4, 2\), this encoder needs \(5, 2\)"):
        EtaTable(5, 2, sigma=0.1).load_state_dict(table.state_dict())
