"""The transcriptions of FreeLB's passes, CARL and RAR, before the torch code is held against them.

Derivatives are checked by differences, losses by hand.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracle.classes.carl import CARL, CarlOptions
from tests.oracle.classes.free_passes import random_draws
from tests.oracle.classes.rar import gelu, layer_norm
from tests.oracle.classes.supervised_cases import (
    BATCHES,
    CASES,
    LABELS,
    NUM_ROWS,
    examples,
    outcome,
    parameters_of,
    self_draws,
    transcribed,
)
from tests.oracle.comparison import random_moves, slope_by_differences


@pytest.mark.parametrize("name", ["free", "carl-nce-plain", "carl-softmax-per-row", "rar-heavy"])
def test_slope_is_the_loss_difference(name):
    """Everything but the parameters constant: perturbations, banks, Z and negatives."""
    case = CASES[name]
    side = transcribed(case)
    for number, rows in enumerate(case.batches[:5]):
        batch = examples(rows)
        draws = self_draws(case, number, batch, side)
        slope = outcome(side, case, batch, draws).slope
    deltas = side.deltas(batch, draws)
    banks = getattr(side, "banks_before", None)
    if banks is not None:
        side.banks = banks
    moves = random_moves(side.parameters)
    expected = slope_by_differences(lambda p: side.loss(batch, deltas, draws, p), side.parameters, moves)
    assert slope == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_pass_gradient_is_that_of_the_cross_entropy():
    side, batch = transcribed(CASES["free"]), examples(BATCHES[0])
    draws = random_draws(batch, seed=4)
    for example, x, mask in zip(batch, side.embedded(batch, draws), draws.passes.inner, strict=True):
        derived = side.gradient(x, example.label, mask)
        for index in np.ndindex(x.shape):
            moved = x.astype(complex)
            moved[index] += 1e-30j
            slope = side.cross_entropy(
                side.parameters, side.encoded([moved], replace(draws.passes, inner=[mask]))[0], example.label
            )
            assert derived[index] == pytest.approx(slope.imag / 1e-30, rel=1e-9, abs=1e-13)


def test_passes_raise_the_loss():
    """The passes' perturbations do harm: the last pass's cross-entropy is above the first's."""
    side, batch = transcribed(CASES["free"]), examples(BATCHES[0])
    draws = random_draws(batch, with_dropout=False)
    deltas = side.deltas(batch, draws)
    of_passes = side.passes(batch, deltas, draws, side.parameters)
    means = [np.mean([side.cross_entropy(side.parameters, h, e.label) for h, e in zip(hs, batch)]) for hs in of_passes]
    assert means[0] < means[1] < means[2]


@pytest.mark.parametrize("estimator", ["nce", "softmax"])
def test_contrast_by_hand(estimator):
    """Anchor and positive at right angles to one negative and equal to the other: scores 1, e and e by tau = 1."""
    options = CarlOptions(estimator=estimator, temperature=1.0, normalize=False)
    side = CARL(options, parameters_of(CASES["carl-nce-plain"]), 2)
    one, other = np.array([1.0, 0, 0, 0]), np.array([0, 1.0, 0, 0])
    side.banks = np.array([[one, other], [one, other]])
    side.z = [3.0, 3.0]
    e, noise = np.e, 2 * 3.0 / 2
    if estimator == "softmax":
        expected = np.log(1 + e) - 1
    else:
        expected = -np.log(e / (e + noise)) - np.log(noise / (e + noise)) - np.log(noise / (1 + noise))
    assert side.row_loss(0, one, one, [0, 1]) == pytest.approx(expected, rel=1e-14)


def test_momentum_by_hand():
    side = CARL(CarlOptions(momentum=0.75, normalize=False), parameters_of(CASES["carl-nce-plain"]), 2)
    first, second = np.array([4.0, 0, 0, 0]), np.array([0, 8.0, 0, 0])
    batch = examples([1])
    for vector in (first, second):
        side.write_batch(batch, [vector], [2 * vector])
    assert side.banks[0, 1].tolist() == [3, 2, 0, 0]
    assert side.banks[1, 1].tolist() == [6, 4, 0, 0]
    assert side.written.tolist() == [False, True]


def test_activation_and_norm_by_definition():
    values = np.array([-2.0, -0.3, 0.0, 0.7, 3.0])
    x = np.linspace(-9, 9, 200_001)
    cumulative = np.cumsum(np.exp(-x * x / 2)) * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(gelu(values), values * np.interp(values, x, cumulative), atol=1e-4)
    normed = layer_norm(values, np.ones(5), np.zeros(5))
    assert normed.mean() == pytest.approx(0, abs=1e-12)
    assert (normed**2).mean() == pytest.approx(1, rel=1e-9)
    moved = gelu(values + 1e-30j).imag / 1e-30
    np.testing.assert_allclose(moved, (gelu(values + 1e-6) - gelu(values - 1e-6)) / 2e-6, atol=1e-8)


def test_cases_cover_many_classes_and_every_row():
    assert len(set(LABELS)) >= 4
    assert {row for rows in BATCHES for row in rows} == set(range(NUM_ROWS))
