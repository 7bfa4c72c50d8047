"""The torch code against a numpy transcription of METHODS.md sections 1-2 that shares nothing with it.

Three consecutive steps on a toy encoder, in float64: delta of both chains, their mix, eta, the table V after
each step, the first inner loss and the total loss. The transcription itself is checked first, by differences.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracle import toy_encoder, transcription
from tests.oracle.comparison import (
    TRANSCRIBED,
    differences,
    parameters_of,
    random_moves,
    random_table,
    random_uniform,
    slope_by_differences,
    torch_steps,
)
from tests.oracle.sentences.ball import l1_threshold, norm_of, project
from tests.oracle.sentences.cases import BATCHES, CASES, REPEATED, sized
from tests.oracle.sentences.contrastive import contrastive_sum, gradient_of_sum
from tests.oracle.sentences.rtd import Corruption
from tests.oracle.sentences.torch_run import TorchRun
from tests.oracle.toy_encoder_torch import DROPOUT


def central_difference(function, x, step=1e-6):
    slopes = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        slopes[index] = (function(up) - function(down)) / (2 * step)
    return slopes


# The error of a central difference is step^2 times a third derivative plus rounding over step: 1e-9 here.
DIFFERENCE_TOLERANCE = 1e-7


@pytest.mark.parametrize("head", ["mlp", "none"])
@pytest.mark.parametrize("num_tokens", [1, 2, 6])
@pytest.mark.parametrize("is_masked", [False, True])
def test_toy_encoder_backward_is_its_derivative(head, num_tokens, is_masked):
    rng = np.random.default_rng(num_tokens)
    parameters = toy_encoder.make_parameters(head=head)
    x = rng.normal(size=(num_tokens, toy_encoder.EMBEDDING_SIZE))
    upstream = rng.normal(size=toy_encoder.HIDDEN_SIZE)
    mask = rng.choice([0.0, 4 / 3], size=(num_tokens, toy_encoder.INNER_SIZE)) if is_masked else None
    _, saved = toy_encoder.forward(parameters, x, mask)
    derived = toy_encoder.backward(parameters, saved, upstream, mask)
    expected = central_difference(lambda moved: upstream @ toy_encoder.forward(parameters, moved, mask)[0], x)
    assert np.abs(derived).max() > 1e-2
    np.testing.assert_allclose(derived, expected, atol=DIFFERENCE_TOLERANCE)


def test_toy_encoder_tokens_meet_in_the_gradient():
    """The gradient at one token depends on another token, so that a search treating them apart would show."""
    parameters = toy_encoder.make_parameters()
    x = np.random.default_rng(0).normal(size=(3, toy_encoder.EMBEDDING_SIZE))
    gradients = []
    for shift in (0.0, 0.1):
        moved = x + np.array([[0.0], [0.0], [shift]])
        _, saved = toy_encoder.forward(parameters, moved)
        gradients.append(toy_encoder.backward(parameters, saved, np.ones(toy_encoder.HIDDEN_SIZE)))
    assert np.abs(gradients[0][0] - gradients[1][0]).max() > 1e-3


def test_saturated_words_have_no_gradient():
    parameters = toy_encoder.make_parameters()
    _, saved = toy_encoder.forward(parameters, parameters["word"][list(toy_encoder.SATURATED_WORDS)])
    assert not toy_encoder.backward(parameters, saved, np.ones(toy_encoder.HIDDEN_SIZE)).any()


@pytest.mark.parametrize("mask_duplicates", [False, True])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_contrastive_gradient_is_its_derivative(mask_duplicates, temperature):
    rng = np.random.default_rng(1)
    queries, keys = rng.normal(size=(2, 4, 3))
    ids = [5, 6, 5, 7]
    derived = np.array(gradient_of_sum(list(queries), list(keys), ids, temperature, mask_duplicates))
    expected = central_difference(
        lambda moved: contrastive_sum(moved, [keys], ids, temperature, "sum", mask_duplicates), queries
    )
    np.testing.assert_allclose(derived, expected, atol=100 * DIFFERENCE_TOLERANCE)


def test_contrastive_loss_by_hand():
    """Two rows, two key sets, cosines 1 and 0: every kind of several positives in closed form."""
    queries = np.eye(2)
    same, other = np.eye(2), np.eye(2)[::-1]
    e = np.e
    losses = {
        # Own keys have logits 1 and 0, the negative's 0 and 1.
        "sum": -np.log((e + 1) / (2 * e + 2)),
        "mean": -(np.log(e / (2 * e + 2)) + np.log(1 / (2 * e + 2))) / 2,
        "separate": -(np.log(e / (e + 1)) + np.log(1 / (e + 1))) / 2,
    }
    for kind, loss in losses.items():
        assert contrastive_sum(queries, [same, other], [0, 1], 1.0, kind) == pytest.approx(2 * loss, rel=1e-14)
        assert contrastive_sum(queries, [same, other], [3, 3], 1.0, kind) == 0


@pytest.mark.parametrize("shape", [(1,), (7,), (4, 5)])
def test_l1_projection_is_the_nearest_point(shape):
    """One threshold for all entries is the optimality condition; bisection finds the same one."""
    x = np.random.default_rng(2).normal(size=shape)
    radius = 0.6 * norm_of(x, "l1")
    low, high = 0.0, np.abs(x).max()
    for _ in range(100):
        middle = (low + high) / 2
        if np.maximum(np.abs(x) - middle, 0).sum() > radius:
            low = middle
        else:
            high = middle
    assert l1_threshold(x, radius) == pytest.approx(low, rel=1e-12)
    assert norm_of(project(x, radius, "l1"), "l1") == pytest.approx(radius, rel=1e-13)


def test_parameter_gradient_is_the_loss_derivative():
    options = sized("l2")
    numpy_side = transcription.RobustSentEmbed(options, toy_encoder.make_parameters(), random_table(options.sigma))
    batch = BATCHES[0]
    delta = numpy_side.step(batch, random_uniform(batch)).found.delta
    grads = transcription.parameter_gradient(
        lambda parameters: numpy_side.loss(batch, delta, parameters=parameters), numpy_side.parameters
    )
    for name, values in numpy_side.parameters.items():

        def loss_of(moved, name=name):
            return numpy_side.loss(batch, delta, parameters={**numpy_side.parameters, name: moved})

        expected = central_difference(loss_of, values)
        np.testing.assert_allclose(grads[name], expected, atol=100 * DIFFERENCE_TOLERANCE, err_msg=name)


@pytest.mark.parametrize("name", ["uscal-fgm-plain", "uscal-fgsm-plain", "rtd-plain", "rtd-of-z", "rtd-sum"])
def test_parameter_gradient_of_other_objectives_is_the_loss_derivative(name):
    """Of USCAL and of replaced token detection, delta, eta, masks and fills being constants, along random moves."""
    case, batch, rng = CASES[name], BATCHES[0], np.random.default_rng(3)
    lengths = [sentence.length for sentence in batch]
    masked = [rng.random(n) < 0.5 for n in lengths]
    corruption = Corruption(masked, [rng.integers(toy_encoder.VOCAB_SIZE, size=n) for n in lengths])
    views = transcription.Views(corruption=corruption)
    numpy_side = TRANSCRIBED[case.objective](case.options, parameters_of(case), random_table(case.options.sigma))
    delta = numpy_side.step(batch, random_uniform(batch), views).found.delta

    def loss_of(parameters):
        return numpy_side.loss(batch, delta, views, parameters)

    for seed in range(3):
        moves = random_moves(numpy_side.parameters, seed)
        slope = transcription.parameter_slope(loss_of, numpy_side.parameters, moves)
        expected = slope_by_differences(loss_of, numpy_side.parameters, moves)
        assert slope == pytest.approx(expected, rel=1e-6, abs=100 * DIFFERENCE_TOLERANCE)


@pytest.mark.parametrize("method", ["fgm", "fgsm"])
def test_one_step_attack_follows_the_inner_loss_gradient(method):
    """The transcribed delta is that of the inner loss' derivative by a complex step in X, and does harm."""
    case, batch = CASES[f"uscal-{method}-plain"], BATCHES[0]
    # A loss of logits far apart is a difference of nearly equal logarithms, whose derivative loses digits.
    options = replace(case.options, temperature=0.5)
    numpy_side = TRANSCRIBED["uscal"](options, parameters_of(case), random_table(0.0))
    x = numpy_side.embedded(batch, None)
    keys = numpy_side.vectors([x_s + 0.1 for x_s in x])
    found = numpy_side.search(x, batch, keys, None)
    for row, delta in enumerate(found.delta):

        def loss_of(x_s, row=row):
            return numpy_side.inner_loss(numpy_side.vectors([*x[:row], x_s, *x[row + 1 :]]), keys, batch)

        slope = transcription.parameter_gradient(lambda of: loss_of(of["x"]), {"x": x[row]})["x"]
        expected = slope / np.sqrt((slope * slope).sum()) if method == "fgm" else np.sign(slope)
        np.testing.assert_allclose(delta, 0.15 * expected, rtol=1e-9, atol=1e-12)
    end = numpy_side.inner_loss(numpy_side.vectors(transcription.added(x, found.delta)), keys, batch)
    assert end > found.inner_loss


