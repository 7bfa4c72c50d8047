"""The files of a measurement of robustness: JSON, Markdown, a page, and curves against the share of edited words."""

from pathlib import Path
from typing import Sequence

from fastadv.config.commands import encoding_words
from fastadv.evaluation.robustness.edited import UNCHANGED
from fastadv.evaluation.robustness.result import tables_of, title_of
from fastadv.files.atomic_file import written_aside
from fastadv.files.json_file import write_json
from fastadv.pages.chart import Chart, Point, Series
from fastadv.pages.drawing import chart_svg, charts_png
from fastadv.pages.html_page import html_page
from fastadv.pages.shown_text import shown
from fastadv.pages.table import Estimate, Table, in_markdown
from fastadv.pages.words import bullets, paragraph

FILES = ("robustness.json", "robustness.md", "robustness.html", "robustness.png")

_NOTES = (
    "An edit is drawn by the seed, the number of the sentence, the edit and its strength: all models meet the same "
    "copies. Shares are of the words that have four letters or more and no digit.",
    "Left out are sentences that the edit has no place in. A tie is no retrieval, and no copy that is nearer; where "
    "a model cuts a sentence before one of two changes, the two are not compared.",
    "Cosines and MRR have intervals by the bootstrap over sentences, shares of sentences by Wilson. They do not say "
    "what another draw of edits would give.",
)
_CURVES = {
    "cosine": ("How far vectors move", "cosine to the sentence", 1.0),
    "retrieval": ("Whether the sentence is still found", "retrieval@1, %", 100.0),
}
"""quantity → title, axis, and its largest value"""


def write_robustness(record: dict, folder: Path) -> None:
    """The files of `FILES` in ``folder``, the JSON last."""
    folder.mkdir(parents=True, exist_ok=True)
    tables, charts = tables_of(record), charts_of(record)
    with written_aside(folder / "robustness.md") as aside:
        parts = ["# Robustness to edits", "", in_markdown(title_of(record)), "", *(t.markdown() for t in tables)]
        notes = [*map(in_markdown, _model_words(record)), *_NOTES]
        aside.write_text("\n".join([*parts, *(f"* {note}" for note in notes), ""]), encoding="utf-8")
    with written_aside(folder / "robustness.html") as aside:
        aside.write_text(_page(record, tables, charts), encoding="utf-8")
    with written_aside(folder / "robustness.png") as aside:
        charts_png(charts, aside, num_columns=len(_CURVES))
    write_json(folder / "robustness.json", record)


def _model_words(record: dict) -> list[str]:
    return [
        f"{model['name']}: {model['model']}, {encoding_words(model)}, fingerprint {model['fingerprint'][:16]}"
        for model in record["models"]
    ]


def charts_of(record: dict) -> list[Chart]:
    """Of each model cosine and retrieval@1 against the share of words, a curve an edit; all models on the same axes."""
    charts = []
    for number, model in enumerate(record["models"]):
        for key, (title, label, most) in _CURVES.items():
            lows = [row[key]["low"] for row in record["rows"] if row["share"] is not None]
            least = min((low for low in lows if low is not None), default=0.0)
            series = tuple(_curves(record, model["name"], key))
            name = f"{title}, {model['name']}" if len(record["models"]) > 1 else title
            caption = f"{model['name']}. Bands are 95 % intervals over sentences."
            charts.append(
                Chart(f"{key}-{number}", name, "words edited, %", label, series, caption, y_range=(least, most))
            )
    return charts


def _curves(record: dict, model: str, key: str) -> list[Series]:
    """A series an edit, from the sentence itself on, where there is nothing to estimate."""
    rows: dict[str, list[dict]] = {}
    for row in record["rows"]:
        if row["model"] == model and row["share"] is not None and row[key]["value"] is not None:
            rows.setdefault(row["edit"], []).append(row)
    (clean,) = rows.pop(UNCHANGED.edit)
    begin = Point(Estimate(0.0), Estimate(clean[key]["value"]))
    return [
        Series(edit, (begin, *(_point(row, key) for row in of_edit)), look)
        for look, (edit, of_edit) in enumerate(rows.items())
    ]


def _point(row: dict, key: str) -> Point:
    return Point(Estimate(100 * row["share"]), Estimate(*(row[key][name] for name in ("value", "low", "high"))))


def _page(record: dict, tables: Sequence[Table], charts: Sequence[Chart]) -> str:
    title = "Robustness to edits"
    figures = "".join(
        f"<figure>{chart_svg(chart, chart.key)}<figcaption>{shown(chart.caption)}</figcaption></figure>"
        for chart in charts
    )
    body = f'<header><h1>{title}</h1><p class="lead">{shown(title_of(record))}</p></header>\n'
    body += bullets(_model_words(record)) + f'<div class="charts">{figures}</div>\n'
    body += "".join(table.html() for table in tables)
    return html_page(title, body + "".join(map(paragraph, _NOTES)))
