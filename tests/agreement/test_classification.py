"""The transcriptions of the supervised systems by themselves: closed forms, derivatives, and laws."""

import numpy as np
import pytest

from tests.oracle import transcription
from tests.oracle.classes import classification, smart
from tests.oracle.classes.classification import ClassifierOptions, classify, cross_entropy, cross_entropy_gradient
from tests.oracle.classes.classification_cases import CASES, LABELLED, TRANSCRIBED
from tests.oracle.comparison import random_moves, slope_by_differences
from tests.oracle.toy_encoder import EMBEDDING_SIZE, INNER_SIZE, Masks, make_parameters

SEARCHING = [name for name, case in CASES.items() if case.system not in ("fine_tuning", "scal+cl")]


def parameters_of(case):
    return {**make_parameters(head=case.head), **classification.make_classifier_parameters()}


def transcribed(name):
    case = CASES[name]
    return TRANSCRIBED[case.system](case.options, parameters_of(case), np.zeros((1, EMBEDDING_SIZE)))


def random_draws(name, batch, seed=0):
    """A start of delta, and masks of three views."""
    rng = np.random.default_rng(seed)
    kind = CASES[name].options.start
    draw = rng.normal if kind == "normal" else lambda size: rng.uniform(-1, 1, size=size)
    start = [draw(size=(s.length, EMBEDDING_SIZE)) for s in batch]

    def masks(size):
        return [rng.choice([0.0, 4 / 3], size=(s.length, size), p=[0.25, 0.75]) for s in batch]

    if not CASES[name].has_dropout:
        return start, transcription.Views()
    pairs = [Masks(masks(EMBEDDING_SIZE), masks(INNER_SIZE)) for _ in range(3)]
    return start, transcription.Views(*pairs)


def test_cross_entropy_by_hand():
    """Two classes of logits 0 and log 3: probabilities 1/4 and 3/4."""
    logits = np.log([1.0, 3.0])
    assert cross_entropy(logits, 0) == pytest.approx(np.log(4), rel=1e-15)
    np.testing.assert_allclose(cross_entropy_gradient(logits, 0), [-0.75, 0.75], rtol=1e-15)
    np.testing.assert_allclose(cross_entropy_gradient(logits, 1), [0.25, -0.25], rtol=1e-15)


def test_symmetric_kl_by_hand():
    """(1/4, 3/4) and (1/2, 1/2): sum of (p - q)(log p - log q)."""
    one, other = np.log([1.0, 3.0]), np.array([7.0, 7.0])
    expected = 0.25 * np.log(2) + 0.25 * np.log(1.5)
    assert smart.symmetric_kl(one, other) == pytest.approx(expected, rel=1e-14)
    assert smart.symmetric_kl(other, one) == pytest.approx(expected, rel=1e-14)
    assert smart.symmetric_kl(one, one + 3) == pytest.approx(0, abs=1e-15)


def test_symmetric_kl_gradient_is_its_derivative():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 5))
    expected = transcription.parameter_gradient(lambda of: smart.symmetric_kl(of["one"], other), {"one": one})["one"]
    np.testing.assert_allclose(smart.symmetric_kl_gradient(one, other), expected, rtol=1e-12)


@pytest.mark.parametrize("name", SEARCHING)
def test_search_follows_the_derivative_of_the_inner_loss(name):
    """By a complex step in the points, under dropout masks where the case has them."""
    numpy_side, batch = transcribed(name), LABELLED[2]
    start, views = random_draws(name, batch)
    x = numpy_side.embedded(batch, views.clean)
    given = numpy_side.what_the_search_is_given(x, batch, views.clean)
    points = transcription.added(x, [0.1 * s for s in start])
    found = numpy_side.inner_gradient(points, batch, given, views.clean)
    for row in range(len(batch)):

        def loss_of(point, row=row):
            moved = [*points[:row], point, *points[row + 1 :]]
            return numpy_side.inner_loss(numpy_side.vectors(moved, views.clean), given, batch)

        expected = transcription.parameter_gradient(lambda of: loss_of(of["x"]), {"x": points[row]})["x"]
        expected = numpy_side.keep_perturbed(batch[row], expected)
        np.testing.assert_allclose(found[row], expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", SEARCHING)
def test_search_raises_the_inner_loss(name):
    numpy_side, batch = transcribed(name), LABELLED[0]
    start, _ = random_draws(name, batch)
    found = numpy_side.step(batch, start).found
    x = numpy_side.embedded(batch, None)
    given = numpy_side.what_the_search_is_given(x, batch, None)
    end = numpy_side.inner_loss(numpy_side.vectors(transcription.added(x, found.delta)), given, batch)
    if CASES[name].options.num_pgd_steps > 1 or CASES[name].system != "freelb":
        assert end > found.inner_loss * (1 + 1e-3)
    else:
        # One pass of FreeLB moves nothing.
        assert end == found.inner_loss


@pytest.mark.parametrize("name", CASES)
def test_parameter_gradient_is_the_loss_derivative(name):
    """Complex steps against differences, delta, masks and averages being constants, along random moves."""
    numpy_side, batch = transcribed(name), LABELLED[0]
    start, views = random_draws(name, batch)
    found = numpy_side.step(batch, start, views).found
    delta = None if found is None else getattr(found, "passes", None) or found.delta

    def loss_of(parameters):
        return numpy_side.loss(batch, delta, views, parameters)

    moves = random_moves(numpy_side.parameters)
    slope = transcription.parameter_slope(loss_of, numpy_side.parameters, moves)
    expected = slope_by_differences(loss_of, numpy_side.parameters, moves)
    assert slope == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_free_passes_are_fine_tuning_where_nothing_moves():
    options = ClassifierOptions(sigma=0.0, epsilon=0.0, norm="l2", num_pgd_steps=3)
    parameters = {**make_parameters(head="none"), **classification.make_classifier_parameters()}
    free, plain = (
        kind(options, parameters, np.zeros((1, 1))) for kind in (classification.FreeLB, classification.FineTuning)
    )
    start = [np.ones((s.length, EMBEDDING_SIZE)) for s in LABELLED[0]]
    assert free.step(LABELLED[0], start).loss == pytest.approx(plain.step(LABELLED[0], None).loss, rel=1e-14)


def test_average_by_hand():
    """Of a parameter that goes 1, 2, 4, 8 in a run of 20 steps: two updates at 0.99, the third at 0.999."""
    numpy_side = transcribed("smart-moving")
    average, name = 1.0, "out_bias"
    numpy_side.average[name] = np.array([1.0])
    for value, decay in ((2.0, 0.99), (4.0, 0.99), (8.0, 0.999)):
        numpy_side.parameters = {**numpy_side.parameters, name: np.array([value])}
        numpy_side.commit()
        average = decay * average + (1 - decay) * value
        assert numpy_side.average[name][0] == pytest.approx(average, rel=1e-15)


def test_classes_are_all_there():
    assert {s.label for batch in LABELLED for s in batch} == set(range(classification.NUM_CLASSES))
    logits = classify(classification.make_classifier_parameters(), np.array([0.3, -0.5, 0.9, 0.1]))
    probabilities = np.exp(classification.log_softmax(logits))
    assert probabilities.sum() == pytest.approx(1) and (probabilities > 1e-3).all()
