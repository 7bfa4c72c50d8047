"""Attacks on texts: rates, queries against lost accuracy, and the texts with the words that changed."""

from typing import Dict, List, Sequence

from fastadv.evaluation.text_report.findings import sentence
from fastadv.evaluation.text_report.page import fooled_rows, marked_row
from fastadv.evaluation.text_report.rates import CAPS
from fastadv.pages.chart import Chart, Point, Series
from fastadv.pages.shown_text import shown
from fastadv.pages.table import Column, Estimate, Table
from fastadv.pages.words import bullets, paragraph
from fastadv.report.named import Found, Looks, found, system_names
from fastadv.report.sections.section import Html, Part, Section
from fastadv.report.sources import Source

MAX_TEXTS = 40
"""with word differences on the page, of all models together; the CSV has the same"""
MAX_TEXTS_OF_MODEL = 6
MAX_LETTERS = 4000
"""of a text whose changes are looked for"""


def text_attack_sections(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """All attacks on texts in one table, one chart, and one table of texts."""
    records = found(sources, "text_attacks")
    if not records:
        return []
    names = system_names(sources, records, looks)
    attacks = attack_names(records)
    parts: List[Part] = [_rates(records, names, attacks)]
    queries = _queries(records, names, attacks, looks)
    if queries.series:
        parts.append(queries)
    for one in records:
        called = {model.name: names[one.source, one.place, model.name] for model in one.record.models}
        said, at_caps = (
            bullets(sentence(finding, called) for finding in one.record.findings if (finding["cap"] == "any") is is_any)
            for is_any in (True, False)
        )
        if said:
            parts.append(Html(f"<h3>{shown(attacks[one[:2]])}</h3>\n{said}"))
        if at_caps:
            parts.append(Html(f"<details><summary>where few words may change</summary>{at_caps}</details>\n"))
    texts = _texts(records, names, attacks)
    if texts.rows:
        note = (
            f"The texts of the fewest changes, at most {MAX_TEXTS_OF_MODEL} a model and {MAX_TEXTS} in all. "
            "Struck out is what went, underlined what came."
        )
        parts += [Html("<h3>What was changed</h3>\n" + paragraph(note)), texts]
    return [Section("Attacks on texts", parts)]


def attack_names(records: Sequence[Found]) -> Dict[tuple, str]:
    """(source, place) -> what the attack is called; the folder tells attacks of one recipe apart."""
    plain = {one[:2]: one.record.attack for one in records}
    several = {name for name in plain.values() if list(plain.values()).count(name) > 1}
    sources = {source for source, _ in plain}
    names = {}
    for (source, place), name in plain.items():
        where = "/".join(part for part in (source if len(sources) > 1 else "", place) if part)
        names[source, place] = f"{name} ({where})" if name in several and where else name
    return names


def _rates(records: Sequence[Found], names: dict, attacks: dict) -> Table:
    shares = {"accuracy": "accuracy, %", "robust_accuracy": "after, %"}
    at_caps = {cap.name: "success, %" if cap.name == "any" else f"{cap.words}, %" for cap in CAPS}
    means = {"queries": "queries", "words_changed": "words changed"}
    columns = [Column("model", is_text=True), Column("attack", is_text=True), Column("texts")]
    columns += [*(Column(words, ".1f", True) for words in shares.values()), Column("attacked")]
    columns += [Column(words, ".1f", True) for words in (at_caps | means).values()]
    columns += [Column("skipped"), Column("errors")]
    lines = []
    for source, place, record in records:
        for model in record.models:
            counts, in_percent = model.counts, {n: model.rates[n].times(100) for n in shares | at_caps}
            line = [names[source, place, model.name], attacks[source, place], counts["texts"]]
            line += [*(in_percent[name] for name in shares), counts["attacked"]]
            line += [*(in_percent[name] for name in at_caps), *(model.rates[name] for name in means)]
            lines.append([*line, counts["skipped"], counts["error"]])
    caption = (
        "Success is of the texts that were right before; at a cap, a success that changed more failed [95 % interval]"
    )
    return Table("text-attacks", caption, columns, lines)


def _queries(records: Sequence[Found], names: dict, attacks: dict, looks: Looks) -> Chart:
    """RobustSentEmbed, figure 2: a point an attack and model; the points of an attack are joined."""
    points: Dict[str, List[Point]] = {}
    controls = set()
    for source, place, record in records:
        for model in record.models:
            if model.accuracy_drop is None or model.rates["queries"].value is None:
                continue
            name = names[source, place, model.name]
            point = Point(Estimate(100 * model.accuracy_drop), model.rates["queries"], attacks[source, place])
            points.setdefault(name, []).append(point)
            controls |= {name} if model.control_of else set()
    series = [Series(name, tuple(some), looks.of(name), is_open=name in controls) for name, some in points.items()]
    return Chart(
        "queries-accuracy-drop",
        "what an attack costs and takes",
        "accuracy lost, points",
        "queries a text, mean",
        tuple(series),
        "The further to the upper left, the dearer and the less harmful the attack; the points of one attack are "
        "joined. Bars are 95 % intervals. An open marker is a control.",
        is_line=False,
        joins_labels=True,
        y_range=(0.0, None),
    )


def _texts(records: Sequence[Found], names: dict, attacks: dict) -> Table:
    columns = [Column(name, is_text=True) for name in ("attack", "model", "row", "label", "said", "changed", "text")]
    csv_columns = [*columns[:6], *(Column(name, is_text=True) for name in ("before", "after"))]
    lines, body = [], []
    num_models = sum(len(record.rows) for _, _, record in records)
    most = max(1, min(MAX_TEXTS_OF_MODEL, MAX_TEXTS // max(1, num_models)))
    for source, place, record in records:
        for own, rows in record.rows.items():
            for row in fooled_rows(rows)[: min(most, MAX_TEXTS - len(lines))]:
                said = f"{row.predicted}\u00a0→\u00a0{row.predicted_adversarial}"
                changed = f"{row.num_words_changed} of {row.num_words}"
                line = [attacks[source, place], names[source, place, own], str(row.row), row.label, said, changed]
                lines.append(
                    [*line, _joined(row.first, row.second), _joined(row.first_adversarial, row.second_adversarial)]
                )
                body.append([*map(shown, line), marked_row(row, MAX_LETTERS)])
    return Table("text-changes", "Texts that fooled a model", csv_columns, lines, html_body=body, html_columns=columns)


def _joined(first: str, second: object) -> str:
    return first if second is None else f"{first} / {second}"
