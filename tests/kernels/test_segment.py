"""Norms and directions of packed tokens: their meaning, their range, their derivative."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastadv_kernels import direction, row_norm, segment_norm

NORMS = ("linf", "l2", "l1")
ORDER = {"linf": np.inf, "l2": 2, "l1": 1}
LENGTHS = (3, 1, 7, 2)


def sentences(x, cu_seqlens):
    return [x[a:b] for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)]


@pytest.mark.parametrize("norm", NORMS)
def test_norms_are_numpys(packed, norm):
    cu_seqlens, x, _ = packed(LENGTHS, 5)
    expected = [np.linalg.norm(s.numpy().ravel(), ORDER[norm]) for s in sentences(x, cu_seqlens)]
    np.testing.assert_allclose(segment_norm(x, cu_seqlens, norm).numpy(), expected, rtol=1e-14)
    expected = [np.linalg.norm(row.numpy(), ORDER[norm]) for row in x]
    np.testing.assert_allclose(row_norm(x, norm).numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("norm", NORMS)
def test_direction_divides_by_the_norm(packed, norm):
    cu_seqlens, _, grad = packed(LENGTHS, 5)
    expected = torch.cat([s / segment_norm(s, torch.tensor([0, len(s)]), norm) for s in sentences(grad, cu_seqlens)])
    torch.testing.assert_close(direction(grad, norm, cu_seqlens), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(direction(grad, norm), grad / row_norm(grad, norm)[:, None], rtol=1e-14, atol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30, 3e37])
def test_neither_tiny_nor_huge_values_leave_float32(packed, norm, size):
    cu_seqlens, x, _ = packed(LENGTHS, 5, dtype=torch.float32)
    x = x.clamp(-2, 2)
    per_token = direction(x * size, norm)
    assert torch.isfinite(per_token).all()
    # Below float32's normal range the input itself has lost bits, at 1e-42 all but ten.
    tolerance = 2e-2 if size < 1e-38 else 1e-6
    torch.testing.assert_close(per_token, direction(x, norm), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        direction(x * size, norm, cu_seqlens), direction(x, norm, cu_seqlens), rtol=tolerance, atol=tolerance
    )
    if norm != "l1" or size < 1e37:
        exact = segment_norm((x * size).double(), cu_seqlens, norm)
        torch.testing.assert_close(segment_norm(x * size, cu_seqlens, norm).double(), exact, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("norm", NORMS)
def test_zeros_have_norm_and_direction_zero_and_finite_derivatives(packed, norm):
    cu_seqlens, grad, _ = packed(LENGTHS, 5)
    grad[0:3] = 0
    grad[5] = 0
    grad.requires_grad_()
    weights = torch.rand_like(grad)
    for value in (direction(grad, norm), direction(grad, norm, cu_seqlens)):
        assert (value[0:3] == 0).all()
        (slope,) = torch.autograd.grad((value * weights).sum(), grad)
        assert torch.isfinite(slope).all()
        assert (slope[0:3] == 0).all()
    sizes = segment_norm(grad, cu_seqlens, norm), row_norm(grad, norm)
    assert sizes[0][0] == 0 and (sizes[1][0:3] == 0).all()
    for size in sizes:
        (slope,) = torch.autograd.grad(size.sum(), grad)
        assert torch.isfinite(slope).all()


@pytest.mark.parametrize("norm", NORMS)
def test_gradcheck(packed, norm):
    cu_seqlens, x, _ = packed((2, 1, 3), 3)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: segment_norm(x, cu_seqlens, norm), x)
    assert torch.autograd.gradcheck(lambda x: row_norm(x, norm), x)
    assert torch.autograd.gradcheck(lambda x: direction(x, norm, cu_seqlens), x)
    assert torch.autograd.gradcheck(lambda x: direction(x, norm), x)


@pytest.mark.parametrize("norm", NORMS)
@given(exponent=st.integers(-40, 14), seed=st.integers(0, 10**6))
def test_powers_of_two_have_one_direction(packed, norm, exponent, seed):
    cu_seqlens, _, grad = packed(LENGTHS, 17, seed, torch.float32)
    scaled = grad * 2.0**exponent
    assert torch.equal(direction(scaled, norm, cu_seqlens), direction(grad, norm, cu_seqlens))
    assert torch.equal(direction(scaled, norm), direction(grad, norm))


@pytest.mark.parametrize("norm", NORMS)
def test_a_bad_sentence_stays_alone(packed, norm):
    cu_seqlens, x, _ = packed(LENGTHS, 5)
    good = segment_norm(x, cu_seqlens, norm), direction(x, norm, cu_seqlens)
    x[3] = float("nan")
    size, unit = segment_norm(x, cu_seqlens, norm), direction(x, norm, cu_seqlens)
    others = torch.arange(x.shape[0]) != 3
    assert torch.isnan(size[1]) and torch.equal(size[[0, 2, 3]], good[0][[0, 2, 3]])
    assert torch.isnan(unit[3]).all() and torch.equal(unit[others], good[1][others])


def test_half_precision_is_computed_in_float32(packed):
    cu_seqlens, x, _ = packed(LENGTHS, 5, dtype=torch.bfloat16)
    assert segment_norm(x, cu_seqlens, "l2").dtype == torch.float32
    assert torch.equal(direction(x, "l2", cu_seqlens), direction(x.float(), "l2", cu_seqlens))


def test_an_unknown_norm_is_named():
    with pytest.raises(ValueError, match="norm is 'l3'; allowed: linf, l2, l1"):
        row_norm(torch.zeros(1, 1), "l3")
