"""InfoNCE's Triton kernels in the interpreter, forward and backward, through the public function.

Small tiles make few rows several tiles and slabs, the last of them ragged; one test has the tiles that GPUs get.
"""

import math

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from fastadv_kernels import info_nce, info_nce_triton
from tests.kernels.conftest import assert_info_nce_is_as_exact_as_torch, info_nce_case, loss_and_gradients


@pytest.fixture(scope="module", autouse=True)
def bfloat16_products_are_of_numbers():
    """The interpreter keeps bfloat16 as its bits, and would multiply those."""
    original = InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        def widened(x):
            if not x.dtype.scalar.is_bf16():
                return x.data.astype(np.float32)
            return (x.data.astype(np.uint32) << 16).view(np.float32)

        return TensorHandle(np.matmul(widened(a), widened(b)) + d.data, d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot
    yield
    InterpreterBuilder.create_dot = original


@pytest.fixture
def small_tiles(monkeypatch):
    def options(dtype):
        return {"BLOCK_R": 4, "BLOCK_C": 4, "BLOCK_K": 4, "PRECISION": "ieee", "num_warps": 4, "num_stages": 1}

    monkeypatch.setattr(info_nce_triton, "tile_options", options)
    monkeypatch.setattr(info_nce_triton, "ROW_TILE", 4)
    monkeypatch.setattr(info_nce_triton, "SIZE_TILE", 4)
    monkeypatch.setattr(info_nce_triton, "ROW_BLOCK", 4)
    monkeypatch.setattr(info_nce_triton, "SLAB_ROWS", 4)
    monkeypatch.setattr(info_nce_triton, "SLAB_COLUMNS", 8)
    # Parts of two tiles or three, so that the walk over tiles is one.
    monkeypatch.setattr(info_nce_triton, "ENOUGH_PROGRAMS", 4)


# NaN and infinity are what some tests are about, and numpy speaks of each.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def make_case(num_rows=6, num_keys=11, **options):
    return info_nce_case(num_rows, num_keys, **options)


def assert_as_exact_as_torch(vectors, options, dtype):
    """A unit in the last place of the dtype in which a gradient's terms are multiplied, beside float32's for logits."""
    assert_info_nce_is_as_exact_as_torch(
        vectors, {**options, "reduction": "none"}, dtype, "triton", lambda value: (torch.finfo(value.dtype).eps, 0.0)
    )


@pytest.mark.parametrize(
    ("multi_positive", "num_keys", "num_hard", "has_ids"),
    [("sum", 7, 0, False), ("sum", 7, 7, True), ("mean", 7, 7, True), ("separate", 11, 11, True)],
)
def test_error_is_the_references_at_most_twice(
    small_tiles, poisoned_memory, multi_positive, num_keys, num_hard, has_ids
):
    vectors, options = make_case(num_keys=num_keys, has_ids=has_ids, num_hard=num_hard, multi_positive=multi_positive)
    assert_as_exact_as_torch(vectors, options, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 3), (torch.bfloat16, 4), (torch.float16, 5), (torch.float32, 8)]
)
def test_dtypes_and_sizes(small_tiles, poisoned_memory, dtype, size):
    """A tile of four, one less, one more, and two of them."""
    vectors, options = make_case(num_keys=9, num_sets=1, size=size, num_hard=4, has_ids=True)
    assert_as_exact_as_torch(vectors, options, dtype)


@pytest.mark.parametrize(("dtype", "num_keys", "size"), [(torch.float32, 20, 17), (torch.bfloat16, 129, 20)])
def test_the_tiles_that_gpus_get(poisoned_memory, dtype, num_keys, size):
    vectors, options = make_case(9, num_keys, num_sets=1, size=size)
    assert_as_exact_as_torch(vectors, options, dtype)


@pytest.mark.parametrize(("num_rows", "num_keys"), [(1, 1), (4, 4), (5, 8)])
def test_few_rows_and_whole_tiles(small_tiles, num_rows, num_keys):
    vectors, options = make_case(num_rows, num_keys, temperature=0.01, multi_positive="separate")
    assert_as_exact_as_torch(vectors, options, torch.float32)


def test_scale_of_the_vectors_does_not_matter(small_tiles):
    vectors, options = make_case(5, 6, num_sets=1)
    query, keys = (x.float().clamp(-2, 2) for x in vectors)
    loss = info_nce(query, keys, backend="triton", **options)
    for scale in (2.0**-140, 2.0**-100, 2.0**100):
        scaled = info_nce(query * scale, keys * scale, backend="triton", **options)
        # Below 2^-126 numbers have fewer bits.
        torch.testing.assert_close(scaled, loss, rtol=0 if scale > 2.0**-126 else 1e-2, atol=0)


def test_strided_inputs(small_tiles):
    vectors, options = make_case(size=14)
    query = vectors[0].float()[:, ::2]
    keys = vectors[1].float().transpose(0, 1).contiguous().transpose(0, 1)[..., ::2]
    expected = info_nce(query.contiguous(), keys.contiguous(), backend="triton", **options)
    assert torch.equal(info_nce(query, keys, backend="triton", **options), expected)


def test_a_bad_query_spoils_its_own_row_alone(small_tiles):
    vectors, options = make_case(num_keys=7, num_sets=1, has_ids=True)
    arguments = ({**options, "reduction": "none"}, torch.float32, torch.float32, "triton", torch.randn(6))
    clean = loss_and_gradients(vectors, *arguments)
    vectors[0][4, 2] = math.nan
    spoilt = loss_and_gradients(vectors, *arguments)
    others = torch.arange(6) != 4
    for value, before in zip(spoilt[:2], clean[:2], strict=True):
        assert torch.isnan(value[4]).all() and torch.equal(value[others], before[others])


def test_only_the_gradients_asked_for_are_computed(small_tiles, monkeypatch):
    vectors, options = make_case(num_sets=1, num_hard=4)
    products = []
    add = info_nce_triton._add_product
    monkeypatch.setattr(info_nce_triton, "_add_product", lambda *args: products.append(1) or add(*args))
    for needed, expected in ((0, 6), (1, 4), (2, 2)):
        inputs = [x.float().requires_grad_(number == needed) for number, x in enumerate(vectors)]
        products.clear()
        loss = info_nce(*inputs[:2], hard_negatives=inputs[2], backend="triton", **options)
        torch.autograd.grad(loss, inputs[needed])
        # Two blocks of rows; two slabs of keys (the first of 8 columns, the second of 4) and one of hard negatives.
        assert len(products) == expected
