"""PGD and sign steps: the formula, and that a sentence is alone with its gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastadv_kernels import (
    direction,
    mix_chains,
    pair_step,
    project,
    segment_norm,
    sentence_step,
    set_backend,
    sign_step,
)

NORMS = ("linf", "l2", "l1")
STEPS = (sentence_step, sign_step)
LENGTHS = (3, 1, 7, 2)
BATCHES = st.lists(st.sampled_from([1, 2, 3, 5, 7, 11]), min_size=2, max_size=4)


@pytest.fixture(params=["reference", "auto"], autouse=True, scope="module")
def _each_form(request):
    """float32 runs the reference, and what takes its place."""
    set_backend(request.param)
    yield
    set_backend("auto")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [None, 0.0, 1.5, torch.tensor([0.1, 0.2, 5.0, 0.0])], ids=str)
def test_steps_are_their_formulas(packed, norm, epsilon):
    cu_seqlens, delta, grad = packed(LENGTHS, 5)
    alpha = torch.tensor([0.1, 0.2, 0.3, 0.0], dtype=torch.float64)
    column = alpha.repeat_interleave(torch.tensor(LENGTHS))[:, None]
    moved = delta + column * direction(grad, norm, cu_seqlens)
    assert torch.equal(
        sentence_step(delta, grad, cu_seqlens, alpha, epsilon, norm),
        project(moved, epsilon, norm, cu_seqlens),
    )
    moved = delta + column * grad.sign()
    assert torch.equal(
        sign_step(delta, grad, cu_seqlens, alpha, epsilon, norm), project(moved, epsilon, norm, cu_seqlens)
    )


def test_a_sign_step_from_zero_is_the_radius_exactly(packed):
    cu_seqlens, delta, grad = packed(LENGTHS, 17, dtype=torch.float32)
    grad[4, 3] = 0
    step = sign_step(torch.zeros_like(delta), grad, cu_seqlens, 0.1, 0.1, "linf")
    assert torch.equal(step, torch.tensor(0.1) * grad.sign())
    assert step[4, 3] == 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step", STEPS)
@given(lengths=BATCHES, embedding_size=st.sampled_from([1, 7, 16, 17]), seed=st.integers(0, 10**6))
def test_order_and_company_never_matter(packed, norm, step, lengths, embedding_size, seed):
    cu_seqlens, delta, grad = packed(lengths, embedding_size, seed, torch.float32)
    together = step(delta, grad, cu_seqlens, 0.3, 1.0, norm)
    first = lengths[0]
    order = torch.cat([torch.arange(first, sum(lengths)), torch.arange(first)])
    turned = torch.tensor([0, *lengths[1:], first]).cumsum(0).to(torch.int32)
    assert torch.equal(step(delta[order], grad[order], turned, 0.3, 1.0, norm), together[order])
    alone = torch.tensor([0, first], dtype=torch.int32)
    assert torch.equal(step(delta[:first], grad[:first], alone, 0.3, 1.0, norm), together[:first])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step", STEPS)
@given(
    bad=st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    sentence=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_a_bad_gradient_keeps_its_sentence_and_touches_no_other(packed, norm, step, bad, sentence, seed):
    cu_seqlens, delta, grad = packed(LENGTHS, 5, seed, torch.float32)
    good = step(delta, grad, cu_seqlens, 0.3, 1.0, norm)
    first, last = cu_seqlens[sentence].item(), cu_seqlens[sentence + 1].item()
    grad[last - 1, seed % 5] = bad
    result = step(delta, grad, cu_seqlens, 0.3, 1.0, norm)
    assert torch.equal(result[first:last], delta[first:last])
    others = torch.ones(sum(LENGTHS), dtype=torch.bool)
    others[first:last] = False
    assert torch.equal(result[others], good[others])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step", STEPS)
@given(exponent=st.integers(-40, 14), seed=st.integers(0, 10**6))
def test_powers_of_two_take_one_step(packed, norm, step, exponent, seed):
    cu_seqlens, delta, grad = packed(LENGTHS, 17, seed, torch.float32)
    expected = step(delta, grad, cu_seqlens, 0.3, 1.0, norm)
    assert torch.equal(step(delta, grad * 2.0**exponent, cu_seqlens, 0.3, 1.0, norm), expected)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step", STEPS)
def test_zero_gradients_leave_delta_in_its_ball(packed, norm, step):
    cu_seqlens, delta, _ = packed(LENGTHS, 5, dtype=torch.float32)
    delta = project(delta, 1.0, norm, cu_seqlens) * 0.5
    assert torch.equal(step(delta, torch.zeros_like(delta), cu_seqlens, 0.3, 1.0, norm), delta)
    moved = step(delta, torch.rand_like(delta), cu_seqlens, 5.0, 1.0, norm)
    assert (segment_norm(moved.double(), cu_seqlens, norm) <= 1 + 1e-6).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [0.7, 50.0], ids=["active", "inactive"])
def test_gradcheck(packed, norm, epsilon):
    cu_seqlens, delta, grad = packed((2, 1, 3), 3)
    delta.requires_grad_()
    grad.requires_grad_()
    assert torch.autograd.gradcheck(lambda d, g: sentence_step(d, g, cu_seqlens, 0.3, epsilon, norm), (delta, grad))
    assert torch.autograd.gradcheck(lambda d: sign_step(d, grad, cu_seqlens, 0.3, epsilon, norm), delta)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", [None, 0.7, torch.tensor([0.1, 0.2, 5.0, 0.0])], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_pair_is_both_steps_to_the_bit(packed, norm, epsilon, dtype):
    cu_seqlens, pgd, grad = packed(LENGTHS, 17, dtype=dtype)
    fgsm = pgd.flip(0)
    grad[4:7, ::3] = 0
    alpha, beta = torch.tensor([0.1, 0.2, 0.3, 0.0]), 0.4
    result = pair_step(pgd, fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm)
    assert torch.equal(result[0], sentence_step(pgd, grad, cu_seqlens, alpha, epsilon, norm))
    assert torch.equal(result[1], sign_step(fgsm, grad, cu_seqlens, beta, epsilon, norm))


def test_pair_and_mix_pass_gradcheck(packed):
    cu_seqlens, pgd, grad = packed((2, 1, 3), 3)
    fgsm = pgd.flip(0).clone()
    for tensor in (pgd, fgsm):
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda p, f: pair_step(p, f, grad, cu_seqlens, 0.3, 0.4, 0.7, "l2"), (pgd, fgsm))
    assert torch.autograd.gradcheck(lambda p, f: mix_chains(p, f, 0.3), (pgd, fgsm))


def test_the_mix_is_its_formula_and_a_chain_of_weight_0_has_no_say(packed):
    _, pgd, fgsm = packed(LENGTHS, 5, dtype=torch.float32)
    torch.testing.assert_close(mix_chains(pgd, fgsm, 0.3), 0.3 * pgd + 0.7 * fgsm, rtol=2e-7, atol=2e-7)
    bad = torch.full_like(pgd, float("nan"))
    assert torch.equal(mix_chains(pgd, bad, 1.0), pgd)
    assert torch.equal(mix_chains(bad, pgd, 0), pgd)


def test_half_precision_gradients_move_a_float32_delta(packed):
    cu_seqlens, delta, grad = packed(LENGTHS, 5, dtype=torch.float32)
    half = grad.bfloat16()
    moved = sentence_step(delta, half, cu_seqlens, 0.3, 1.0, "l2")
    assert moved.dtype == torch.float32
    wide = sentence_step(delta, half.float(), cu_seqlens, 0.3, 1.0, "l2", backend="reference")
    assert torch.equal(moved, wide)


def test_shapes_that_do_not_fit_are_named(packed):
    cu_seqlens, delta, grad = packed(LENGTHS, 5)
    with pytest.raises(ValueError, match=r"epsilon has shape \(3,\); allowed: a number or \(4,\)"):
        sentence_step(delta, grad, cu_seqlens, 0.1, torch.ones(3), "l2")
    with pytest.raises(ValueError, match="cu_seqlens is torch.int64"):
        sign_step(delta, grad, cu_seqlens.long(), 0.1, 0.1, "l2")
    with pytest.raises(ValueError, match=r"sign_step: delta is \(13, 5\) and its gradient \(12, 5\)"):
        sign_step(delta, grad[1:], cu_seqlens, 0.1, 0.1, "l2")
    with pytest.raises(ValueError, match=r"pair_step: delta_fgsm is \(12, 5\) and its gradient \(13, 5\)"):
        pair_step(delta, delta[1:], grad, cu_seqlens, 0.1, 0.1, 0.1, "l2")
    with pytest.raises(ValueError, match=r"pair_step: beta has shape \(3,\); allowed: a number or \(4,\)"):
        pair_step(delta, delta, grad, cu_seqlens, 0.1, torch.ones(3), 0.1, "l2")
    with pytest.raises(ValueError, match="sentence_step: grad is torch.int64 .*; allowed: a floating-point type"):
        sentence_step(delta, grad.long(), cu_seqlens, 0.1, 0.1, "l2")
    with pytest.raises(ValueError, match="sign_step: delta is on meta and grad on cpu; allowed: one device"):
        sign_step(delta.to("meta"), grad, cu_seqlens, 0.1, 0.1, "l2")
    with pytest.raises(ValueError, match="sign_step: cu_seqlens is on meta; allowed: cpu"):
        sign_step(delta, grad, cu_seqlens.to("meta"), 0.1, 0.1, "l2")
    with pytest.raises(ValueError, match="mix_chains: delta_pgd and delta_fgsm are .*; allowed: one shape"):
        mix_chains(delta, delta[1:], 0.5)
