"""Projection on the balls: nearest point, inside, idempotent, one sentence at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastadv_kernels import project, row_norm, segment_norm, set_backend

NORMS = ("linf", "l2", "l1")
LENGTHS = st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 9]), min_size=1, max_size=4)
SIZES = st.sampled_from([1, 2, 7, 16, 17, 31])


@pytest.fixture(params=["reference", "auto"], autouse=True, scope="module")
def _each_form(request):
    """float32 runs the reference, and what takes its place."""
    set_backend(request.param)
    yield
    set_backend("auto")


def l1_by_bisection(x, epsilon):
    """θ by halving an interval, which shares nothing with the sorted threshold."""
    if x.abs().sum() <= epsilon:
        return x
    low, high = 0.0, float(x.abs().max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (x.abs() - middle).clamp(min=0).sum() > epsilon else (low, middle)
    return x.sign() * (x.abs() - high).clamp(min=0)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 40.0])
def test_l1_is_the_nearest_point(packed, epsilon):
    cu_seqlens, x, _ = packed((3, 1, 7), 5)
    expected = torch.cat([l1_by_bisection(x[a:b], epsilon) for a, b in ((0, 3), (3, 4), (4, 11))])
    torch.testing.assert_close(project(x, epsilon, "l1", cu_seqlens), expected, rtol=0, atol=1e-13)
    expected = torch.stack([l1_by_bisection(row, epsilon) for row in x])
    torch.testing.assert_close(project(x, epsilon, "l1"), expected, rtol=0, atol=1e-13)


def test_l2_is_radial_and_linf_clamps(packed):
    cu_seqlens, x, _ = packed((3, 1, 7), 5)
    size = segment_norm(x, cu_seqlens, "l2").repeat_interleave(torch.tensor([3, 1, 7]))[:, None]
    expected = torch.where(size > 3.0, x * 3.0 / size, x)
    assert 0 < (size > 3.0).sum() < 11
    torch.testing.assert_close(project(x, 3.0, "l2", cu_seqlens), expected, rtol=1e-14, atol=0)
    assert torch.equal(project(x, 0.5, "linf", cu_seqlens), x.clamp(-0.5, 0.5))


@pytest.mark.parametrize("norm", NORMS)
@given(
    lengths=LENGTHS,
    embedding_size=SIZES,
    seed=st.integers(0, 10**6),
    epsilon=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 30.0]),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e20]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_laws(packed, norm, lengths, embedding_size, seed, epsilon, scale, dtype):
    cu_seqlens, x, _ = packed(lengths, embedding_size, seed, dtype, scale)
    # The scaled entry, the factor and their product round once each; the norm in the factor, like its sum.
    ulps = 8 * torch.finfo(dtype).eps
    for once, size, again in (
        (project(x, epsilon, norm), row_norm, lambda y: project(y, epsilon, norm)),
        (
            project(x, epsilon, norm, cu_seqlens),
            lambda y, n: segment_norm(y, cu_seqlens, n),
            lambda y: project(y, epsilon, norm, cu_seqlens),
        ),
    ):
        assert once.dtype == dtype
        assert (size(once.double(), norm) <= epsilon * (1 + ulps)).all()
        torch.testing.assert_close(again(once), once, rtol=ulps, atol=epsilon * ulps)
        assert (once * x >= 0).all()
    inside = segment_norm(x.double(), cu_seqlens, norm) < epsilon * (1 - ulps)
    untouched = inside.repeat_interleave(torch.tensor(lengths))
    assert torch.equal(project(x, epsilon, norm, cu_seqlens)[untouched], x[untouched])


@pytest.mark.parametrize("norm", NORMS)
def test_no_ball_zero_ball_and_zero_point(packed, norm):
    cu_seqlens, x, _ = packed((3, 1, 7), 5)
    for offsets in (None, cu_seqlens):
        assert torch.equal(project(x, None, norm, offsets), x)
        assert (project(x, 0.0, norm, offsets) == 0).all()
        assert (project(torch.zeros_like(x), 0.5, norm, offsets) == 0).all()


@pytest.mark.parametrize("norm", NORMS)
def test_each_ball_has_its_own_radius(packed, norm):
    cu_seqlens, x, _ = packed((3, 1, 7), 5)
    radii = torch.tensor([0.4, 0.0, 2.0])
    together = project(x, radii, norm, cu_seqlens)
    for b, (first, last) in enumerate(((0, 3), (3, 4), (4, 11))):
        alone = project(x[first:last], float(radii[b]), norm, torch.tensor([0, last - first], dtype=torch.int32))
        torch.testing.assert_close(together[first:last], alone, rtol=0, atol=1e-15)
    rows = torch.linspace(0, 3, 11)
    assert (row_norm(project(x, rows, norm), norm) <= rows * (1 + 1e-6)).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [0.7, 50.0], ids=["active", "inactive"])
def test_gradcheck(packed, norm, epsilon):
    cu_seqlens, x, _ = packed((2, 1, 3), 3)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: project(x, epsilon, norm, cu_seqlens), x)
    assert torch.autograd.gradcheck(lambda x: project(x, epsilon, norm), x)
    zero = torch.zeros_like(x, requires_grad=True)
    (slope,) = torch.autograd.grad(project(zero, epsilon, norm, cu_seqlens).sum(), zero)
    assert torch.isfinite(slope).all()
