"""The C++ forms of steps, projection, mix and table: the path taken, errors beside the reference's, opcheck.

The laws that the reference obeys (order, company, a bad gradient, powers of two, the ball) are asked of these forms
where they are asked of it: test_sentence_step.py, test_project.py and test_token_update.py run each of them twice.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastadv_kernels import (
    eta_table_read,
    eta_table_write_mean,
    mix_chains,
    pair_step,
    project,
    row_norm,
    segment_norm,
    sentence_step,
    sign_step,
    token_update,
)
from tests.kernels.conftest import Calls, assert_within_twice_the_references_error

NORMS = ("linf", "l2", "l1")
LENGTHS = (3, 1, 7, 2, 16, 13)
SCALINGS = ("after", "before", "none")
EPSILONS = [None, 0.0, 0.4, 50.0]
SIZES = [1, 7, 16, 17, 64, 768]
ULP = torch.finfo(torch.float32).eps
OPS = torch.ops.fastadv

pytestmark = pytest.mark.usefixtures("native")


def check_error(result, exact, plain):
    """One unit in the last place of the largest result is the floor."""
    assert_within_twice_the_references_error(result, exact, plain, ULP)


def three_ways(op, function, *tensors):
    """The C++ result, the reference in float64, the reference in float32; each a tuple of tensors."""
    with Calls() as calls:
        result = function(*tensors, backend="native")
    assert calls.names == [op]
    exact = function(*(t.double() for t in tensors), backend="reference")
    plain = function(*tensors, backend="reference")
    return [r if isinstance(r, tuple) else (r,) for r in (result, exact, plain)]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("embedding_size", SIZES)
def test_errors_of_steps(packed, poisoned_memory, norm, epsilon, embedding_size):
    cu_seqlens, delta, grad = packed(LENGTHS, embedding_size, dtype=torch.float32, scale=0.1)
    other = delta.flip(0)
    delta[4:11] = 0
    grad[3] = 0
    grad[5, ::2] = 0

    def pgd(delta, grad, backend):
        return sentence_step(delta, grad, cu_seqlens, 0.3, epsilon, norm, backend=backend)

    def fgsm(delta, grad, backend):
        return sign_step(delta, grad, cu_seqlens, 0.02, epsilon, norm, backend=backend)

    def pair(delta, other, grad, backend):
        return pair_step(delta, other, grad, cu_seqlens, 0.3, 0.02, epsilon, norm, backend=backend)

    for op, function, tensors in (
        ("sentence_step", pgd, (delta, grad)),
        ("sign_step", fgsm, (delta, grad)),
        ("pair_step", pair, (delta, other, grad)),
    ):
        results = three_ways(op, function, *tensors)
        for result, exact, plain in zip(*results, strict=True):
            check_error(result, exact, plain)
        # No rounding stands between a sign and its step, nor between a step and its clamp.
        if op != "sentence_step" and (norm == "linf" or epsilon is None):
            assert torch.equal(results[0][-1], results[2][-1])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", EPSILONS[1:])
@pytest.mark.parametrize("embedding_size", SIZES)
@pytest.mark.parametrize("by_sentence", [True, False], ids=["sentences", "rows"])
def test_errors_of_projection(packed, poisoned_memory, norm, epsilon, embedding_size, by_sentence):
    cu_seqlens, x, _ = packed(LENGTHS, embedding_size, dtype=torch.float32, scale=0.2)
    x[4:6] = 0
    offsets = cu_seqlens if by_sentence else None

    def nearest(x, backend):
        return project(x, epsilon, norm, offsets, backend=backend)

    ((result,), (exact,), (plain,)) = three_ways("project", nearest, x)
    check_error(result, exact, plain)
    if norm == "linf":
        assert torch.equal(result, plain)
    assert torch.equal(project(x, None, norm, offsets, backend="native"), x)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("embedding_size", SIZES)
def test_errors_of_token_steps(packed, poisoned_memory, norm, scaling, epsilon, embedding_size):
    cu_seqlens, eta, grad = packed(LENGTHS, embedding_size, dtype=torch.float32, scale=0.3)
    eta[4:11] = 0
    grad[5] = 0

    def update(eta, grad, backend):
        return token_update(eta, grad, cu_seqlens, 0.3, epsilon, norm, scaling, backend=backend)

    ((result,), (exact,), (plain,)) = three_ways("token_update", update, eta, grad)
    check_error(result, exact, plain)


@given(
    values=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0, 1e-30, 1e8, -2.5]), min_size=1, max_size=40),
    epsilon=st.sampled_from([1e-6, 0.5, 1.0, 7.0, 1e7]),
)
def test_l1_meets_the_reference_at_ties_and_far_outside(values, epsilon):
    x = torch.tensor([values])
    exact = project(x.double(), epsilon, "l1", backend="reference")
    result = project(x, epsilon, "l1", backend="native")
    # A radius arrives in float32.
    torch.testing.assert_close(result.double(), exact, rtol=2 * ULP, atol=2 * ULP * epsilon)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30, 3e37])
def test_neither_tiny_nor_huge_gradients_leave_float32(packed, norm, size):
    cu_seqlens, delta, grad = packed((3, 1, 7), 17, dtype=torch.float32)
    grad = grad.clamp(-2, 2) * size
    # A first token of another size: the scale is taken from it.
    grad[0] *= 1e-3
    for step, start in ((sentence_step, delta), (sentence_step, delta * size), (token_update, delta)):
        native, reference = (
            step(start, grad, cu_seqlens, 0.3, 0.4, norm, backend=form) for form in ("native", "reference")
        )
        torch.testing.assert_close(native, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_keeps_both_chains_of_its_sentence(packed, poisoned_memory, bad):
    cu_seqlens, pgd, grad = packed((3, 1, 7), 34, dtype=torch.float32)
    fgsm = pgd.flip(0)
    for norm in NORMS:
        good = pair_step(pgd, fgsm, grad, cu_seqlens, 0.3, 0.2, 0.4, norm, backend="native")
        poisoned = grad.clone()
        poisoned[10, 33] = bad
        result = pair_step(pgd, fgsm, poisoned, cu_seqlens, 0.3, 0.2, 0.4, norm, backend="native")
        for new, old, undisturbed in zip(result, (pgd, fgsm), good, strict=True):
            assert torch.equal(new[4:], old[4:])
            assert torch.equal(new[:4], undisturbed[:4])


def test_sizes_per_sentence_and_strided_inputs(packed):
    cu_seqlens, delta, grad = packed((3, 1, 7), 34, dtype=torch.float32)
    delta, grad = delta[:, ::2], grad[:, 1::2]
    alpha, beta, epsilon = torch.tensor([0.1, 0.2, 0.0]), torch.tensor(0.3), torch.tensor([0.4, 0.0, 2.0])
    for norm in NORMS:
        arguments = (delta, delta, grad, cu_seqlens, alpha, beta, epsilon, norm)
        for result, expected in zip(
            pair_step(*arguments, backend="native"), pair_step(*arguments, backend="reference"), strict=True
        ):
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
        arguments = (delta, grad, cu_seqlens, alpha, epsilon, norm)
        result, expected = (token_update(*arguments, backend=form) for form in ("native", "reference"))
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
        radii = torch.linspace(0, 3, 11)
        torch.testing.assert_close(
            project(delta, radii, norm, backend="native"), project(delta, radii, norm, backend="reference")
        )


@pytest.mark.parametrize("norm", NORMS)
def test_results_stay_in_long_balls(packed, norm):
    cu_seqlens, delta, grad = packed((512, 1, 100), 769, dtype=torch.float32)
    results = pair_step(delta, delta, grad, cu_seqlens, 5.0, 0.3, 2.0, norm, backend="native")
    for result in results:
        assert (segment_norm(result.double(), cu_seqlens, norm) <= 2 * (1 + 1e-6)).all()
    assert (row_norm(project(delta, 0.5, norm, backend="native").double(), norm) <= 0.5 * (1 + 1e-6)).all()


def test_threads_do_not_change_a_bit(packed):
    cu_seqlens, delta, grad = packed([32] * 16, 768, dtype=torch.float32)
    words = torch.randint(0, 100, (512,))

    def everything():
        table = torch.zeros(100, 768)
        eta_table_write_mean(table, words, grad, backend="native")
        return torch.cat(
            [
                *pair_step(delta, delta, grad, cu_seqlens, 0.3, 0.2, 0.4, "l2", backend="native"),
                token_update(delta, grad, cu_seqlens, 0.3, 0.4, "l2", backend="native"),
                project(delta, 0.3, "l1", cu_seqlens, backend="native"),
                mix_chains(delta, grad, 0.3, backend="native"),
                eta_table_read(table, words, backend="native"),
            ]
        )

    alone = everything()
    torch.set_num_threads(2)
    try:
        assert torch.equal(everything(), alone)
    finally:
        torch.set_num_threads(1)


def test_table_and_mix_take_the_native_path(poisoned_memory):
    table, eta, words = torch.randn(13, 7), torch.randn(10, 7), torch.tensor([7, 2, 7, 3, 2, 7, 0, 11, 2, 7])
    strided = torch.randn(13, 14)[:, ::2]
    strided.copy_(table)
    expected = table.clone()
    eta_table_write_mean(expected, words, eta, backend="reference")
    with Calls() as calls:
        eta_table_write_mean(table, words, eta, backend="native")
        eta_table_write_mean(strided, words, eta, backend="native")
        read = eta_table_read(table, words, backend="native")
        mixed = mix_chains(eta, read, 0.25, backend="native")
    assert calls.names == ["eta_table_write_mean", "eta_table_write_mean", "eta_table_read", "mix_chains"]
    assert torch.equal(table, expected) and torch.equal(strided, expected)
    assert torch.equal(read, expected[words])
    check_error(mixed, 0.25 * eta.double() + 0.75 * read.double(), 0.25 * eta + 0.75 * read)
    for wrong in (13, -1):
        with pytest.raises(IndexError, match=f"token_ids holds {wrong}; allowed: 0 to 12"):
            eta_table_read(table, torch.tensor([0, wrong]), backend="native")
    assert eta_table_read(table, words[:0], backend="native").shape == (0, 7)


def op_arguments(packed):
    cu_seqlens, delta, grad = packed((3, 1, 7), 5, dtype=torch.float32)
    step, radius = torch.tensor([0.3]), torch.tensor([0.4])
    ids, order, starts = torch.tensor([1, 4]), torch.tensor([0, 2, 1]), torch.tensor([0, 2, 3])
    return {
        "token_update": (delta, grad, cu_seqlens, step, radius, "l1", "after"),
        "sentence_step": (delta, grad, cu_seqlens, step, radius, "l2"),
        "sign_step": (delta, grad, cu_seqlens, step, None, "linf"),
        "pair_step": (delta, delta.clone(), grad, cu_seqlens, step, step.clone(), radius, "l1"),
        "mix_chains": (delta, grad, 0.3),
        "project": (delta, radius, "l2", cu_seqlens),
        "eta_table_read": (delta, torch.tensor([1, 1, 0])),
        "eta_table_write_mean": (delta, ids, order, starts, grad[:3]),
    }


NAMES = "token_update sentence_step sign_step pair_step mix_chains project eta_table_read eta_table_write_mean".split()


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(packed, name):
    outcome = torch.library.opcheck(getattr(OPS, name).default, op_arguments(packed)[name])
    assert set(outcome.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", NAMES)
def test_an_op_called_directly_trusts_nothing(packed, name):
    arguments = op_arguments(packed)[name]
    with pytest.raises(ValueError, match=rf"^{name}: \w+ is torch.float64 on cpu; allowed: torch.float32 on cpu"):
        getattr(OPS, name)(arguments[0].double(), *arguments[1:])
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and argument.dtype in (torch.int32, torch.int64):
            wrong = argument.to(torch.int16)
            with pytest.raises(ValueError, match=rf"^{name}: \w+ is torch.int16 \(\d,\) on cpu; allowed: torch.int"):
                getattr(OPS, name)(*arguments[:i], wrong, *arguments[i + 1 :])


def test_directly_called_ops_name_sizes_that_do_not_fit(packed):
    arguments = list(op_arguments(packed)["pair_step"])
    arguments[4] = torch.ones(2)
    with pytest.raises(ValueError, match=r"pair_step: alpha has shape \(2,\); allowed: \(1,\) or \(3,\)"):
        OPS.pair_step(*arguments)
    table, ids, order, starts, eta = op_arguments(packed)["eta_table_write_mean"]
    with pytest.raises(ValueError, match="starts must rise from 0 to the number of positions, 3"):
        OPS.eta_table_write_mean(table, ids, order, torch.tensor([0, 2, 4]), eta)
    with pytest.raises(IndexError, match="order holds 3; allowed: 0 to 2"):
        OPS.eta_table_write_mean(table, ids, torch.tensor([0, 1, 3]), starts, eta)
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to the number of tokens, 11"):
        OPS.project(eta.new_zeros(11, 5), torch.ones(1), "l2", torch.tensor([0, 12], dtype=torch.int32))
    for wrong in ([0, 3, 4, 12], [0, 5, 4, 11], [1, 3, 4, 11]):
        delta, grad, offsets = torch.zeros(11, 5), torch.ones(11, 5), torch.tensor(wrong, dtype=torch.int32)
        with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to the number of tokens, 11"):
            token_update(delta, grad, offsets, 0.3, 0.4, "l2", backend="native")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [torch.tensor([0.4]), None])
def test_opcheck_of_token_steps(packed, norm, radius):
    arguments = op_arguments(packed)["token_update"]
    outcome = torch.library.opcheck(OPS.token_update.default, (*arguments[:4], radius, norm, "after"))
    assert set(outcome.values()) == {"SUCCESS"}
