"""What the parts of an evaluation measured, as numbers: a value a model, a mean a system, paired differences.

A system is one way of training, its models are its seeds. All models of one quantity are resampled alike, so that the
mean over a system's models and the difference of two systems have intervals by the same resamples (``intervals.py``).
They are over rows, the models given: what another seed would have given, the spread over models says.

Shapes: ``N`` rows of a set, ``R`` resamples, ``M`` models.
"""

import zlib
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from fastadv.evaluation.intervals import NUM_RESAMPLES, percentile_interval
from fastadv.evaluation.suite.schema import NUMBER_COLUMNS, Quantity, System
from fastadv.evaluation.text_report.rates import mcnemar
from fastadv.evaluation.vectors.sts import spearman_of

_CHUNK = 100
"""resamples at a time: a set of 10,000 rows has 8 MB of counts then"""


@dataclass(frozen=True)
class Measured:
    """One quantity of one model.

    What it can be resampled by is one of: ``rows``, whose mean it is; ``ranked``, whose Spearman correlation it is;
    ``draws``, its values over resamples; ``over``, the sets of the same metric whose mean it is; or nothing.
    """

    quantity: Quantity
    model: str
    value: Optional[float]
    """None: there is none, and ``why`` says why"""
    low: Optional[float] = None
    high: Optional[float] = None
    """of the value; None: by the resamples"""
    num: int = 0
    """rows measured"""
    why: Optional[str] = None
    rows: Optional[np.ndarray] = None
    """(N,) in the quantity's unit, NaN where a row does not count"""
    is_binary: bool = False
    """the rows are right or wrong"""
    ranked: Optional[np.ndarray] = None
    """(2, N): the model's scores and the human ones, NaN where a pair does not count"""
    draws: Optional[np.ndarray] = None
    """(R,)"""
    over: Tuple[str, ...] = ()


@dataclass
class Numbers:
    """The lists of an evaluation, as JSON holds them (`fastadv.evaluation.suite.schema`)."""

    quantities: List[dict] = field(default_factory=list)
    numbers: List[dict] = field(default_factory=list)
    differences: List[dict] = field(default_factory=list)


def all_numbers(
    systems: Sequence[System],
    measured: Sequence[Measured],
    seed: int = 0,
    whys: Optional[Mapping[Tuple[str, str], str]] = None,
) -> Numbers:
    """Every model's value, every system's mean and spread, and each later system's difference to the first.

    Args:
        measured: in any order; a quantity comes where it is first met.
        seed: of the resamples.
        whys: (part, model) → why it has nothing of that part.

    A mean is n/a where a model of the system has no value: a mean over the others would be of other seeds.
    """
    by_quantity: Dict[Quantity, Dict[str, Measured]] = {}
    for found in measured:
        by_quantity.setdefault(found.quantity, {})[found.model] = found
    result, draws = Numbers(), {}
    for quantity, found in by_quantity.items():
        result.quantities.append(quantity._asdict())
        draws[quantity] = _draws(quantity, found, draws, seed)
    for quantity, found in by_quantity.items():
        for system in systems:
            result.numbers += _of_system(quantity, system, found, draws[quantity], seed, whys or {})
        for system in systems[1:]:
            difference = _difference(quantity, systems[0], system, found, draws[quantity], seed)
            if difference is not None:
                result.differences.append(difference)
    adjusted = holm([row["p_value"] for row in result.differences])
    for row, p_value in zip(result.differences, adjusted):
        row["p_holm"] = p_value
    return result


