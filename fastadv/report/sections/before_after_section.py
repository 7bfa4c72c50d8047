"""The comparison before → after of runs: cards, table and curves."""

import math
from html import escape
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from fastadv.evaluation.before_after.results_table import caption, reasons, row_label, verdict
from fastadv.pages.chart import Chart, Point, Series
from fastadv.pages.table import Column, Estimate, Table
from fastadv.report.run_record import RunRecord
from fastadv.report.sections.section import Html, Part, Section

_ARROWS = {"higher": " ↑", "lower": " ↓"}
_VERDICTS = {"better": "better", "worse": "worse", "unclear": "no clear change"}

_TABLE_HEAD = (
    '<tr><th scope="col"></th><th scope="col">before</th><th scope="col">after</th><th scope="col">change</th>'
    '<th scope="col" class="wide">95 % interval</th><th scope="col" class="wide"></th></tr>'
)
_MEANINGS = {
    "retrieval": "share of attacked sentences whose own clean vector is still the nearest of all held-out ones.",
    "centred_cosine": "mean cosine of attacked and clean vector after the model's own mean vector is subtracted from "
    "both; a model that maps everything to nearly one direction does not score here.",
    "cosine": "the same without subtracting; it rises also when all vectors draw together, so the centred one says "
    "more.",
    "alignment": "mean squared distance of one sentence's unit vectors under two dropout masks, lower is better; no "
    "labelled pairs are involved, so it compares these two models only.",
    "uniformity": "log of the mean of exp(−2·squared distance) over pairs of sentences: 0 if all coincide, lower is "
    "more spread.",
    "deepwordbug": "an attack on the letters: it mistypes words, those that matter most first, until a logistic "
    "regression on the model's frozen vectors is wrong. Share of the texts that were right before on which it succeeds "
    "with at most so many words changed.",
    "typos": "vectors of mistyped sentences beside those of the sentences: their cosine, whether the sentence is still "
    "the nearest of all held-out ones, and the share of sentences to which one typing error is nearer than a change of "
    "what they say.",
    "probe": "accuracy of a logistic regression on the frozen vectors, one fitted to each model; at a radius it is "
    "attacked through the probe itself, and a sentence counts only if it stays right. Mistyped words are noise, no "
    "attack.",
}
"""key -> one sentence"""

_GROUPS = {
    "alignment": "geometry, clean",
    "uniformity": "geometry, clean",
    "deepwordbug": "DeepWordBug",
    "typos": "mistyped words",
}
"""first part of a row's key → what rows with it stand under; of others their label"""


class _Curve(NamedTuple):
    """A chart of rows, before and after."""

    key: str
    title: str
    x_label: str
    y_label: str
    caption: str
    metric: str = ""
    """of the rows of mistyped words"""
    has_start: bool = True
    """Whether the curve begins where nothing is done to a sentence, and every value is 1."""


_AT_RADII, _NO_ATTACK = "attack radius, multiples of RMS(X)", "At radius 0 nothing is attacked."
_FOOLED, _BEFORE_ATTACK = "DeepWordBug succeeds", "Of the texts that were right before the attack."
_CURVES = (
    _Curve("deepwordbug", "Attack by typing errors", "words changed", _FOOLED, _BEFORE_ATTACK, has_start=False),
    _Curve("typos", "Mistyped sentences", "words mistyped", "cosine to the sentence", "", "cosine"),
    _Curve("retrieval", "retrieval@1", _AT_RADII, "retrieval@1", _NO_ATTACK),
    _Curve("centred_cosine", "centred cosine", _AT_RADII, "centred cosine", _NO_ATTACK),
)
_CARDS = ("deepwordbug@2", "typos@cosine, one word", "uniformity", "probe@0")
_CARDS_AT_RADIUS = ("retrieval", "centred_cosine")
LOOK_BEFORE, LOOK_AFTER = 4, 0
"""of the two series of one run: the colours of --before and --after in the stylesheet"""
_SHARED = 6
"""look, grey, of what all runs began from"""


def results_sections(runs: Dict[str, RunRecord]) -> List[Section]:
    """Of the runs that were measured before and after; name -> run."""
    measured = {name: run for name, run in runs.items() if run.results}
    if not measured:
        return []
    if len(runs) == 1:
        ((name, run),) = measured.items()
        return _of_one(name, run)
    return _of_several(measured, list(runs))


def curves_of(run: RunRecord) -> List[Chart]:
    """Before and after training against the radius of the attack, of a run that needs no name."""
    curves = [curve for curve in _CURVES if run.results and _rows_of(run.results, curve)]
    return [_chart({run.name: run}, curve, {}, is_alone=True) for curve in curves]


