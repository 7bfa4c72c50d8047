"""What `fastadv evaluate all` measured: a table a part, the paired differences, and what was not measured."""

from typing import Dict, List, Sequence, Tuple

from fastadv.pages.chart import Chart, Point, Series
from fastadv.pages.table import Column, Estimate, Table
from fastadv.pages.words import bullets, paragraph
from fastadv.report.named import Looks, evaluations_of, means_of, system_name
from fastadv.report.records import Evaluation, Number, quantity_words
from fastadv.report.sections.section import Html, Part, Section
from fastadv.report.sources import Source

_NOTE = (
    "The mean over a system's models, with its 95 % interval over rows. ↑ higher is better, ↓ lower is better; "
    "neither where there is no arrow."
)


def evaluation_sections(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """All evaluations side by side, the systems of one after those of the other."""
    evaluations = evaluations_of(sources)
    if not evaluations:
        return []
    cells: Dict[str, Dict[str, Dict[str, Number]]] = {}
    for name, number in means_of(evaluations):
        cells.setdefault(number.quantity.part, {}).setdefault(number.what, {})[name] = number
    systems = list(dict.fromkeys(name for name, _ in means_of(evaluations)))
    parts: List[Part] = [Html(paragraph(_NOTE))]
    for name, one in evaluations:
        of_which = f"{name}: " if len(sources) > 1 else ""
        parts += [Html(paragraph(f"{of_which}{warning}", "warning")) for warning in one.warnings]
    for part, of_part in cells.items():
        columns = [Column("", is_text=True), *(Column(name, is_interval=True) for name in systems)]
        lines = [
            [f"{what}{_arrow(row)}", *(row[n].estimate if n in row else None for n in systems)]
            for what, row in of_part.items()
        ]
        forms = [".1f" if all(map(_is_large, row.values())) else ".3f" for row in of_part.values()]
        parts.append(Table(f"evaluation-{_as_key(part)}", part, columns, lines, forms=forms))
        parts += _epsilon_charts(part, of_part, systems, looks)
    parts += [table for table in (_spreads(evaluations, systems), _differences(evaluations)) if table.rows]
    missing = [
        f"{f'{name}: ' if len(sources) > 1 else ''}{part} is {status}{f': {why}' if why else ''}"
        for name, one in evaluations
        for part, (status, why) in one.parts.items()
        if status != "done"
    ]
    if missing:
        parts.append(Html(paragraph("Not measured, or not to the end:") + bullets(missing)))
    return [Section("Evaluation", parts)]


def _arrow(row: Dict[str, Number]) -> str:
    return {"higher": " ↑", "lower": " ↓", None: ""}[next(iter(row.values())).quantity.better]


def _is_large(number: Number) -> bool:
    value = number.estimate.value
    return value is None or number.quantity.unit in ("x 100", "%") or abs(value) >= 10


def _epsilon_charts(part: str, of_part: Dict[str, Dict[str, Number]], systems: List[str], looks: Looks) -> List[Chart]:
    """Curves of what was measured at several radii, for each set and metric; without an attack is radius 0."""
    curves: Dict[Tuple[str, str, str], Dict[str, List[Point]]] = {}
    for row in of_part.values():
        for system, number in row.items():
            if number.estimate.value is not None:
                key = (number.quantity.set, number.quantity.metric, number.quantity.unit)
                point = Point(Estimate(number.quantity.epsilon or 0.0), number.estimate)
                curves.setdefault(key, {}).setdefault(system, []).append(point)
    charts = []
    for (set_name, metric, unit), of_systems in curves.items():
        series = []
        for system in systems:
            points = sorted(of_systems.get(system, []), key=lambda point: point.x.value)
            if len(points) > 1:
                series.append(Series(system, tuple(points), looks.of(system)))
        if not series:
            continue
        name = f"{metric.replace('_', ' ')}{f', {unit}' if unit else ''}"
        title = " ".join(dict.fromkeys(text for text in (set_name, metric.replace("_", " ")) if text))
        key = f"evaluation-{_as_key('-'.join((part, set_name, metric)))}"
        charts.append(
            Chart(key, title, "epsilon", name, tuple(series), f"{part}. Bands are 95 % intervals.", has_root_scale=True)
        )
    return charts


def _spreads(evaluations: Sequence[Tuple[str, Evaluation]], systems: List[str]) -> Table:
    """Of systems of several seeds."""
    cells: Dict[Tuple[str, str], Dict[str, Number]] = {}
    for name, number in means_of(evaluations):
        if number.spread is not None and number.estimate.value is not None:
            cells.setdefault((number.quantity.part, number.what), {})[name] = number
    columns = [Column("part", is_text=True), Column("what", is_text=True), *map(Column, systems)]
    lines = [[*key, *(row[name].spread if name in row else None for name in systems)] for key, row in cells.items()]
    forms = [".2f" if all(map(_is_large, row.values())) else ".3f" for row in cells.values()]
    caption = "How far seeds of one system differ: the standard deviation over its models"
    return Table("evaluation-seeds", caption, columns, lines, forms=forms)


def _differences(evaluations: Sequence[Tuple[str, Evaluation]]) -> Table:
    """What all rows share stands in the caption."""
    words = ("system", "less the baseline", "part", "what", "test")
    columns = [*(Column(name, is_text=True) for name in words), Column("difference", "+.3f", True)]
    columns += [Column("p", ".4f"), Column("p by Holm", ".4f")]
    lines = []
    for source, evaluation in evaluations:
        for row in evaluation.differences:
            names = [system_name(source, side, evaluations) for side in (row.system, row.baseline)]
            what = quantity_words(row.quantity)
            lines.append([*names, row.quantity.part, what, row.test, row.estimate, row.p_value, row.p_holm])
    baselines, tests = ({line[i] for line in lines} for i in (1, 4))
    of_what, by_what, said = "the baseline", "", []
    if len(baselines) == 1:
        of_what, said = next(iter(baselines)), [words[1]]
    if len(tests) == 1:
        by_what, said = f", by {next(iter(tests))}", [*said, words[4]]
    caption = f"Differences to {of_what} on the same rows{by_what} [95 % interval]"
    return Table("evaluation-differences", caption, columns, lines, said=said)


def _as_key(text: str) -> str:
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in text.lower()).split())[:60] or "part"
