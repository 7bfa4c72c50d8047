"""The token step's reference against a loop written from METHODS.md, and its laws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastadv_kernels import project, row_norm, set_backend, token_update


@pytest.fixture(params=["reference", "auto"], autouse=True, scope="module")
def _each_form(request):
    """float32 runs the reference, and what takes its place."""
    set_backend(request.param)
    yield
    set_backend("auto")


NORMS = ("linf", "l2", "l1")
SCALINGS = ("after", "before", "none")
ORDER = {"linf": np.inf, "l2": 2, "l1": 1}
LENGTHS = (3, 1, 7, 2)


def loop(eta, grad, cu_seqlens, gamma, epsilon, norm, scaling):
    """One token after another, in float64."""
    result = torch.empty_like(eta)
    for first, last in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        moved, sizes = [], []
        for i in range(first, last):
            length = np.linalg.norm(grad[i].numpy(), ORDER[norm])
            u = eta[i] + (gamma * grad[i] / length if length > 0 else 0)
            moved.append(u)
            sizes.append(np.linalg.norm((u if scaling == "after" else eta[i]).numpy(), ORDER[norm]))
        for i, (u, size) in enumerate(zip(moved, sizes, strict=True)):
            n = 1.0 if scaling == "none" or max(sizes) == 0 else size / max(sizes)
            result[first + i] = project((n * u)[None], epsilon, norm)[0]
    return result


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [None, 0.0, 0.4, 50.0])
def test_the_update_is_its_formula(packed, norm, scaling, epsilon):
    cu_seqlens, eta, grad = packed(LENGTHS, 5)
    eta[4:8] = 0
    grad[5] = 0
    expected = loop(eta, grad, cu_seqlens, 0.3, epsilon, norm, scaling)
    result = token_update(eta, grad, cu_seqlens, 0.3, epsilon, norm, scaling)
    torch.testing.assert_close(result, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("norm", NORMS)
def test_sizes_per_sentence(packed, norm, scaling):
    cu_seqlens, eta, grad = packed(LENGTHS, 5)
    gamma, epsilon = torch.tensor([0.1, 0.2, 0.3, 0.0]), torch.tensor([0.4, 0.0, 2.0, 9.0])
    together = token_update(eta, grad, cu_seqlens, gamma, epsilon, norm, scaling)
    for b, (first, last) in enumerate(((0, 3), (3, 4), (4, 11), (11, 13))):
        alone = torch.tensor([0, last - first], dtype=torch.int32)
        expected = token_update(
            eta[first:last], grad[first:last], alone, float(gamma[b]), float(epsilon[b]), norm, scaling
        )
        torch.testing.assert_close(together[first:last], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("norm", NORMS)
def test_a_sentence_of_zeros_takes_n_of_one(packed, norm, scaling):
    cu_seqlens, eta, grad = packed(LENGTHS, 5)
    zero = torch.zeros_like(eta)
    assert torch.equal(token_update(zero, zero, cu_seqlens, 0.3, 1.0, norm, scaling), zero)
    if scaling == "before":
        plain = token_update(zero, grad, cu_seqlens, 0.3, 1.0, norm, "none")
        assert torch.equal(token_update(zero, grad, cu_seqlens, 0.3, 1.0, norm, "before"), plain)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("norm", NORMS)
@given(
    lengths=st.lists(st.sampled_from([1, 2, 3, 5, 7, 11]), min_size=2, max_size=4),
    embedding_size=st.sampled_from([1, 7, 16, 17]),
    seed=st.integers(0, 10**6),
    exponent=st.integers(-40, 14),
    bad=st.sampled_from([float("nan"), float("inf"), -float("inf")]),
)
def test_laws(packed, norm, scaling, lengths, embedding_size, seed, exponent, bad):
    cu_seqlens, eta, grad = packed(lengths, embedding_size, seed, torch.float32)

    def update(eta, grad, cu_seqlens):
        return token_update(eta, grad, cu_seqlens, 0.3, 0.4, norm, scaling)

    together = update(eta, grad, cu_seqlens)
    assert (row_norm(together.double(), norm) <= 0.4 * (1 + 1e-6)).all()
    assert torch.equal(update(eta, grad * 2.0**exponent, cu_seqlens), together)
    first = lengths[0]
    order = torch.cat([torch.arange(first, sum(lengths)), torch.arange(first)])
    turned = torch.tensor([0, *lengths[1:], first]).cumsum(0).to(torch.int32)
    assert torch.equal(update(eta[order], grad[order], turned), together[order])
    grad[first - 1, 0] = bad
    poisoned = update(eta, grad, cu_seqlens)
    assert torch.equal(poisoned[:first], eta[:first])
    assert torch.equal(poisoned[first:], together[first:])
    zero = torch.zeros_like(eta)
    assert torch.equal(update(zero, zero, cu_seqlens), zero)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [0.4, 50.0], ids=["active", "inactive"])
def test_gradcheck(packed, norm, scaling, epsilon):
    cu_seqlens, eta, grad = packed((2, 1, 3), 3)
    eta.requires_grad_()
    grad.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda e, g: token_update(e, g, cu_seqlens, 0.3, epsilon, norm, scaling), (eta, grad)
    )


def test_an_unknown_scaling_is_named(packed):
    cu_seqlens, eta, grad = packed(LENGTHS, 5)
    with pytest.raises(ValueError, match="scaling is 'during'; allowed: after, before, none"):
        token_update(eta, grad, cu_seqlens, 0.3, 1.0, "l2", "during")