def definitions(pairs: Sequence, css: str = "") -> str:
    """A list of names and what they are, escaped."""
    items = "\n".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(text))}</dd>" for name, text in pairs)
    return f'<dl class="{css}">\n{items}\n</dl>\n'


def _of_one(name: str, run: RunRecord) -> List[Section]:
    results = run.results
    compared = [
        Html(
            f'<p class="note">{escape(caption(results))}. Text: {escape(str(results.get("held_out")))}. '
            "Intervals are 95 % by a paired bootstrap over sentences; where one holds 0 the change is not clear.</p>\n"
        ),
        *(
            Html(f'<p class="warning">{escape(str(one))}</p>\n')
            for one in (*reasons(results), *results.get("warnings", []))
        ),
        _results_table({name: run}, _table(results)),
    ]
    charts = curves_of(run)
    labels = {_base(row): row["label"].split(" (")[0] for row in results["rows"]}
    labels |= {key: _GROUPS[key] for key in ("deepwordbug", "typos") if key in labels}
    meanings = [(labels[key], text) for key, text in _MEANINGS.items() if key in labels]
    found = [Section("", [Html(_cards(results))]), Section("Before and after training", compared)]
    found += [Section("Under attack", charts)] if charts else []
    return [*found, Section("What each number means", [Html(definitions(meanings))])]


def _of_several(runs: Dict[str, RunRecord], order: List[str]) -> List[Section]:
    looks = {name: order.index(name) for name in runs}
    note = (
        '<p class="note">The change from before training to after it, with its 95 % interval by a paired bootstrap '
        "over sentences. Runs compare where their held-out sentences and attack are the same. ↑ higher is better, "
        "↓ lower is better.</p>\n"
    )
    by_run = {name: {row["key"]: row for row in run.results["rows"]} for name, run in runs.items()}
    quantities = {key: row for rows in by_run.values() for key, row in rows.items()}
    lines = []
    for key, any_row in quantities.items():
        found = (rows.get(key) for rows in by_run.values())
        changes = [_change(row) if row else None for row in found]
        lines.append([f"{row_label(any_row)}{_ARROWS.get(any_row['better'], '')}", *changes])
    columns = [Column("quantity", is_text=True), *(Column(name, "+.3f", True) for name in runs)]
    changes = Table("changes", "Change by training", columns, lines)
    hidden = _results_table(runs, "")
    parts: List[Part] = [Html(note), changes, hidden]
    for curve in _CURVES:
        if any(_rows_of(run.results, curve) for run in runs.values()):
            parts.append(_chart(runs, curve, looks))
    return [Section("Before and after training", parts)]


def _results_table(runs: Dict[str, RunRecord], html: str) -> Table:
    """Every row of every run, whole in the CSV; the page shows ``html``."""
    columns = [Column("run", is_text=True), Column("quantity", is_text=True), Column("radius", "g")]
    columns += [Column("before", ".3f", True), Column("after", ".3f", True), Column("change", "+.3f", True)]
    columns.append(Column("verdict", is_text=True))
    lines = []
    for name, run in runs.items():
        for row in run.results["rows"]:
            sides = [of_side(row, side) for side in ("before", "after")]
            lines.append([name, row_label(row), row["radius"], *sides, _change(row), _VERDICTS[verdict(row)]])
    return Table("before-after", "Before and after training", columns, lines, html_whole=html)


def of_side(row: dict, side: str) -> Estimate:
    """What a row has of ``before`` or ``after``."""
    return Estimate(row[side], row[f"{side}_low"], row[f"{side}_high"])


def _change(row: dict) -> Estimate:
    return Estimate(row["difference"], row["low"], row["high"])


def _rows_of(results: dict, curve: _Curve) -> List[dict]:
    """Rows of a curve, in its order."""
    rows = [row for row in results["rows"] if row["key"].startswith(f"{curve.key}@")]
    if curve.key == "deepwordbug":
        return [row for row in rows if "max_words" in row]
    if curve.metric:
        return [row for row in rows if row.get("metric") == curve.metric]
    return sorted((row for row in rows if row["radius"] is not None), key=lambda row: row["radius"])


