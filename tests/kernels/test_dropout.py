"""Dropout by a hash: its law, its reproducibility, its gradient, and that C++ and the reference draw the same masks."""

import pytest
import torch

from fastadv_kernels import BackendError, dropout

# Fails without the C++ library where it is required.
needs_native = pytest.mark.usefixtures("native")


def seed_of(number):
    return torch.tensor([number])


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (7, 33), (3, 5, 257)])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999])
def test_native_is_the_reference_bit_for_bit(dtype, shape, p):
    x = torch.randn(shape).to(dtype)
    for number in (0, -1, 1 << 40, -(2**63), 2**63 - 1):
        seed = seed_of(number)
        assert torch.equal(dropout(x, p, seed, backend="native"), dropout(x, p, seed, backend="reference"))


@needs_native
def test_native_rounds_bfloat16_as_torch_does_and_keeps_what_is_not_finite():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 3.3895e38, -0.0, 1e-40]).to(torch.bfloat16)
    expected = (x.float() / 0.75).to(torch.bfloat16)
    found = dropout(x.repeat(400), 0.25, seed_of(3), backend="native").view(400, -1)
    kept = found.view(torch.int16) != 0
    for i in range(len(x)):
        of_kept = found[kept[:, i], i]
        assert len(of_kept) > 200 and torch.equal(of_kept.isnan(), expected[i].isnan().expand(len(of_kept)))
        assert x[i].isnan() or (of_kept == expected[i]).all()


@pytest.mark.parametrize("p", [0.1, 0.3])
def test_drops_with_its_probability_whatever_the_seed_and_the_place(p):
    """Each count is binomial: six standard deviations are exceeded once in 5e8."""
    num_seeds, size = 200, 2000
    dropped = torch.stack([dropout(torch.ones(size), p, seed_of(n * 7919)) == 0 for n in range(num_seeds)])
    for counts, trials in ((dropped.sum(), num_seeds * size), (dropped.sum(0), num_seeds), (dropped.sum(1), size)):
        deviation = (trials * p * (1 - p)) ** 0.5
        assert ((counts - trials * p).abs() <= 6 * deviation).all()


def test_neighbouring_places_and_seeds_are_independent():
    """Products of centred masks over many pairs have the variance of independent ones."""
    p, size = 0.5, 200_000
    masks = [(dropout(torch.ones(size), p, seed_of(n)) != 0).double() - 0.5 for n in (0, 1, 2**32, 2**33)]
    pairs = [(masks[0][lag:], masks[0][:-lag]) for lag in (1, 2, 16, 32, 384, 1024)]
    pairs += [(masks[0], other) for other in masks[1:]] + [(masks[2], masks[3])]
    for left, right in pairs:
        assert abs((left * right).sum()) <= 6 * (len(left) ** 0.5 / 4)


def test_the_generator_decides():
    x = torch.randn(50, 20)
    torch.manual_seed(3)
    first, second = dropout(x, 0.4), dropout(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.4), first) and not torch.equal(first, second)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_gradient_passes_where_the_value_did(backend, request):
    if backend == "native":
        request.getfixturevalue("native")
    x = torch.randn(11, 13, requires_grad=True)
    found = dropout(x, 0.3, seed_of(5), backend=backend)
    grad = torch.randn(13, 11).t()
    (by_x,) = torch.autograd.grad(found, x, grad)
    kept = found != 0
    torch.testing.assert_close(by_x, torch.where(kept, grad / 0.7, 0), rtol=1e-6, atol=0)
    torch.testing.assert_close(found, torch.where(kept, x / 0.7, 0), rtol=1e-6, atol=0)


def test_reference_gradient_in_float64():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dropout(x, 0.3, seed_of(9)), x)


@needs_native
def test_threads_do_not_change_the_mask():
    x = torch.randn(300_000)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(dropout(x, 0.2, seed_of(8), backend="native"))
    torch.set_num_threads(before)
    assert torch.equal(*found)


@needs_native
def test_opcheck_and_compile():
    x, seed = torch.randn(6, 8, requires_grad=True), seed_of(4)
    torch.library.opcheck(torch.ops.fastadv.dropout.default, (x, 0.2, seed))
    compiled = torch.compile(lambda x, seed: dropout(x, 0.2, seed), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, seed), dropout(x, 0.2, seed))


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_refuses_what_is_no_probability(p):
    with pytest.raises(ValueError, match="p is .*allowed: 0 to below 1"):
        dropout(torch.ones(3), p)


def test_refuses_other_types():
    with pytest.raises(ValueError, match="x is torch.int64"):
        dropout(torch.ones(3, dtype=torch.int64), 0.1)
    with pytest.raises(ValueError, match="seed is torch.int32"):
        dropout(torch.ones(3), 0.1, torch.ones(1, dtype=torch.int32))
    with pytest.raises(BackendError, match="float64"):
        dropout(torch.ones(3, dtype=torch.float64), 0.1, backend="native")
