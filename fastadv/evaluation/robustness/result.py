"""What was measured as numbers with intervals, ready for JSON, and as tables.

``robustness.json`` holds ``settings``, ``data``, ``models`` with fingerprints, ``quantities`` with units, and three
lists: ``rows``, one a model, edit and strength; ``choices``, one a model, edit and flip; ``sts``, one a model, set,
edit and strength. Each quantity of a row has ``value``, ``low`` and ``high``, and after the first model
``difference``, ``difference_low`` and ``difference_high``: to the first model, on the same copies. A ``share`` of null
is one word.
"""

import zlib
from dataclasses import asdict
from functools import lru_cache
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from fastadv.config.commands import encoding_words
from fastadv.config.robustness import RobustnessSettings
from fastadv.evaluation.before_after.rows import table_row
from fastadv.evaluation.intervals import (
    CONFIDENCE,
    NUM_RESAMPLES,
    mean_statistic,
    paired_statistic_interval,
    percentile_interval,
    resample_counts,
    statistic_interval,
)
from fastadv.evaluation.robustness.edited import UNCHANGED, Drawn, RobustnessData, Variant
from fastadv.evaluation.robustness.measure import Measured, Movement
from fastadv.evaluation.suite.numbers import spearman_draws
from fastadv.evaluation.text_report.rates import share_of
from fastadv.evaluation.vectors.sts import spearman_of
from fastadv.evaluation.versions import versions
from fastadv.pages.table import Column, Estimate, Table, shown_cell
from fastadv.pages.text_table import aligned

FORMAT = 1
NUM_STS_RESAMPLES = 500
"""a resample of a Spearman correlation ranks all pairs again, one of a mean is a row of a matrix product"""

QUANTITIES = {
    "cosine": ("cosine to the sentence", "", "higher"),
    "centred_cosine": ("centred cosine", "", "higher"),
    "retrieval": ("retrieval@1", "%", "higher"),
    "reciprocal_rank": ("MRR", "", "higher"),
    "nearer": ("edited nearer than flipped", "%", "higher"),
    "cosine_edited": ("cosine, edited", "", "higher"),
    "cosine_flipped": ("cosine, flipped", "", None),
    "spearman": ("Spearman", "x 100", "higher"),
    "change": ("change of Spearman", "x 100", "higher"),
}
"""key → what it is called, its unit, and which way is better"""

SHARES = ("retrieval", "nearer")
"""quantities that are shares of sentences"""


def record_of(
    settings: RobustnessSettings,
    data: RobustnessData,
    drawn: Drawn,
    measured: Mapping[str, Measured],
    facts: Mapping[str, dict],
    names: Mapping[str, str],
) -> dict:
    """What is in ``robustness.json``.

    Args:
        measured: model → its values, the first model first.
        facts: model → what is said of it.
        names: model → what it is called in tables.
    """
    first = next(iter(measured.values()))
    record: dict = {
        "kind": "robustness",
        "format": FORMAT,
        "versions": versions(),
        "settings": asdict(settings),
        "confidence": CONFIDENCE,
        "num_resamples": NUM_RESAMPLES,
        "num_sts_resamples": NUM_STS_RESAMPLES,
        "data": {
            "name": data.name,
            "num_sentences": len(data.sentences),
            "num_available": data.num_available,
            "num_pairs": {name: len(pairs) for name, pairs in data.pairs.items()},
            "sha256": data.sha256,
        },
        "quantities": {
            key: {"label": label, "unit": unit, "better": better} for key, (label, unit, better) in QUANTITIES.items()
        },
        "models": [{"name": names[model], "model": model, **facts[model]} for model in measured],
        "rows": [],
        "choices": [],
        "sts": [],
    }
    for model, of_model in measured.items():
        other = None if of_model is first else first
        record["rows"] += _rows(names[model], of_model.movement, other and other.movement, drawn, settings.seed)
        record["choices"] += _choices(names[model], of_model, other, settings.seed)
        record["sts"] += _sts(names[model], of_model, other, data, drawn, settings.seed)
    return record


def _rows(name: str, moved: Movement, first: Movement | None, drawn: Drawn, seed: int) -> list[dict]:
    rows = []
    for variant, values in moved.items():
        copies = [copy for copy in drawn.copies.get(variant, ()) if copy is not None]
        num = int(np.isfinite(values["cosine"]).sum())
        row = {
            **_place(name, variant),
            "num": num,
            "num_unchanged": 0 if variant == UNCHANGED else len(values["cosine"]) - num,
            "num_changes": float(np.mean([copy.num_changes for copy in copies])) if copies else None,
        }
        for key, of_key in values.items():
            row[key] = _mean(key, of_key, None if first is None else first[variant][key], seed)
        rows.append(row)
    return rows


