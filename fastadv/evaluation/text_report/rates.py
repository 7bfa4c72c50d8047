"""What the rows of a text attack say, as counts and rates; n/a is None.

A success rate is of the texts that were right before and attacked to an end: skipped texts (wrong before) and errors
are counted apart. At a cap on the words changed, a success beyond the cap counts as failed. Shares have Wilson's
interval, means one by the bootstrap (``intervals.py``), and two models are compared on the texts that both get right,
by McNemar's exact test (METHODS.md, section 5).
"""

from typing import Dict, List, Sequence, Tuple

import numpy as np
from scipy.stats import binomtest

from fastadv.config.text_attack import ANY, CAPS, Cap
from fastadv.evaluation.intervals import CONFIDENCE, paired_interval, value_interval
from fastadv.evaluation.text.rows import ERROR, FAILED, OUTCOMES, SKIPPED, SUCCEEDED, TextAttackRow

Rows = Sequence[TextAttackRow]


def is_fooled(row: TextAttackRow, cap: Cap = ANY) -> bool:
    """Whether the attack succeeded within the cap."""
    return row.outcome == SUCCEEDED and cap.admits(row)


def rates(rows: Rows) -> dict:
    """Counts, shares and means of one model's rows, ready for JSON.

    Returns:
        ``num_texts`` and of them ``num_succeeded``, ``num_failed``, ``num_skipped``, ``num_error``; ``num_attacked``,
        the first two together; ``num_limited`` by the limit that ended an attack. Shares, each with ``value``, ``low``,
        ``high``, ``count`` and ``total``: ``accuracy`` and ``robust_accuracy`` (right before, right after; of all
        texts but errors), ``success`` by the name of the cap (of the attacked). ``accuracy_drop``, their difference.
        Means with ``value``, ``low``, ``high``: ``queries``, ``score`` and ``score_adversarial`` over attacked texts,
        ``words_changed`` and ``share_changed`` (of a text's words) over successes.
    """
    counts = {outcome: sum(row.outcome == outcome for row in rows) for outcome in OUTCOMES}
    attacked = [row for row in rows if row.is_attacked]
    succeeded = [row for row in rows if row.outcome == SUCCEEDED]
    num_known = len(rows) - counts[ERROR]
    accuracy, robust = share_of(len(attacked), num_known), share_of(counts[FAILED], num_known)
    return {
        "num_texts": len(rows),
        **{f"num_{outcome}": counts[outcome] for outcome in (SUCCEEDED, FAILED, SKIPPED, ERROR)},
        "num_attacked": len(attacked),
        "num_limited": {name: sum(row.note == name for row in attacked) for name in ("queries", "time")},
        "accuracy": accuracy,
        "robust_accuracy": robust,
        "accuracy_drop": None if num_known == 0 else counts[SUCCEEDED] / num_known,
        "success": {cap.name: share_of(sum(is_fooled(row, cap) for row in attacked), len(attacked)) for cap in CAPS},
        "queries": mean_of([row.num_queries for row in attacked]),
        "words_changed": mean_of([row.num_words_changed for row in succeeded]),
        "share_changed": mean_of([row.num_words_changed / row.num_words for row in succeeded if row.num_words]),
        "score": mean_of([row.score for row in attacked]),
        "score_adversarial": mean_of([row.score_adversarial for row in attacked]),
    }


def rates_by_class(rows: Rows, labels: Sequence[str]) -> Dict[str, dict]:
    """`rates` of the texts of each class that has any, in the order of ``labels``, then as found."""
    found = dict.fromkeys([*labels, *(row.label for row in rows)])
    of_class: Dict[str, List[TextAttackRow]] = {label: [] for label in found}
    for row in rows:
        of_class[row.label].append(row)
    return {label: rates(some) for label, some in of_class.items() if some}


def predicted_shares(rows: Rows, labels: Sequence[str]) -> Dict[str, dict]:
    """Of the texts whose prediction is known, the share of each class before the attack and after it.

    An attack that drives every text to one class shows here.
    """
    known = [row for row in rows if row.outcome != ERROR]
    names = dict.fromkeys([*labels, *(name for row in known for name in (row.predicted, row.predicted_adversarial))])
    return {
        name: {
            "before": share_of(sum(row.predicted == name for row in known), len(known))["value"],
            "after": share_of(sum(row.predicted_adversarial == name for row in known), len(known))["value"],
        }
        for name in names
    }


def paired(first: Rows, second: Rows, cap: Cap = ANY) -> dict:
    """Two models on the texts that both were right on and that both were attacked on to an end.

    Returns:
        ``num_texts``; ``num_both``, ``num_only_first``, ``num_only_second``, ``num_neither``: whom the attack fooled;
        ``difference`` with ``value``, ``low``, ``high``: the first's success rate less the second's, positive where the
        second holds better, interval by the paired bootstrap; ``p_value``: McNemar's exact test, two-sided.

    Raises:
        ValueError: a row of both that is not the same text.
    """
    fooled = np.array([(is_fooled(a, cap), is_fooled(b, cap)) for a, b in _common(first, second)], dtype=bool)
    before, after = fooled.reshape(-1, 2).T
    only_first, only_second = int((before & ~after).sum()), int((after & ~before).sum())
    return {
        "num_texts": len(before),
        "num_both": int((before & after).sum()),
        "num_only_first": only_first,
        "num_only_second": only_second,
        "num_neither": int((~before & ~after).sum()),
        "difference": _nothing() if not len(before) else vars(paired_interval(after, before)),
        "p_value": mcnemar(only_first, only_second) if len(before) else None,
    }


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of McNemar's exact test: of the texts on which two models differ, each is as likely to be
    the one or the other's. 1 where they differ on none."""
    total = only_first + only_second
    return float(binomtest(only_first, total, 0.5).pvalue) if total else 1.0


def share_of(count: int, total: int) -> dict:
    """``value``, ``low`` and ``high`` (Wilson 1927, 95 %), None where ``total`` is 0; ``count``, ``total``."""
    if total == 0:
        return {**_nothing(), "count": count, "total": total}
    interval = binomtest(count, total).proportion_ci(CONFIDENCE, method="wilson")
    return {
        "value": count / total,
        "low": float(interval.low),
        "high": float(interval.high),
        "count": count,
        "total": total,
    }


def mean_of(values: Sequence[float]) -> dict:
    """The mean with its interval; None where there is no value, or one that is not finite."""
    array = np.asarray(values, dtype=np.float64)
    return _nothing() if not len(array) or not np.isfinite(array).all() else vars(value_interval(array))


def _nothing() -> dict:
    return {"value": None, "low": None, "high": None}


def _common(first: Rows, second: Rows) -> List[Tuple[TextAttackRow, TextAttackRow]]:
    by_row = {row.row: row for row in second}
    both = [(row, by_row[row.row]) for row in first if row.row in by_row]
    for a, b in both:
        if (a.first, a.second, a.label) != (b.first, b.second, b.label):
            raise ValueError(f"row {a.row} is one text for one model and another for the other; they are no pair")
    return [(a, b) for a, b in both if a.is_attacked and b.is_attacked]
