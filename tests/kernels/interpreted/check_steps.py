"""Triton's steps and projections in its interpreter: error beside the references', laws, bad gradients."""

import pytest
import torch

from fastadv_kernels.project import project_reference
from fastadv_kernels.project_triton import launch as launch_project
from fastadv_kernels.segment import row_norm_reference, segment_norm_reference
from fastadv_kernels.sentence_step import sentence_step_reference, sign_step_reference
from fastadv_kernels.sentence_step_triton import launch as launch_step
from fastadv_kernels.sentence_step_triton import launch_mix, launch_pair, launch_sign
from fastadv_kernels.token_update import token_update_reference
from fastadv_kernels.token_update_triton import launch as launch_token
from tests.kernels.conftest import assert_within_twice_the_references_error

NORMS = ("linf", "l2", "l1")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# With tiles of eight rows of 768: one, a tile, a tile and one, a prime; and a sentence without tokens.
LENGTHS = (1, 8, 0, 9, 3)
NUM_TOKENS = sum(LENGTHS)
SIZES = (768, 1000)
"""every row 16-byte aligned, with padding columns in both"""


def project_sentences(x, grad, cu_seqlens, step_size, epsilon, norm):
    return launch_project(x, epsilon, norm, cu_seqlens)


def project_rows(x, grad, cu_seqlens, step_size, epsilon, norm):
    return launch_project(x, epsilon, norm, None)


def token(scaling):
    def launch(x, grad, cu_seqlens, step_size, epsilon, norm):
        return launch_token(x, grad, cu_seqlens, step_size, epsilon, norm, scaling)

    def reference(x, grad, cu_seqlens, step_size, epsilon, norm):
        return token_update_reference(x, grad, cu_seqlens, step_size, epsilon, norm, scaling)

    return launch, reference


STEPS = {
    "sentence_step": (launch_step, sentence_step_reference),
    "sign_step": (launch_sign, sign_step_reference),
    "token_update after": token("after"),
    "token_update before": token("before"),
    "token_update none": token("none"),
}
PROJECTIONS = {
    "project sentences": (project_sentences, lambda x, g, cu, s, e, norm: project_reference(x, e, norm, cu)),
    "project rows": (project_rows, lambda x, g, cu, s, e, norm: project_reference(x, e, norm)),
}
RADII = {"linf": 0.5, "l2": 5.0, "l1": 40.0}
FACTORS = (0.2, None, 0.0, 1.0, 100.0)
STEPS_AND_NORMS = [(name, norm) for name in ("sentence_step", "sign_step", "token_update after") for norm in NORMS]
STEPS_AND_NORMS += [("token_update before", "l2"), ("token_update none", "l1")]
"""every step of its own by every norm; scalings differ before the norm is taken, so one norm each will do"""


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def number(value):
    return None if value is None else torch.tensor([value])


def check_error(result, reference, arguments, dtype):
    """``arguments`` are in ``dtype`` or integers; the gold is the reference in float64 of the same values."""
    exact = reference(*(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments))
    assert result.dtype == dtype and result.shape == exact.shape and result.is_contiguous()
    # The floor: a unit in the last place of the largest result, and in float32 what a sum of many terms loses.
    floor = max(torch.finfo(dtype).eps, 4 * torch.finfo(torch.float32).eps)
    assert_within_twice_the_references_error(result, exact, reference(*arguments), floor)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", [*STEPS, *PROJECTIONS])
def test_error_is_the_references_at_most_twice(packed, name, norm):
    launch, reference = {**STEPS, **PROJECTIONS}[name]
    # Three radii of each op and norm, one of which moves some sentences: each radius meets each norm, and each op.
    number_of_pair = NORMS.index(norm) + list({**STEPS, **PROJECTIONS}).index(name)
    others = [FACTORS[1 + (number_of_pair + i) % 4] for i in (0, 2)]
    factors = [0.2, *others] if name in STEPS else [0.2, *(factor for factor in others if factor is not None)]
    for i, factor in enumerate(factors):
        dtype, size = DTYPES[i], SIZES[(i + number_of_pair) % 2]
        cu_seqlens, x, grad = packed(LENGTHS, size, dtype=dtype, scale=0.3)
        x[2:9] = 0
        grad[3] = 0
        epsilon = None if factor is None else number(factor * RADII[norm])
        arguments = (x, grad, cu_seqlens, number(0.3), epsilon, norm)
        check_error(launch(*arguments), reference, arguments, dtype)


