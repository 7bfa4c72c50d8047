"""What `fastadv evaluate all` measured: a table a part, the paired differences, and what was not measured."""

from typing import Dict, List, Sequence, Tuple

from fastadv.report.chart import Chart, Point, Series
from fastadv.report.named import Looks
from fastadv.report.records import Evaluation, Number
from fastadv.report.section import Html, Part, Section
from fastadv.report.sources import Source
from fastadv.report.table import Column, Estimate, Table
from fastadv.report.words import bullets, paragraph


def system_name(source: str, system: str, evaluations: Sequence[Tuple[str, Evaluation]]) -> str:
    """With the source's name before it where another evaluation has a system of that name."""
    is_shared = sum(system in evaluation.systems for _, evaluation in evaluations) > 1
    return f"{source}: {system}" if is_shared else system


def evaluations_of(sources: Sequence[Source]) -> List[Tuple[str, Evaluation]]:
    """(name of the source, evaluation)"""
    return [(one.name, one.evaluation) for one in sources if one.evaluation is not None]


def evaluation_sections(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """All evaluations side by side, the systems of one after those of the other."""
    evaluations = evaluations_of(sources)
    if not evaluations:
        return []
    cells: Dict[str, Dict[str, Dict[str, Number]]] = {}
    systems: List[str] = []
    for source, evaluation in evaluations:
        for number in evaluation.numbers:
            if number.model is None:
                name = system_name(source, number.system, evaluations)
                systems += [] if name in systems else [name]
                cells.setdefault(number.part, {}).setdefault(number.what, {})[name] = number
    parts: List[Part] = [
        Html(paragraph(f"{name}: {warning}", "warning")) for name, one in evaluations for warning in one.warnings
    ]
    for part, of_part in cells.items():
        columns = [Column("", is_text=True), *(Column(name, ".3f", True) for name in systems)]
        form = ".1f" if all(_is_large(n) for row in of_part.values() for n in row.values()) else ".3f"
        columns = [column._replace(form=form) for column in columns]
        lines = [
            [f"{what}{_arrow(row)}", *(row[n].estimate if n in row else None for n in systems)]
            for what, row in of_part.items()
        ]
        caption = f"{part}: the mean over a system's models [95 % interval]; ↑ higher is better, ↓ lower is better"
        parts.append(Table(f"evaluation-{_as_key(part)}", caption, columns, lines))
        chart = _epsilon_chart(part, of_part, systems, looks)
        parts += chart
    spreads = _spreads(evaluations)
    parts += [spreads] if spreads.rows else []
    differences = _differences(evaluations)
    parts += [differences] if differences.rows else []
    missing = [
        f"{name}: {part} is {status}{f': {why}' if why else ''}"
        for name, one in evaluations
        for part, (status, why) in one.parts.items()
        if status != "done"
    ]
    if missing:
        parts.append(Html(paragraph("Not measured, or not to the end:") + bullets(missing)))
    return [Section("Evaluation", parts)]


def _arrow(row: Dict[str, Number]) -> str:
    return {"higher": " ↑", "lower": " ↓", None: ""}[next(iter(row.values())).better]


def _is_large(number: Number) -> bool:
    return number.estimate.value is None or number.unit in ("x 100", "%")


def _epsilon_chart(part: str, of_part: Dict[str, Dict[str, Number]], systems: List[str], looks: Looks) -> List[Chart]:
    """Curves of what was measured at several radii, for each set and metric; without an attack is radius 0."""
    curves: Dict[Tuple[str, str, str], Dict[str, List[Point]]] = {}
    for row in of_part.values():
        for system, number in row.items():
            if number.estimate.value is not None:
                key = (number.set, number.metric, number.unit)
                point = Point(Estimate(number.epsilon or 0.0), number.estimate)
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


def _spreads(evaluations: Sequence[Tuple[str, Evaluation]]) -> Table:
    """Of systems of several seeds."""
    columns = [Column("system", is_text=True), Column("part", is_text=True), Column("what", is_text=True)]
    columns += [Column("mean", ".3f"), Column("standard deviation over seeds", ".3f")]
    lines = [
        [system_name(source, n.system, evaluations), n.part, n.what, n.estimate.value, n.spread]
        for source, evaluation in evaluations
        for n in evaluation.numbers
        if n.model is None and n.spread is not None and n.estimate.value is not None
    ]
    return Table("evaluation-seeds", "How far seeds of one system differ", columns, lines)


def _differences(evaluations: Sequence[Tuple[str, Evaluation]]) -> Table:
    words = ("system", "less the baseline", "part", "what", "test")
    columns = [*(Column(name, is_text=True) for name in words), Column("difference", "+.3f", True)]
    columns += [Column("p", ".4f"), Column("p by Holm", ".4f")]
    lines = []
    for source, evaluation in evaluations:
        for row in evaluation.differences:
            at = "" if row["epsilon"] is None else f", epsilon {row['epsilon']:g}"
            what = f"{' '.join(filter(None, (row['set'], row['metric'].replace('_', ' '))))}{at}"
            names = [system_name(source, row[side], evaluations) for side in ("system", "baseline")]
            lines.append([*names, row["part"], what, row["test"], row["difference"], row["p_value"], row["p_holm"]])
    return Table(
        "evaluation-differences", "Differences to the baseline on the same rows [95 % interval]", columns, lines
    )


def _as_key(text: str) -> str:
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in text.lower()).split())[:60] or "part"