def _chart(runs: Dict[str, RunRecord], curve: _Curve, looks: Dict[str, int], is_alone: bool = False) -> Chart:
    """A quantity against how much is done to a sentence.

    Args:
        is_alone: the page is of one run, which then needs no name.
    """
    series: List[Series] = []
    befores: Dict[Tuple[Point, ...], List[str]] = {}
    rows_of = {name: rows for name, run in runs.items() if (rows := _rows_of(run.results, curve))}
    # Runs may differ in how much they do to sentences.
    strengths = sorted({_strength(row) for rows in rows_of.values() for row in rows})
    for name, rows in rows_of.items():
        before, after = (tuple(_points(curve, rows, side, strengths)) for side in ("before", "after"))
        look = LOOK_AFTER if is_alone else looks[name]
        series.append(Series("after" if is_alone else name, after, look))
        befores.setdefault(before, []).append(name)
    for points, names in befores.items():
        if is_alone:
            label, look = "before", LOOK_BEFORE
        elif len(names) > 1 and len(befores) == 1:
            # Runs of one model share what was measured before them.
            label, look = "before", _SHARED
        else:
            label, look = f"{names[0]}, before", looks[names[0]]
        series.append(Series(label, points, look, is_open=not is_alone))
    return Chart(
        f"under-attack-{curve.key.replace('_', '-')}",
        curve.title,
        curve.x_label,
        curve.y_label,
        tuple(reversed(series)) if is_alone else tuple(series),
        f"Bands are 95 % intervals. {curve.caption}".strip(),
        has_named_x=curve.x_label != _AT_RADII,
        y_range=(0.0, 1.03),
    )


def _points(curve: _Curve, rows: List[dict], side: str, strengths: Sequence[float]) -> Iterator[Point]:
    """At their radius, or where there is none at their place among ``strengths``, by name."""
    if curve.has_start:
        yield Point(Estimate(0.0), Estimate(1.0, 1.0, 1.0), "" if curve.x_label == _AT_RADII else "none")
    for row in rows:
        x = 1 + strengths.index(_strength(row)) if row["radius"] is None else row["radius"]
        yield Point(Estimate(float(x)), of_side(row, side), _name_of(row))


def _strength(row: dict) -> float:
    """How much is done to a sentence."""
    if row["radius"] is not None:
        return row["radius"]
    if "max_words" in row:
        return math.inf if row["max_words"] is None else row["max_words"]
    return row.get("share") or 0.0


def _name_of(row: dict) -> str:
    """How much is done to a sentence, in words; empty where the radius says it."""
    if row["radius"] is not None:
        return ""
    if "max_words" in row:
        return "any" if row["max_words"] is None else f"≤ {row['max_words']:g}"
    return f"{100 * row['share']:g} %" if row.get("share") else "one word"


def _cards(results: dict) -> str:
    """A gain and a cost at a glance: attacked rows at the middle radius, and what holds without an attack."""
    radii = sorted(results["radii"])
    middle = radii[len(radii) // 2] if radii else None
    rows = results["rows"]
    shown = [r for r in rows if r["key"] in _CARDS or r["radius"] == middle and _base(r) in _CARDS_AT_RADIUS]
    cards = [
        f'<div class="card"><div class="name">{escape(row_label(row))}</div><div class="values">'
        f'<span class="before">{_number(row["before"], ".2f")}</span><span class="arrow">→</span>'
        f'<span class="after">{_number(row["after"], ".2f")}</span></div>{_verdict(row)}</div>'
        for row in shown
    ]
    return f'<div class="cards">{"".join(cards)}</div>\n'


def _table(results: dict) -> str:
    missing = (escape(str(one["label"])) for one in results.get("missing", []))
    lines = [f'<tr><td>{label}</td><td class="before">n/a</td><td colspan="4">n/a</td></tr>' for label in missing]
    group = None
    for row in results["rows"]:
        row_group = _GROUPS.get(_base(row), row["label"])
        if row_group != group:
            lines.append(f'<tr><th colspan="6" scope="rowgroup">{escape(row_group)}</th></tr>')
        group = row_group
        name = row_label(row).removeprefix(f"{row['label']}, ")
        interval = f"{_number(row['low'], '+.3f')} to {_number(row['high'], '+.3f')}"
        # On a phone the interval stands under the change, and the verdict is the colour of it.
        change = f'{_number(row["difference"], "+.3f")}<span class="narrow">{interval}</span>'
        lines.append(
            f'<tr><td>{escape(name)}</td><td class="before">{_number(row["before"])}</td>'
            f'<td class="after">{_number(row["after"])}</td><td class="{verdict(row)}">{change}</td>'
            f'<td class="wide">{interval}</td><td class="wide">{_verdict(row)}</td></tr>'
        )
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead>{_TABLE_HEAD}</thead><tbody>\n{body}\n</tbody></table></div>\n'


def _number(value: float, form: str = ".3f") -> str:
    """With a minus sign as wide as the plus."""
    return format(value, form).replace("-", "−")


def _verdict(row: dict) -> str:
    outcome = verdict(row)
    return f'<span class="verdict {outcome}">{_VERDICTS[outcome]}</span>'


def _base(row: dict) -> str:
    return row["key"].split("@")[0]