def test_search_raises_the_inner_loss():
    """What the transcription finds does harm: the inner loss ends well above its start."""
    options = sized("linf", sigma=0.05, num_fgsm_steps=3)
    numpy_side = transcription.RobustSentEmbed(options, toy_encoder.make_parameters(), random_table(options.sigma))
    batch = BATCHES[0]
    x = numpy_side.embedded(batch, None)
    keys = numpy_side.vectors(x)
    found = numpy_side.search(x, batch, keys, random_uniform(batch))
    end = numpy_side.inner_loss(numpy_side.vectors(transcription.added(x, found.delta, found.eta)), keys, batch)
    assert end > found.inner_loss + 0.1


EVERY_SEED = [(name, 0) for name in CASES] + [(name, seed) for seed in (1, 2) for name in REPEATED]


@pytest.mark.parametrize(("name", "seed"), EVERY_SEED)
def test_torch_agrees_with_transcription(name, seed):
    assert differences(CASES[name], seed=seed) == []


def test_masks_of_all_views_are_independent():
    """z, z+ and z_adv under masks of their own: entries are equal as often as independent ones are."""
    case = CASES["l2-after-shared-rho0.3"]
    equal = {}
    for seed in range(3):
        for step in torch_steps(case, seed)[1]:
            for names, (one, other) in step.drawn.pairs().items():
                equal.setdefault(names, []).append((one == other).numpy().ravel())
    assert list(equal) == ["X and X+", "z and z+", "z and z_adv", "z+ and z_adv"]
    for names, entries in equal.items():
        entries = np.concatenate(entries)
        by_chance = DROPOUT**2 + (1 - DROPOUT) ** 2
        deviation = (by_chance * (1 - by_chance) / entries.size) ** 0.5
        assert abs(entries.mean() - by_chance) < 4 * deviation < 0.15, names