def holm(p_values: Sequence[float]) -> List[float]:
    """Adjusted for how many there are, so that any of them below α is wrong in a share α of families (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, row in enumerate(sorted(range(len(p_values)), key=lambda row: p_values[row])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[row]))
        adjusted[row] = largest
    return adjusted


def mean_draws(rows: np.ndarray, seed: Sequence[int], num_resamples: int = NUM_RESAMPLES) -> np.ndarray:
    """(M, R): the mean of each of ``rows`` (M, N) over resamples of the rows; those that are NaN do not count."""
    is_known = np.isfinite(rows)
    values, known = np.where(is_known, rows, 0.0), is_known.astype(np.float64)
    drawn = []
    for counts in _resamples(rows.shape[1], seed, num_resamples):
        total = known @ counts.T
        # A resample may hold none of the rows that count: it says no more than the sample.
        whole = (values.sum(axis=1) / np.maximum(known.sum(axis=1), 1))[:, None]
        drawn.append(np.where(total > 0, values @ counts.T / np.maximum(total, 1), whole))
    return np.concatenate(drawn, axis=1)


def spearman_draws(ranked: np.ndarray, seed: Sequence[int], num_resamples: int = NUM_RESAMPLES) -> np.ndarray:
    """(M, R): Spearman × 100 of ``ranked`` (M, 2, N) over resamples of the pairs, with the ranks of each resample.

    A value drawn c times holds c places; all copies of it, and all equal values, have the mean of their places.
    Resamples in which one side is constant have 0. Pairs with a NaN do not count.
    """
    is_known = [np.isfinite(model).all(axis=0) for model in ranked]
    orders = [
        [np.unique(np.where(known, side, 0), return_inverse=True)[1] for side in model]
        for model, known in zip(ranked, is_known)
    ]
    drawn: List[List[np.ndarray]] = [[] for _ in ranked]
    for counts in _resamples(ranked.shape[2], seed, num_resamples):
        for number, sides in enumerate(orders):
            of_known = counts * is_known[number]
            x, y = (_mean_ranks(of_known, groups) for groups in sides)
            drawn[number].append(100 * _weighted_correlation(of_known, x, y))
    return np.stack([np.concatenate(parts) for parts in drawn])


def f1_draws(
    is_right: np.ndarray, is_positive: np.ndarray, seed: Sequence[int], num_resamples: int = NUM_RESAMPLES
) -> np.ndarray:
    """(R,): F1 × 100 over resamples of the rows, of two classes, from which rows are right and of the class (N,)."""
    found, is_wrong = is_right & is_positive, ~is_right
    drawn = []
    for counts in _resamples(len(is_right), seed, num_resamples):
        # A wrong row is a false positive or a false negative.
        twice, wrong = 2 * (counts @ found), counts @ is_wrong
        drawn.append(100 * twice / np.maximum(twice + wrong, 1))
    return np.concatenate(drawn)


def _mean_ranks(counts: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(R, N): the mean rank of each row's value in each resample; ``groups`` (N,) number the values in their order."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ends = np.cumsum(sizes, axis=1)
    return (ends - (sizes - 1) / 2)[:, groups]


def _weighted_correlation(counts: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(R,): Pearson's correlation of x and y (R, N), row n counted ``counts[:, n]`` times."""
    total = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    x = x - (counts * x).sum(axis=1, keepdims=True) / total
    y = y - (counts * y).sum(axis=1, keepdims=True) / total
    spread = np.sqrt((counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1))
    return np.where(spread > 0, (counts * x * y).sum(axis=1) / np.where(spread > 0, spread, 1), 0.0)


def _resamples(num_rows: int, seed: Sequence[int], num_resamples: int) -> Iterator[np.ndarray]:
    """Counts (at most `_CHUNK`, N), ``num_resamples`` in all, as `intervals.resample_counts` draws them at once."""
    draw = np.random.default_rng(list(seed))
    for begin in range(0, num_resamples, _CHUNK):
        size = min(_CHUNK, num_resamples - begin)
        yield draw.multinomial(num_rows, np.full(num_rows, 1 / num_rows), size).astype(np.float64)


def resample_seed(quantity: Quantity, seed: int) -> List[int]:
    """By which a quantity's rows are resampled, of all models alike."""
    # One set has the same resamples for every metric and radius, two sets have different ones.
    return [seed, zlib.crc32(f"{quantity.part}/{quantity.set}".encode())]


def _draws(
    quantity: Quantity, found: Dict[str, Measured], earlier: Dict[Quantity, Dict[str, np.ndarray]], seed: int
) -> Dict[str, np.ndarray]:
    """model → (R,), of those that can be resampled."""
    drawn: Dict[str, np.ndarray] = {}
    seeds = resample_seed(quantity, seed)
    for kind, resampled in (("rows", mean_draws), ("ranked", spearman_draws)):
        arrays = {model: getattr(one, kind) for model, one in found.items() if one.value is not None}
        arrays = {model: array for model, array in arrays.items() if array is not None}
        for shape in dict.fromkeys(array.shape for array in arrays.values()):
            models = [model for model, array in arrays.items() if array.shape == shape]
            drawn.update(zip(models, resampled(np.stack([arrays[model] for model in models]), seeds)))
    for model, one in found.items():
        if one.value is None:
            continue
        if one.draws is not None:
            drawn[model] = one.draws
        elif one.over:
            parts = [earlier.get(quantity._replace(set=name), {}).get(model) for name in one.over]
            if all(part is not None for part in parts):
                drawn[model] = np.mean(parts, axis=0)
        if one.rows is not None:
            # SentEval's mean over folds is not quite that of all rows; less than that is rounding.
            shift = one.value - float(np.nanmean(one.rows))
            drawn[model] = drawn[model] + shift * (abs(shift) > 1e-9)
    return drawn


