"""A row of the table before → after: one quantity of two models on the same sentences.

``R`` resamples of ``N`` sentences are drawn once for both models, so that the interval of the difference is paired.
"""

from typing import Tuple

import numpy as np

from fastadv.evaluation.intervals import Statistic, paired_statistic_interval, statistic_interval

_ENDS = ("low", "high")


def table_row(
    key: str, label: str, better: str, statistics: Tuple[Statistic, Statistic], counts: np.ndarray, radius=None, **about
) -> dict:
    """A row as plain numbers, ready for JSON.

    Args:
        key: short and unique in its table; what stands before an @ is common to a group of rows.
        label: what stands in the table, where the row has no ``radius``.
        better: "higher" or "lower".
        statistics: of the model before training and of the one after it.
        counts: (R, N) resamples.
        about: more entries of the row.

    Returns:
        ``key``, ``label``, ``radius``, ``better`` and ``about``; ``before``, ``after``, ``difference``, and the bounds
        ``before_low``, ``before_high``, ``after_low``, ``after_high`` and, of the difference, ``low``, ``high``.
    """
    before, after = (statistic_interval(statistic, counts) for statistic in statistics)
    difference = paired_statistic_interval(*statistics, counts)
    described = {"key": key, "label": label, "radius": None if radius is None else float(radius), "better": better}
    values = {"before": before.value, "after": after.value, "difference": difference.value}
    sides = {f"{name}_{end}": getattr(of, end) for name, of in (("before", before), ("after", after)) for end in _ENDS}
    return {**described, **about, **values, **{end: getattr(difference, end) for end in _ENDS}, **sides}