@pytest.mark.parametrize(
    ("inner_dropout", "reuse", "num_masks"),
    [
        ("off", "exact", 0),
        ("frozen", "exact", 3),  # z's in each of 3 inner steps
        ("off", "none", 12),  # X+'s and z+'s, for delta and for eta
        ("frozen", "none", 18),
    ],
)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_masks_of_inner_steps(norm, inner_dropout, reuse, num_masks):
    run = TorchRun(sized(norm, inner_dropout=inner_dropout), toy_encoder.make_parameters(), reuse)
    for batch in BATCHES:
        step = run.step(batch)
        assert len(run.encoder.drawn) == 5 + num_masks
        assert len(step.drawn.inner) == num_masks
        assert step.mask_faults == []


def test_gradients_keep_their_digits():
    """Every token's gradient has rounding's own error, relative to itself, and is exactly 0 behind the clamp.

    Directions and signs forget a gradient's size; one that is small by cancellation would make both sides disagree by
    much more than rounding. Points are those of large relative radii: all words, moved by up to their own size.
    """
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no wider type than float64 here")
    rng = np.random.default_rng(0)
    parameters = toy_encoder.make_parameters()
    wide = {name: values.astype(np.longdouble) for name, values in parameters.items()}
    num_zero = 0
    for _ in range(300):
        x = parameters["word"][rng.integers(toy_encoder.VOCAB_SIZE, size=rng.integers(1, toy_encoder.LONGEST))]
        size = 10 ** rng.uniform(-2, 0) * np.sqrt((x * x).mean())
        x = x * rng.choice([0.0, 4 / 3], size=x.shape, p=[0.25, 0.75]) + size * rng.uniform(-1, 1, size=x.shape)
        upstream = rng.normal(size=toy_encoder.HIDDEN_SIZE)
        gradients = []
        for kind, own in ((np.float64, parameters), (np.longdouble, wide)):
            _, saved = toy_encoder.forward(own, x.astype(kind))
            gradients.append(toy_encoder.backward(own, saved, upstream.astype(kind)))
        narrow, exact = gradients
        largest = np.abs(exact).max(axis=1)
        assert (np.abs(narrow - exact).max(axis=1) <= 1e-11 * largest).all()
        num_zero += (largest == 0).sum()
    assert num_zero > 20