def _of_system(
    quantity: Quantity,
    system: System,
    found: Dict[str, Measured],
    draws: Dict[str, np.ndarray],
    seed: int,
    whys: Mapping[Tuple[str, str], str],
) -> List[dict]:
    """A row a model of the system, and one of their mean."""
    known = {**quantity.place, "system": system.name, "unit": quantity.unit, "better": quantity.better}
    row = {**dict.fromkeys(NUMBER_COLUMNS), "num": 0, "seed": seed, **known}
    rows = []
    for model in system.models:
        one = found.get(model)
        if one is None:
            one = Measured(quantity, model, None, why=whys.get((quantity.part, model), "not measured"))
        bounds = {"low": one.low, "high": one.high}
        if one.low is None and one.value is not None and model in draws:
            bounds = vars(percentile_interval(one.value, draws[model]))
        rows.append({**row, "model": model, **bounds, "value": one.value, "num": one.num, "why": one.why})
    mean = {**row, "num": max(row["num"] for row in rows)}
    missing = [row for row in rows if row["value"] is None]
    if missing:
        said = missing[0]["why"] or "no value"
        is_said_of_all = all(row["why"] == missing[0]["why"] for row in rows)
        mean["why"] = said if is_said_of_all else f"{len(missing)} of {len(rows)} models have no value: {said}"
        return [*rows, mean]
    values = [row["value"] for row in rows]
    mean["value"] = float(np.mean(values))
    if len(rows) == 1:
        mean.update(low=rows[0]["low"], high=rows[0]["high"])
    else:
        mean["spread"] = float(np.std(values, ddof=1))
        if all(model in draws for model in system.models):
            drawn = np.mean([draws[model] for model in system.models], axis=0)
            mean.update(vars(percentile_interval(mean["value"], drawn)))
    return [*rows, mean]


def _difference(
    quantity: Quantity,
    baseline: System,
    system: System,
    found: Dict[str, Measured],
    draws: Dict[str, np.ndarray],
    seed: int,
) -> Optional[dict]:
    """The system less the baseline, None where there is nothing to compare."""
    models, split = [*baseline.models, *system.models], len(baseline.models)
    if not all(model in draws for model in models):
        return None
    if len({_shapes(found[model], draws[model]) for model in models}) > 1:
        return None
    values, num = [found[model].value for model in models], min(found[model].num for model in models)
    drawn, p_value, test = [draws[model] for model in models], None, "paired bootstrap"
    for kind, value_of, resampled in (("ranked", _spearman, spearman_draws), ("rows", np.nanmean, mean_draws)):
        # Models that were right on other texts are compared on those that all of them were attacked on.
        common = _common_rows([getattr(found[model], kind) for model in models])
        if common is None:
            continue
        is_common = np.isfinite(common).all(axis=tuple(range(common.ndim - 1)))
        if kind == "rows" or not is_common.all():
            num = int(is_common.sum())
        if not is_common.all():
            values = [value_of(of_model) for of_model in common] if num else [np.nan]
            if not np.isfinite(values).all():
                return None
            drawn = list(resampled(common, resample_seed(quantity, seed)))
        if kind == "rows" and len(models) == 2 and found[models[0]].is_binary:
            first, second = common[:, is_common]
            p_value, test = mcnemar(int((first > second).sum()), int((first < second).sum())), "McNemar, exact"
    change = np.mean(drawn[split:], axis=0) - np.mean(drawn[:split], axis=0)
    interval = percentile_interval(float(np.mean(values[split:])) - float(np.mean(values[:split])), change)
    return {
        **quantity.place,
        "system": system.name,
        "baseline": baseline.name,
        **vars(interval),
        "p_value": bootstrap_p_value(change) if p_value is None else p_value,
        "test": test,
        "num": num,
    }


def _spearman(ranked: np.ndarray) -> float:
    """Of the pairs (2, N) that count."""
    return spearman_of(*ranked[:, np.isfinite(ranked).all(axis=0)])


def bootstrap_p_value(draws: np.ndarray) -> float:
    """Two-sided, of no difference: twice the share of resamples on the rarer side of 0 (never 0 itself)."""
    rarer = min((draws <= 0).sum(), (draws >= 0).sum())
    return float(min(1.0, 2 * (1 + rarer) / (1 + len(draws))))


def _common_rows(rows: Sequence[Optional[np.ndarray]]) -> Optional[np.ndarray]:
    """(M, N) or (M, 2, N), NaN in all where a row is NaN in one; None where a model has no rows."""
    if any(row is None for row in rows):
        return None
    stacked = np.stack(rows).astype(np.float64)
    stacked[..., ~np.isfinite(stacked).all(axis=tuple(range(stacked.ndim - 1)))] = np.nan
    return stacked


def _shapes(one: Measured, draws: np.ndarray) -> tuple:
    """Equal for what can be compared row by row."""
    return tuple(None if array is None else array.shape for array in (one.rows, one.ranked, draws))


def spearman_measured(quantity: Quantity, model: str, scores: Sequence[float], human: Sequence[float]) -> Measured:
    """Spearman × 100 of a model's scores (N,) and the human ones; n/a where one side is constant. A pair whose score is
    NaN does not count."""
    ranked = np.stack([scores, human]).astype(np.float64)
    value, (scores, human) = _spearman(ranked), ranked[:, np.isfinite(ranked).all(axis=0)]
    if not np.isfinite(value):
        if len(human) < 2:
            why = "a single pair" if len(human) else "no pair counts"
        else:
            why = "the model gives every pair the same score" if np.ptp(scores) == 0 else "all human scores are equal"
        return Measured(quantity, model, None, num=len(human), why=why)
    return Measured(quantity, model, value, num=len(human), ranked=ranked)
