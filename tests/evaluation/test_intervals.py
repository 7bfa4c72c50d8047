"""Bootstrap intervals: agreement with the normal theory, pairing, coverage, and degenerate samples."""

import numpy as np
import pytest

from fastadv.evaluation.intervals import (
    known_mean_statistic,
    log_pair_mean_statistic,
    mean_statistic,
    normal_interval,
    paired_interval,
    paired_statistic_interval,
    percentile_interval,
    resample_counts,
    statistic_interval,
    value_interval,
)
from fastadv.evaluation.vectors.geometry import pair_kernel, uniformity


def test_counts_are_resamples():
    counts = resample_counts(50, 300, seed=1)
    assert counts.shape == (300, 50)
    assert (counts.sum(axis=1) == 50).all() and counts.min() == 0
    np.testing.assert_array_equal(counts, resample_counts(50, 300, seed=1))
    assert not np.array_equal(counts, resample_counts(50, 300, seed=2))


def test_interval_of_a_mean_agrees_with_normal_theory():
    values = np.random.default_rng(0).normal(2.0, 1.5, size=400)
    interval = value_interval(values)
    half_width = 1.96 * values.std() / np.sqrt(400)
    assert interval.value == pytest.approx(values.mean(), abs=1e-12)
    # 2,000 resamples place a 2.5 % quantile within about 5 % of the half width (two standard errors).
    assert interval.high - interval.value == pytest.approx(half_width, rel=0.1)
    assert interval.value - interval.low == pytest.approx(half_width, rel=0.1)


def test_pairing_removes_what_sentences_share():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 10, size=300)
    before = shared + rng.normal(0, 0.1, size=300)
    after = shared + 0.5 + rng.normal(0, 0.1, size=300)
    paired = paired_interval(before, after)
    assert 0.45 < paired.low < 0.5 < paired.high < 0.55
    assert value_interval(after).high - value_interval(after).low > 10 * (paired.high - paired.low)


def test_paired_statistics_equal_the_interval_of_differences():
    rng = np.random.default_rng(3)
    before, after = rng.random(80), rng.random(80)
    both = paired_statistic_interval(mean_statistic(before), mean_statistic(after), resample_counts(80))
    assert both.value == pytest.approx(paired_interval(before, after).value, abs=1e-14)
    assert both.low == pytest.approx(paired_interval(before, after).low, abs=1e-14)


def test_a_mean_of_known_values_is_that_of_the_resample_s_known_ones():
    values, counts = np.array([1.0, np.nan, 0.0, 4.0]), np.array([[1, 1, 1, 1], [2, 1, 1, 0], [0, 4, 0, 0.0]])
    # Without a known value a resample says what the sample says.
    np.testing.assert_allclose(known_mean_statistic(values)(counts), [5 / 3, 2 / 3, 5 / 3], rtol=1e-12)
    whole = np.array([1.0, 2.0, 0.5, 4.0])
    np.testing.assert_allclose(known_mean_statistic(whole)(counts), mean_statistic(whole)(counts), rtol=1e-12)
    with pytest.raises(ValueError, match="a value that is known"):
        known_mean_statistic(np.full(3, np.nan))


def test_coverage_is_near_95_percent():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        difference = rng.normal(0.3, 1.0, size=60)
        interval = paired_interval(np.zeros(60), difference, num_resamples=500, seed=trial)
        covered += interval.low <= 0.3 <= interval.high
    # Binomial(300, 0.95) has a standard deviation of 1.3 %; the percentile method loses about 1 % at N = 60.
    assert 0.90 <= covered / 300 <= 0.985


def test_equal_measurements_give_no_difference_and_no_width():
    values = np.random.default_rng(0).random(40)
    interval = paired_interval(values, values)
    assert (interval.value, interval.low, interval.high) == (0, 0, 0)
    constant = value_interval(np.ones(40))
    assert (constant.value, constant.low, constant.high) == pytest.approx((1, 1, 1), abs=1e-15)


def test_uniformity_resampled_leaves_out_pairs_of_one_sentence():
    vectors = np.random.default_rng(0).normal(size=(60, 8))
    statistic = log_pair_mean_statistic(pair_kernel(vectors))
    interval = statistic_interval(statistic, resample_counts(60))
    assert interval.value == pytest.approx(uniformity(vectors), abs=1e-12)
    assert interval.low < interval.value < interval.high
    # By hand: sentence 0 drawn twice beside sentence 1 has pairs (0, 1), (1, 0), each twice, and none of 0 with itself.
    counts = np.zeros((1, 60))
    counts[0, 0], counts[0, 1] = 2, 1
    assert statistic(counts)[0] == pytest.approx(np.log(4 * pair_kernel(vectors)[0, 1] / 4), abs=1e-12)


def test_both_intervals_of_given_draws():
    draws = np.arange(101) / 100
    interval = percentile_interval(0.7, draws)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.7, 0.025, 0.975), abs=1e-15)
    # The draws' mean has no say, their spread alone: 1, 2, 3 have a standard deviation of 1.
    interval = normal_interval(10.0, np.array([1.0, 2, 3]))
    assert (interval.value, interval.low, interval.high) == pytest.approx((10, 10 - 1.959964, 10 + 1.959964), abs=1e-6)


def test_unpaired_arrays_are_refused():
    with pytest.raises(ValueError, match="one length"):
        paired_interval(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match="needs sentences"):
        value_interval(np.zeros(0))
