"""The table of token perturbations: sums by word, in one order on every run."""

import pytest
import torch

from fastadv_kernels import eta_table_read, eta_table_sums, eta_table_write, eta_table_write_mean

WORDS = torch.tensor([7, 2, 7, 3, 2, 7, 0, 11, 2, 7])


def test_sums_are_those_of_a_loop():
    eta = torch.randn(10, 5, dtype=torch.float64)
    ids, sums, counts = eta_table_sums(eta, WORDS)
    assert ids.tolist() == [0, 2, 3, 7, 11]
    assert counts.tolist() == [1, 3, 1, 4, 1] and counts.dtype == torch.int64
    for row, word in enumerate(ids.tolist()):
        expected = torch.zeros(5, dtype=torch.float64)
        for position in range(10):
            if WORDS[position] == word:
                expected += eta[position]
        # The same additions in the same order: not a bit apart.
        assert torch.equal(sums[row], expected)


def test_float32_sums_repeat_to_the_bit_and_half_precision_sums_in_float32():
    words = torch.randint(0, 50, (4000,))
    eta = torch.randn(4000, 33)
    first = eta_table_sums(eta, words)
    assert first[1].dtype == torch.float32
    assert torch.equal(first[1], eta_table_sums(eta, words)[1])
    exact = torch.zeros(50, 33, dtype=torch.float64).index_add_(0, words, eta.double())
    # 80 additions of values near 1, each rounding half a unit of a sum below 64.
    assert (first[1].double() - exact).abs().max() < 80 * 64 * 2**-25
    half = eta.bfloat16()
    assert torch.equal(eta_table_sums(half, words)[1], eta_table_sums(half.float(), words)[1])


def test_written_words_are_means_and_others_keep_their_bits():
    table = torch.randn(13, 5)
    before = table.clone()
    eta = torch.randn(10, 5)
    assert torch.equal(eta_table_read(table, WORDS), before[WORDS])
    eta_table_write(table, *eta_table_sums(eta, WORDS))
    torch.testing.assert_close(table[7], eta[WORDS == 7].mean(0), rtol=1e-6, atol=1e-7)
    assert torch.equal(table[3], eta[3])
    others = [w for w in range(13) if w not in WORDS.tolist()]
    assert torch.equal(table[others], before[others])


def test_reading_copies():
    table = torch.zeros(3, 2)
    eta_table_read(table, torch.tensor([1, 1])).add_(1)
    assert (table == 0).all()


def test_gradcheck():
    table = torch.randn(13, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: eta_table_read(t, WORDS), table)
    eta = torch.randn(10, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: eta_table_sums(e, WORDS)[1], eta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mean_is_sums_and_write_to_the_bit(dtype):
    words = torch.randint(0, 50, (400,))
    eta, table = torch.randn(400, 33).to(dtype), torch.randn(60, 33).to(dtype)
    expected = table.clone()
    eta_table_write(expected, *eta_table_sums(eta, words))
    eta_table_write_mean(table, words, eta)
    assert torch.equal(table, expected)
    eta_table_write_mean(table, words[:0], eta[:0])
    assert torch.equal(table, expected)


def test_arguments_that_do_not_fit_are_named():
    table, eta = torch.zeros(13, 5), torch.zeros(10, 5)
    with pytest.raises(ValueError, match=r"eta_table_read: token_ids is torch.int32 \(10,\); allowed: int64 \(T,\)"):
        eta_table_read(table, WORDS.int())
    with pytest.raises(ValueError, match=r"eta_table_sums: token_ids is torch.int64 \(9,\); allowed: int64 \(10,\)"):
        eta_table_sums(eta, WORDS[1:])
    with pytest.raises(ValueError, match="eta_table_write_mean: table and eta are .*; allowed: one width"):
        eta_table_write_mean(table, WORDS, eta[:, 1:])
    with pytest.raises(ValueError, match="eta_table_write_mean: token_ids is on meta; allowed: cpu"):
        eta_table_write_mean(table, WORDS.to("meta"), eta)
    with pytest.raises(IndexError):
        eta_table_read(table, WORDS + 10)
