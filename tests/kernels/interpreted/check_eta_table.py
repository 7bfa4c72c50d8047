"""Triton's reads and writes of the eta table in its interpreter."""

import pytest
import torch

from fastadv_kernels.eta_table import eta_table_sums, eta_table_write
from fastadv_kernels.eta_table_triton import launch_read, launch_write

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "num_tokens"), [(1, 5), (7, 0), (300, 41), (1000, 1)])
def test_reads_are_the_rows(dtype, size, num_tokens):
    table = torch.randn(13, size).to(dtype)
    words = torch.randint(0, 13, (num_tokens,))
    assert torch.equal(launch_read(table, words), table[words])
    assert torch.equal(launch_read(table, words.int()), table[words])
    strided = torch.randn(13, 2 * size).to(dtype)[:, ::2]
    assert torch.equal(launch_read(strided, words), strided[words])


def test_an_id_outside_the_table_reads_nan():
    rows = launch_read(torch.zeros(13, 5), torch.tensor([3, -1, 13, 12]))
    assert torch.isnan(rows).all(dim=1).tolist() == [False, True, True, False]


def sorted_words(words):
    ordered, order = torch.sort(words, stable=True)
    ids, counts = torch.unique_consecutive(ordered, return_counts=True)
    return ids, order, torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


@pytest.mark.parametrize(
    ("dtype", "size"), [(DTYPES[0], 1), (DTYPES[0], 128), (DTYPES[0], 300), (DTYPES[1], 7), (DTYPES[2], 129)]
)
def test_writes_are_the_references_to_the_bit_and_other_words_keep_theirs(dtype, size):
    # A word of many positions, more than are unrolled; one of exactly as many; some of one.
    words = torch.cat([torch.full((35,), 4), torch.full((16,), 9), torch.tensor([2, 7, 12])])[torch.randperm(54)]
    eta = torch.randn(54, size).to(dtype)
    table = torch.randn(13, size).to(dtype)
    expected = table.clone()
    eta_table_write(expected, *eta_table_sums(eta, words))
    launch_write(table, *sorted_words(words), eta)
    assert torch.equal(table, expected)
    both = torch.zeros(13, 2 * size, dtype=dtype)
    strided = both[:, ::2]
    launch_write(strided, *sorted_words(words), eta)
    assert torch.equal(strided[4], expected[4]) and (both[:, 1::2] == 0).all()


def test_an_id_outside_the_table_writes_nowhere():
    table, eta = torch.zeros(13, 5), torch.ones(3, 5)
    launch_write(table[2:9], torch.tensor([-1, 0, 7]), torch.arange(3), torch.arange(4), eta)
    assert table.sum(dim=1).tolist() == [0, 0, 5] + [0] * 10


def test_nothing_to_write_writes_nothing():
    table = torch.randn(13, 5)
    before = table.clone()
    none = torch.zeros(0, dtype=torch.int64)
    launch_write(table, none, none, torch.zeros(1, dtype=torch.int64), torch.zeros(0, 5))
    assert torch.equal(table, before)


def test_a_float32_eta_is_written_to_a_half_precision_table():
    words = torch.tensor([3, 3, 3, 1])
    eta = torch.randn(4, 9)
    table = torch.zeros(5, 9, dtype=torch.bfloat16)
    launch_write(table, *sorted_words(words), eta)
    mean = ((eta[0] + eta[1]) + eta[2]) / 3
    assert torch.equal(table[3], mean.bfloat16())