def _choices(name: str, measured: Measured, first: Measured | None, seed: int) -> list[dict]:
    rows = []
    for (edit, flip), nearer in measured.choice.items():
        is_known = np.isfinite(nearer)
        row = {"model": name, "edit": edit.edit, "flip": flip.edit, "num": int(is_known.sum())}
        row["nearer"] = _mean("nearer", nearer, None if first is None else first.choice[edit, flip], seed)
        for key, variant in (("cosine_edited", edit), ("cosine_flipped", flip)):
            values, others = (
                None if some is None else np.where(is_known, some.movement[variant]["cosine"], np.nan)
                for some in (measured, first)
            )
            row[key] = _mean(key, values, others, seed)
        rows.append(row)
    return rows


def _sts(
    name: str, measured: Measured, first: Measured | None, data: RobustnessData, drawn: Drawn, seed: int
) -> list[dict]:
    rows = []
    for set_name, pairs in data.pairs.items():
        variants = [variant for variant, of_set in measured.sts if of_set == set_name]
        compared = [measured] if first is None else [measured, first]
        values = [[some.sts[variant, set_name] for variant in variants] for some in compared]
        scores = np.broadcast_to(pairs.scores, np.shape(values))
        ranked = np.stack([values, scores], axis=2)
        seeds = [seed, zlib.crc32(set_name.encode())]
        draws = [spearman_draws(of_model, seeds, NUM_STS_RESAMPLES) for of_model in ranked]
        points = [[spearman_of(cosines, pairs.scores) for cosines in of_model] for of_model in values]
        for number, variant in enumerate(variants):
            row = {**_place(name, variant), "set": set_name, "num": len(pairs), "num_unchanged": 0}
            row["spearman"] = _of_draws(*((of[number], d[number]) for of, d in zip(points, draws)))
            if variant != UNCHANGED:
                row["num_unchanged"] = drawn.pairs[variant, set_name].num_unchanged
                row["change"] = _of_draws(*((of[number] - of[0], d[number] - d[0]) for of, d in zip(points, draws)))
            rows.append(row)
    return rows


def _place(name: str, variant: Variant) -> dict:
    return {"model": name, "edit": variant.edit, "share": variant.share, "keeps_meaning": variant.is_kept}


def _mean(key: str, values: np.ndarray, first: np.ndarray | None, seed: int) -> dict:
    """The mean of those values (N,) that are known, in the quantity's unit; a share's interval is Wilson's."""
    factor = 100.0 if key in SHARES else 1.0
    known = np.isfinite(values)
    if not known.any():
        return {"value": None, "low": None, "high": None}
    statistic, counts = mean_statistic(factor * values[known]), _counts(int(known.sum()), seed)
    if key in SHARES:
        share = share_of(int(values[known].sum()), int(known.sum()))
        quantity = {name: factor * share[name] for name in ("value", "low", "high")}
    else:
        quantity = vars(statistic_interval(statistic, counts)).copy()
    if first is not None:
        change = vars(paired_statistic_interval(mean_statistic(factor * first[known]), statistic, counts))
        quantity.update(_difference(change))
    return quantity


def _of_draws(own: tuple[float, np.ndarray], first: tuple[float, np.ndarray] | None = None) -> dict:
    quantity = vars(percentile_interval(*own)).copy()
    if first is not None:
        quantity.update(_difference(vars(percentile_interval(own[0] - first[0], own[1] - first[1]))))
    return quantity


def _difference(interval: Mapping[str, float]) -> dict:
    return {
        "difference": interval["value"],
        "difference_low": interval["low"],
        "difference_high": interval["high"],
    }


@lru_cache(maxsize=2)
def _counts(num_sentences: int, seed: int) -> np.ndarray:
    """Most rows are of equally many sentences."""
    return resample_counts(num_sentences, seed=seed)


def robustness_rows(
    before: Measured,
    after: Measured,
    metrics: Sequence[str] = ("retrieval", "centred_cosine", "cosine"),
    seed: int = 0,
) -> list[dict]:
    """Rows of the table before → after (`fastadv.evaluation.before_after.before_after.compare`), of two models'
    values on the same copies: for each metric the edits that keep the meaning, and which copy is nearer.

    Returns:
        of each what `fastadv.evaluation.before_after.rows.table_row` gives, and ``edit``, ``metric`` (of `QUANTITIES`),
        ``words``, the strength or the flip, ``share``, the strength as a number, and ``num``, the sentences that have a
        place for the edit. Rows of which there is none are left out.

    Raises:
        ValueError: the two are not of the same copies.
    """
    rows, values_after = [], _by_row(after, metrics)
    for about, of_before in _by_row(before, metrics).items():
        of_after, label = values_after.get(about), about.label
        known = np.isfinite(of_before)
        if of_after is None or len(of_after) != len(known) or (np.isfinite(of_after) != known).any():
            raise ValueError(f"the measurements before and after do not match in {label!r}: measure both on one draw")
        num = int(known.sum())
        if num:
            statistics = mean_statistic(of_before[known]), mean_statistic(of_after[known])
            key = f"{about.edit}@{about.metric}, {about.words}"
            rows.append(table_row(key, label, "higher", statistics, _counts(num, seed), **about._asdict(), num=num))
    return rows