def test_a_sentence_and_a_token_have_no_gradient():
    """Otherwise directions of a zero gradient would be compared nowhere."""
    numpy_side = transcription.RobustSentEmbed(sized("l2"), toy_encoder.make_parameters(), random_table(0.2))
    x = numpy_side.embedded(BATCHES[1], None)
    keys = [z + 0.1 for z in numpy_side.vectors(x)]
    gradients = numpy_side.inner_gradient(x, BATCHES[1], keys, None)
    has_gradient = [g.any(axis=1).tolist() for g in gradients]
    assert has_gradient == [[word not in toy_encoder.SATURATED_WORDS for word in s.tokens] for s in BATCHES[1]]
    assert not any(has_gradient[3])
    assert any(has_gradient[4]) and not all(has_gradient[4])


def test_words_outside_the_batch_keep_their_row_bit_for_bit():
    case = CASES["l2-after-shared-rho0.3"]
    before, steps = torch_steps(case)
    for batch, step in zip(case.batches, steps, strict=True):
        absent = sorted(set(range(toy_encoder.VOCAB_SIZE)) - {word for s in batch for word in s.tokens})
        assert absent
        assert np.array_equal(step.result.table[absent], before[absent])
        before = step.result.table


def test_batches_of_one_optimizer_step_share_one_table():
    """All of them read the same V; it is written once, by the mean over the positions of all."""
    options = sized("l2", perturb_special_tokens=False)
    parameters = toy_encoder.make_parameters()
    run = TorchRun(options, parameters)
    start = run.table
    steps = [run.step(batch, is_committed=False) for batch in BATCHES]
    assert np.array_equal(run.table, start)
    run.module.commit()
    etas = []
    for batch, step in zip(BATCHES, steps, strict=True):
        reader = transcription.RobustSentEmbed(options, parameters, start)
        etas += reader.step(batch, step.uniform, step.views).found.eta
    writer = transcription.RobustSentEmbed(options, parameters, start)
    writer.write_table([sentence for batch in BATCHES for sentence in batch], etas)
    np.testing.assert_allclose(run.table, writer.table, rtol=1e-10, atol=1e-14)


def test_skipped_step_writes_nothing():
    run = TorchRun(sized("linf"), toy_encoder.make_parameters())
    start = run.table
    run.step(BATCHES[0], is_committed=False)
    run.module.discard()
    run.module.commit()
    assert np.array_equal(run.table, start)


def test_table_starts_uniform():
    """V starts as U(-sigma, sigma) / sqrt(E)."""
    table = TorchRun(sized("linf", sigma=0.3), toy_encoder.make_parameters()).table
    bound = 0.3 / toy_encoder.EMBEDDING_SIZE**0.5
    assert np.abs(table).max() <= bound
    # Of 70 uniform numbers the largest magnitude is below 0.9 of the bound with probability 0.9^70 = 6e-4.
    assert np.abs(table).max() > 0.9 * bound
    # Their mean has the standard deviation bound / sqrt(3 * 70).
    assert abs(table.mean()) < 4 * bound / (3 * table.size) ** 0.5