@pytest.mark.parametrize(
    ("size", "norms"), [(1, NORMS[:1]), (7, NORMS[1:2]), (16, NORMS[2:]), (17, NORMS), (384, NORMS[1:2])]
)
@pytest.mark.parametrize("name", [*STEPS, *PROJECTIONS])
def test_sizes_per_sentence_and_strided_inputs(packed, name, size, norms):
    launch, reference = {**STEPS, **PROJECTIONS}[name]
    cu_seqlens, x, grad = packed(LENGTHS, 2 * size, dtype=torch.float32)
    x, grad = x[:, ::2], grad[:, 1::2]
    step_size = torch.tensor([0.1, 0.2, 7.0, 0.3, 0.0])
    radii = torch.tensor([0.4, 0.0, 1.0, 2.0, 9.0])
    if name == "project rows":
        radii = torch.linspace(0, 3, NUM_TOKENS)
    for norm in norms:
        arguments = (x, grad, cu_seqlens, step_size, radii, norm)
        check_error(launch(*arguments), reference, arguments, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sign_steps_are_bit_equal(packed, dtype):
    cu_seqlens, delta, grad = packed(LENGTHS, 100, dtype=dtype)
    grad[2, 5] = 0
    for norm, epsilon in (("linf", 0.4), ("linf", None), ("l2", 1e4), ("l1", 1e4)):
        arguments = (delta, grad, cu_seqlens, number(0.3), number(epsilon), norm)
        assert torch.equal(launch_sign(*arguments), sign_step_reference(*arguments))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("with_ball", [True, False])
def test_the_pair_is_its_two_steps(packed, norm, with_ball):
    cu_seqlens, pgd, grad = packed(LENGTHS, 100, dtype=torch.float32)
    fgsm = pgd.flip(0)
    grad[-1, -1] = float("nan")
    epsilon = number(RADII[norm]) if with_ball else None
    alpha, beta = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), number(0.05)
    pair = launch_pair(pgd, fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm)
    assert torch.equal(pair[0], launch_step(pgd, grad, cu_seqlens, alpha, epsilon, norm))
    assert torch.equal(pair[1], launch_sign(fgsm, grad, cu_seqlens, beta, epsilon, norm))
    assert torch.equal(pair[0][-3:], pgd[-3:]) and torch.equal(pair[1][-3:], fgsm[-3:])


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 4096), (41, 101)])
def test_the_mix_is_rounded_once(shape):
    for dtype in DTYPES:
        pgd, fgsm = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        for rho in (0.0, 0.3, 1.0):
            result = launch_mix(pgd, fgsm, rho)
            exact = rho * pgd.double() + (1 - rho) * fgsm.double()
            assert result.dtype == dtype
            error = (result.double() - exact).abs()
            terms = pgd.double().abs() + fgsm.double().abs()
            # Half a unit in the last place of the result, and three roundings of float32.
            assert (error <= torch.finfo(dtype).eps * exact.abs() / 2 + 3 * 2.0**-24 * terms + 1e-8).all()
        assert torch.equal(launch_mix(pgd, fgsm, 1.0), pgd)


@pytest.mark.parametrize(("name", "norm"), STEPS_AND_NORMS)
def test_bad_gradients_keep_their_sentences_and_touch_no_other(packed, name, norm):
    launch, _ = STEPS[name]
    seed = NORMS.index(norm)
    bad_values = (float("nan"), float("inf"), -float("inf"))
    cu_seqlens, x, grad = packed(LENGTHS, 17, seed, DTYPES[seed])
    rest = (cu_seqlens, number(0.3), number(RADII[norm]), norm)
    good = launch(x, grad, *rest)
    is_bad = torch.zeros(NUM_TOKENS, dtype=torch.bool)
    for sentence, bad in zip((1, 4), (bad_values[seed], bad_values[seed - 1])):
        first, last = cu_seqlens[sentence].item(), cu_seqlens[sentence + 1].item()
        grad[last - 1, seed] = bad
        is_bad[first:last] = True
    result = launch(x, grad, *rest)
    assert torch.equal(result[is_bad], x[is_bad]) and torch.equal(result[~is_bad], good[~is_bad])