class _About(NamedTuple):
    """What a row of the table before → after is of."""

    edit: str
    metric: str
    words: str
    share: float | None = None
    """None: one word"""

    @property
    def label(self) -> str:
        if self.metric == "nearer":
            return f"{self.edit} nearer than {self.words}"
        return f"{QUANTITIES[self.metric][0]}, {self.edit}, {self.words}"


def _by_row(measured: Measured, metrics: Sequence[str]) -> dict[_About, np.ndarray]:
    values = {
        _About(one.edit, metric, one.label.removeprefix(f"{one.edit}, "), one.share): of_variant[metric]
        for metric in metrics
        for one, of_variant in measured.movement.items()
        if one.is_kept and one != UNCHANGED
    }
    choices = {_About(edit.edit, "nearer", flip.edit): nearer for (edit, flip), nearer in measured.choice.items()}
    return {**values, **choices}


def title_of(record: dict) -> str:
    """What was measured on, in a line."""
    data = record["data"]
    words = f"{data['num_sentences']:,} of {data['num_available']:,} sentences of {data['name']}"
    return f"{words}; {CONFIDENCE:.0%} intervals over sentences"


def tables_of(record: dict) -> list[Table]:
    """How vectors move, which copy is nearer, and STS, a row a line; differences to the first model in their own."""
    tables = [_table(record, *described) for described in _TABLES]
    if len(record["models"]) > 1:
        tables += [_table(record, *described, is_difference=True) for described in _TABLES]
    return [table for table in tables if table.rows]


_TABLES = (
    (
        "rows",
        "Edited copies beside their sentences",
        ("edit", "words"),
        ("num", "num_unchanged"),
        ("cosine", "centred_cosine", "retrieval", "reciprocal_rank"),
    ),
    (
        "choices",
        "Which copy is nearer to the sentence: one word edited so that the meaning stays, or one change of the meaning",
        ("edit", "flip"),
        ("num",),
        ("cosine_edited", "cosine_flipped", "nearer"),
    ),
    (
        "sts",
        "STS with both sentences edited",
        ("set", "edit", "words"),
        ("num", "num_unchanged"),
        ("spearman", "change"),
    ),
)
_COUNTS = {"num": "measured", "num_unchanged": "left out"}
_STS_COUNTS = {"num": "pairs", "num_unchanged": "sentences as they were"}


def _table(
    record: dict,
    key: str,
    caption: str,
    words: Sequence[str],
    counts: Sequence[str],
    quantities: Sequence[str],
    is_difference: bool = False,
) -> Table:
    has_models = len(record["models"]) > 1
    form = "+.3f" if is_difference else ".3f"
    columns = [Column("model", is_text=True)] if has_models else []
    columns += [Column(name, is_text=True) for name in words]
    columns += [] if is_difference else [Column((_STS_COUNTS if key == "sts" else _COUNTS)[name]) for name in counts]
    for name in quantities:
        label, unit, _ = QUANTITIES[name]
        own = form.replace("3", "1") if unit == "%" else form.replace("3", "2") if unit else form
        columns.append(Column(f"{label}, {unit}" if unit else label, own, is_interval=True))
    first = record["models"][0]["name"]
    rows = []
    for row in record[key]:
        is_left_out = row["edit"] == UNCHANGED.edit and key == "rows"
        if is_left_out or (is_difference and row["model"] == first):
            continue
        cells = [row["model"]] if has_models else []
        cells += [_words(row) if name == "words" else row[name] for name in words]
        cells += [] if is_difference else [row[name] for name in counts]
        rows.append([*cells, *(_estimate(row.get(name), is_difference) for name in quantities)])
    if is_difference:
        return Table(f"{key}-differences", f"{caption}: less {first}, on the same copies", columns, rows)
    return Table(key, caption if has_models else f"{caption}, {first}", columns, rows)


def _words(row: dict) -> str:
    if row["edit"] == UNCHANGED.edit:
        return ""
    return Variant(row["edit"], row["share"], row["keeps_meaning"]).words


def _estimate(quantity: dict | None, is_difference: bool) -> Estimate:
    if quantity is None:
        return Estimate(None)
    names = ("value", "low", "high")
    if is_difference:
        names = ("difference", "difference_low", "difference_high")
    return Estimate(*map(quantity.get, names))


def robustness_table(record: dict) -> str:
    """Aligned lines for a terminal."""
    parts = [title_of(record)]
    for table in tables_of(record):
        head = [column.name for column in table.columns]
        lines = [[shown_cell(cell, column) for cell, column in zip(row, table.columns)] for row in table.rows]
        parts += ["", table.caption, aligned([head, *lines])]
    parts += ["", *(f"{model['name']}: {encoding_words(model)}" for model in record["models"])]
    return "\n".join(parts)
