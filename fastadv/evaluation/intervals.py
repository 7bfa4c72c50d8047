"""95 % intervals by the bootstrap over sentences (percentile method; Efron & Tibshirani 1993, chapter 13).

Shapes: ``N`` sentences, ``R`` resamples. A resample is a row of counts: how often each sentence was drawn. Every
statistic here is a function of counts, so that means and pair statistics resample alike and in one matrix product;
two models are compared on the same resamples, which is what makes an interval paired.
"""

from dataclasses import dataclass
from typing import Callable

import numpy as np
from scipy.stats import norm

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000

Statistic = Callable[[np.ndarray], np.ndarray]
"""counts (R, N) -> values (R,)"""


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds around it, in the estimate's own unit."""

    value: float
    low: float
    high: float


def resample_counts(num_sentences: int, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> np.ndarray:
    """(R, N) float64: N draws with replacement out of N sentences, R times; each row sums to N.

    Raises:
        ValueError: no sentence, or no resample.
    """
    if num_sentences < 1 or num_resamples < 1:
        raise ValueError(f"a bootstrap needs sentences and resamples, got {num_sentences} and {num_resamples}")
    draws = np.random.default_rng(seed).multinomial(
        num_sentences, np.full(num_sentences, 1 / num_sentences), num_resamples
    )
    return draws.astype(np.float64)


def mean_statistic(values: np.ndarray) -> Statistic:
    """The mean of one value a sentence, ``values`` (N,)."""
    values = np.asarray(values, dtype=np.float64)
    return lambda counts: counts @ values / values.shape[0]


def known_mean_statistic(values: np.ndarray) -> Statistic:
    """The mean of those ``values`` (N,) that are not NaN.

    All N are resampled, so that two models whose known values are of other sentences meet the same resamples.

    Raises:
        ValueError: none is known.
    """
    values = np.asarray(values, dtype=np.float64)
    is_known = np.isfinite(values)
    if not is_known.any():
        raise ValueError("a mean needs a value that is known")
    known, filled = is_known.astype(np.float64), np.where(is_known, values, 0.0)

    def statistic(counts: np.ndarray) -> np.ndarray:
        total = counts @ known
        # A resample may hold none of the known values: it says no more than the sample.
        return np.where(total > 0, counts @ filled / np.maximum(total, 1), filled.sum() / known.sum())

    return statistic


def log_pair_mean_statistic(kernel: np.ndarray) -> Statistic:
    """The log of the mean of ``kernel`` (N, N; zero diagonal) over pairs of different sentences.

    Two draws of one sentence are no pair: counting them would add distance-0 pairs that the data do not have.
    """

    def statistic(counts: np.ndarray) -> np.ndarray:
        pair_sum = ((counts @ kernel) * counts).sum(axis=1)
        num_pairs = counts.sum(axis=1) ** 2 - (counts**2).sum(axis=1)
        return np.log(pair_sum / num_pairs)

    return statistic


def statistic_interval(statistic: Statistic, counts: np.ndarray) -> Interval:
    """The statistic on all sentences once, and the 2.5 % and 97.5 % quantiles over resamples.

    Where no resample differs (every value equal) the interval has no width: the sample says nothing of values it
    does not hold.
    """
    return percentile_interval(statistic(np.ones((1, counts.shape[1])))[0], statistic(counts))


def percentile_interval(value: float, draws: np.ndarray) -> Interval:
    """``value`` between the 2.5 % and 97.5 % quantiles of a statistic's values over resamples, ``draws`` (R,)."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(value), float(low), float(high))


def normal_interval(value: float, draws: np.ndarray) -> Interval:
    """``value`` ± 1.96 standard deviations of ``draws`` (R,): for statistics that repeated sentences shift.

    A resample holds some 63 % of the sentences, others twice and more, so it spans fewer directions than the sample:
    every draw of a rank lies below the sample's, and quantiles of the draws would not hold the value itself.
    """
    half_width = norm.ppf(0.5 + CONFIDENCE / 2) * float(np.std(draws, ddof=1))
    return Interval(float(value), float(value) - half_width, float(value) + half_width)


def paired_statistic_interval(before: Statistic, after: Statistic, counts: np.ndarray) -> Interval:
    """after − before, both on the same resamples."""
    return statistic_interval(lambda rows: after(rows) - before(rows), counts)


def value_interval(values: np.ndarray, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Interval:
    """The mean of ``values`` (N,) with its interval."""
    values = np.asarray(values, dtype=np.float64)
    return statistic_interval(mean_statistic(values), resample_counts(len(values), num_resamples, seed))


def paired_interval(
    before: np.ndarray, after: np.ndarray, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Interval:
    """The mean of after − before over the same N sentences, with its paired interval.

    Raises:
        ValueError: the two arrays are not one value for each of the same sentences.
    """
    before, after = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1:
        raise ValueError(f"paired values need two arrays (N,) of one length, got {before.shape} and {after.shape}")
    return value_interval(after - before, num_resamples, seed)
