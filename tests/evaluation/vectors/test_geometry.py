"""Alignment, uniformity and effective rank: hand-computed values, laws, and inputs without an answer."""

import math

import numpy as np
import pytest

from fastadv.evaluation.vectors.geometry import (
    mean_cosine_statistic,
    singular_values,
    spectral_statistic,
    squared_distances,
    uniformity,
    unit_vectors,
)


def random_vectors(num_vectors=12, width=5, seed=0):
    return np.random.default_rng(seed).normal(size=(num_vectors, width))


def alignment(x, y):
    return squared_distances(x, y).mean()


def mean_cosine(x):
    return mean_cosine_statistic(x)(np.ones((1, len(x))))[0]


def spectrum(x):
    """Effective rank and top share, from the singular values themselves; both 0 without any variation."""
    values = singular_values(x)
    values = values[values > 0]
    if not len(values):
        return 0, 0
    share, power = values / values.sum(), values**2
    return np.exp(-(share * np.log(share)).sum()), power[0] / power.sum()


def of_all(x):
    """Effective rank and top share by the statistic, each vector drawn once."""
    return spectral_statistic(x)(np.ones((1, len(x))))[0]


def test_alignment_by_hand():
    x = np.array([[1.0, 0], [2, 0], [3, 0]])
    y = np.array([[5.0, 0], [0, 1], [-1, 0]])
    assert squared_distances(x, y).tolist() == [0, 2, 4]
    assert alignment(x, y) == 2


def test_uniformity_by_hand():
    # Two orthogonal and one opposite direction: squared distances 2, 4, 2 for the three pairs.
    x = np.array([[1.0, 0], [0, 3], [-2, 0]])
    assert uniformity(x) == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3), abs=1e-15)


def test_uniformity_matches_the_double_loop():
    x = unit_vectors(random_vectors())
    terms = [np.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i in range(12) for j in range(12) if i != j]
    assert uniformity(x) == pytest.approx(np.log(np.mean(terms)), abs=1e-13)


def test_length_of_vectors_never_matters():
    x, y = random_vectors(), random_vectors(seed=1)
    scale = np.random.default_rng(2).uniform(1e-3, 1e3, size=(12, 1))
    assert alignment(x * scale, y) == pytest.approx(alignment(x, y), abs=1e-13)
    assert uniformity(x * scale) == pytest.approx(uniformity(x), abs=1e-13)
    np.testing.assert_allclose(of_all(x * scale), of_all(x), atol=1e-10)
    assert mean_cosine(x * scale) == pytest.approx(mean_cosine(x), abs=1e-13)


def test_uniformity_of_coinciding_vectors_is_the_worst_value():
    assert uniformity(np.tile([[0.3, -0.7, 0.2]], (6, 1))) == pytest.approx(0, abs=1e-12)


def test_rank_and_top_share_of_a_known_spectrum():
    axes = np.vstack([np.eye(4), -np.eye(4)])  # centred, four equal singular values
    np.testing.assert_allclose(of_all(axes), [4, 1 / 4], atol=1e-12)
    np.testing.assert_allclose(of_all(np.array([[1.0, 0], [-1, 0], [1, 0]])), [1, 1], atol=1e-12)


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.ones((3, 2)), np.tile([[0.1, 0.7, -0.3]], (9, 1))])
def test_rank_and_top_share_without_variation_are_zero(vectors):
    assert not of_all(vectors).any() and not any(spectrum(vectors))


def test_mean_cosine_by_hand_and_by_the_double_loop():
    # The three pairs have cosines 0, -1, 0.
    assert mean_cosine(np.array([[1.0, 0], [0, 3], [-2, 0]])) == pytest.approx(-1 / 3, abs=1e-15)
    x = random_vectors() + 1
    unit = unit_vectors(x)
    pairs = [unit[i] @ unit[j] for i in range(12) for j in range(12) if i != j]
    assert mean_cosine(x) == pytest.approx(np.mean(pairs), abs=1e-13)
    assert mean_cosine(np.tile([[0.3, -0.7]], (5, 1))) == pytest.approx(1, abs=1e-12)


def test_singular_values_hold_all_variance():
    x = random_vectors()
    centred = unit_vectors(x) - unit_vectors(x).mean(axis=0)
    singular = singular_values(x)
    assert singular.shape == (5,) and (np.diff(singular) <= 0).all()
    assert (singular**2).sum() == pytest.approx((centred**2).sum(), abs=1e-12)
    top_share = np.linalg.eigvalsh(centred.T @ centred)[-1] / (centred**2).sum()
    assert of_all(x)[1] == pytest.approx(top_share, abs=1e-12)
    assert not singular_values(np.tile([[0.1, 0.7, -0.3]], (9, 1))).any()


def test_a_resample_is_the_repeated_vectors():
    x = random_vectors() + 0.5
    counts = np.random.default_rng(3).multinomial(12, np.full(12, 1 / 12), 6).astype(float)
    drawn = [np.repeat(np.arange(12), row.astype(int)) for row in counts]
    expected = [spectrum(x[rows]) for rows in drawn]
    np.testing.assert_allclose(spectral_statistic(x)(counts), expected, rtol=1e-6)
    unit = unit_vectors(x)
    # Two draws of one vector are no pair.
    cosines = [np.mean([unit[i] @ unit[j] for i in rows for j in rows if i != j]) for rows in drawn]
    np.testing.assert_allclose(mean_cosine_statistic(x)(counts), cosines, atol=1e-13)
    np.testing.assert_allclose(of_all(x), spectrum(x), rtol=1e-9)
    np.testing.assert_array_equal(spectral_statistic(np.ones((12, 3)))(counts), np.zeros((6, 2)))


def test_zero_tiny_and_huge_vectors_stay_finite():
    unit = unit_vectors(np.array([[0.0, 0], [3e-300, 4e-300], [3e300, 4e300]]))
    np.testing.assert_allclose(unit, [[0, 0], [0.6, 0.8], [0.6, 0.8]], rtol=1e-14)


def test_input_without_an_answer_is_refused():
    with pytest.raises(ValueError, match="at least two vectors"):
        uniformity(np.ones((1, 4)))
    with pytest.raises(ValueError, match="one shape"):
        alignment(np.ones((3, 4)), np.ones((2, 4)))
    with pytest.raises(ValueError, match="NaN"):
        uniformity(np.array([[np.nan, 1.0], [1, 1]]))
    with pytest.raises(ValueError, match="N >= 1"):
        uniformity(np.ones((0, 4)))