@pytest.mark.parametrize(("name", "norm"), STEPS_AND_NORMS)
def test_order_company_and_powers_of_two_never_matter(packed, name, norm):
    """Steps of one size, whether their squares stay in float32's range or not."""
    launch, _ = STEPS[name]
    cu_seqlens, x, grad = packed(LENGTHS, 33, dtype=torch.float32)
    rest = (number(0.3), number(RADII[norm]), norm)
    together = launch(x, grad, cu_seqlens, *rest)
    turned = torch.tensor([0, *LENGTHS[1:], LENGTHS[0]]).cumsum(0).to(torch.int32)
    assert torch.equal(launch(x.roll(-1, 0), grad.roll(-1, 0) * 2.0**60, turned, *rest), together.roll(-1, 0))
    alone = torch.tensor([0, LENGTHS[1]], dtype=torch.int32)
    assert torch.equal(launch(x[1:9], grad[1:9] * 2.0**-80, alone, *rest), together[1:9])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", PROJECTIONS)
def test_projections_are_inside_and_idempotent_at_every_scale(packed, name, norm):
    launch, _ = PROJECTIONS[name]
    ulps = 8 * torch.finfo(torch.float32).eps
    for scale, epsilon in ((1e-20, 1e-6), (1.0, 0.0), (1.0, 1.0), (1e20, 30.0)):
        cu_seqlens, x, _ = packed(LENGTHS, 31, dtype=torch.float32, scale=scale)
        once = launch(x, None, cu_seqlens, None, number(epsilon), norm)
        if name == "project rows":
            size, before = row_norm_reference(once.double(), norm), row_norm_reference(x.double(), norm)
        else:
            size = segment_norm_reference(once.double(), cu_seqlens, norm)
            before = segment_norm_reference(x.double(), cu_seqlens, norm)
        assert (size <= epsilon * (1 + ulps)).all()
        again = launch(once, None, cu_seqlens, None, number(epsilon), norm)
        torch.testing.assert_close(again, once, rtol=ulps, atol=epsilon * ulps)
        assert (once * x >= 0).all()
        untouched = before < epsilon * (1 - ulps)
        if name == "project sentences":
            untouched = untouched.repeat_interleave(torch.tensor(LENGTHS))
        assert torch.equal(once[untouched], x[untouched])


@pytest.mark.parametrize("name", PROJECTIONS)
def test_few_far_entries_share_an_l1_radius(packed, name):
    launch, reference = PROJECTIONS[name]
    cu_seqlens, x, _ = packed(LENGTHS, 31, dtype=torch.float32)
    # Each ball keeps one entry, or two.
    x[::3, 7] = 1000.0
    x[::3, 11] = -1000.0 + 2.0**-10
    x[1::3, 5] = -3000.0
    x[2::3, 2] = 5000.0
    for epsilon in (1e-3, 0.5, 3.0):
        arguments = (x, None, cu_seqlens, None, number(epsilon), "l1")
        result = launch(*arguments)
        assert (result != 0).sum(dim=1).max() <= 2
        check_error(result, reference, arguments, torch.float32)


@pytest.mark.parametrize("name", STEPS)
def test_zero_gradients_and_no_tokens(packed, name):
    launch, _ = STEPS[name]
    cu_seqlens, x, _ = packed(LENGTHS, 17, dtype=torch.float32)
    zero = torch.zeros_like(x)
    for norm in NORMS:
        assert torch.equal(launch(zero, zero, cu_seqlens, number(0.3), number(1.0), norm), zero)
        if not name.startswith("token_update") or name.endswith("none"):
            assert torch.equal(launch(x, zero, cu_seqlens, number(0.3), number(1e4), norm), x)
    for offsets in ([0], [0, 0, 0]):
        nothing = launch(x[:0], x[:0], torch.tensor(offsets, dtype=torch.int32), number(0.3), None, "l2")
        assert nothing.shape == (0, 17)


def test_a_half_precision_gradient_moves_a_float32_delta(packed):
    cu_seqlens, x, grad = packed(LENGTHS, 17, dtype=torch.float32)
    half = grad.bfloat16()
    for launch, _ in list(STEPS.values())[:3]:
        moved = launch(x, half, cu_seqlens, number(0.3), number(1.0), "l2")
        assert moved.dtype == torch.float32
        assert torch.equal(moved, launch(x, half.float(), cu_seqlens, number(0.3), number(1.0), "l2"))


def test_a_sentence_of_several_blocks(packed):
    # 12,300 entries: a step's block of 8,192 and a projection's three of 4,096 and a rest.
    cu_seqlens, x, grad = packed((5, 41), 300, dtype=torch.float32)
    kinds = {**STEPS, **PROJECTIONS}
    for name, norm in (*zip(kinds, 3 * NORMS), ("sentence_step", "l1"), ("project sentences", "l1")):
        launch, reference = kinds[name]
        arguments = (x, grad, cu_seqlens, number(0.3), number(RADII[norm]), norm)
        check_error(launch(*arguments), reference, arguments, torch.float32)
