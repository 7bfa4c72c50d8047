"""The C++ token step: which path ran, its error beside the reference's, the same laws, torch.compile."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fastadv_kernels import row_norm, token_update

NORMS = ("linf", "l2", "l1")
SCALINGS = ("after", "before", "none")

pytestmark = pytest.mark.usefixtures("native")


class NativeCalls(TorchDispatchMode):
    """Counts the calls that reach the C++ op."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.fastadv.token_update.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [None, 0.0, 0.4, 50.0])
@pytest.mark.parametrize("embedding_size", [1, 7, 16, 17, 64, 768])
def test_error_is_the_references_at_most_twice(packed, poisoned_memory, norm, scaling, epsilon, embedding_size):
    lengths = (3, 1, 7, 2, 16, 13)
    cu_seqlens, eta, grad = packed(lengths, embedding_size, dtype=torch.float32, scale=0.3)
    eta[4:11] = 0
    grad[5] = 0

    def update(dtype, backend):
        return token_update(eta.to(dtype), grad.to(dtype), cu_seqlens, 0.3, epsilon, norm, scaling, backend=backend)

    with NativeCalls() as calls:
        result = update(torch.float32, "native")
    assert calls.count == 1
    exact = update(torch.float64, "reference")
    allowed = 2 * (update(torch.float32, "reference").double() - exact).abs().max()
    # The floor: one unit in the last place of the largest result.
    allowed += torch.finfo(torch.float32).eps * exact.abs().max()
    assert (result.double() - exact).abs().max() <= allowed


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
        return token_update(eta, grad, cu_seqlens, 0.3, 0.4, norm, scaling, backend="native")

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


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30, 3e37])
def test_neither_tiny_nor_huge_gradients_leave_float32(packed, norm, size):
    cu_seqlens, eta, grad = packed((3, 1, 7), 17, dtype=torch.float32)
    grad = grad.clamp(-2, 2)
    expected = token_update(eta, grad * size, cu_seqlens, 0.3, 0.4, norm, backend="reference")
    result = token_update(eta, grad * size, cu_seqlens, 0.3, 0.4, norm, backend="native")
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_sizes_per_sentence_and_strided_inputs(packed):
    cu_seqlens, eta, grad = packed((3, 1, 7), 34, dtype=torch.float32)
    eta, grad = eta[:, ::2], grad[:, 1::2]
    gamma, epsilon = torch.tensor([0.1, 0.2, 0.0]), torch.tensor([0.4, 0.0, 2.0])
    for norm in NORMS:
        result = token_update(eta, grad, cu_seqlens, gamma, epsilon, norm, backend="native")
        expected = token_update(eta, grad, cu_seqlens, gamma, epsilon, norm, backend="reference")
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_threads_do_not_change_a_bit(packed):
    cu_seqlens, eta, grad = packed([32] * 16, 768, dtype=torch.float32)
    alone = token_update(eta, grad, cu_seqlens, 0.3, 0.4, "l2", backend="native")
    torch.set_num_threads(2)
    try:
        assert torch.equal(token_update(eta, grad, cu_seqlens, 0.3, 0.4, "l2", backend="native"), alone)
    finally:
        torch.set_num_threads(1)


def test_offsets_outside_the_tensor_are_refused(packed):
    cu_seqlens, eta, grad = packed((3, 1, 7), 5, dtype=torch.float32)
    for wrong in ([0, 3, 4, 12], [0, 5, 4, 11], [1, 3, 4, 11]):
        offsets = torch.tensor(wrong, dtype=torch.int32)
        with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to the number of tokens, 11"):
            token_update(eta, grad, offsets, 0.3, 0.4, "l2", backend="native")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("with_ball", [True, False])
def test_opcheck(packed, norm, with_ball):
    cu_seqlens, eta, grad = packed((3, 1, 7), 5, dtype=torch.float32)
    epsilon = torch.tensor([0.4]) if with_ball else None
    arguments = (eta, grad, cu_seqlens, torch.tensor([0.3]), epsilon, norm, "after")
    outcome = torch.library.opcheck(torch.ops.fastadv.token_update.default, arguments)
    assert set(outcome.values()) == {"SUCCESS"}


def test_compile_takes_the_whole_graph(packed):
    cu_seqlens, eta, grad = packed((3, 1, 7), 5, dtype=torch.float32)

    def step(eta, grad, cu_seqlens):
        return token_update(2 * eta, grad, cu_seqlens, 0.3, 0.4, "l2") + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(eta, grad, cu_seqlens), step(eta, grad, cu_seqlens))
