"""Attacks on embeddings and where vectors lie: accuracy against epsilon, and alignment against uniformity."""

from typing import Callable, Dict, List, Sequence

from fastadv.pages.chart import Chart, Point, Series
from fastadv.pages.table import Column, Estimate, Table
from fastadv.pages.words import paragraph
from fastadv.report.named import Found, Looks, found, system_names
from fastadv.report.sections.section import Html, Part, Section
from fastadv.report.sources import Source


def embedding_attack_sections(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """A chart and a table for each attack; attacks on the same texts with the same settings share theirs."""
    return _in_groups("Accuracy against epsilon", sources, looks, "embedding_attacks", _attacks)


def geometry_sections(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """RobustSentEmbed, figure 3: a chart for each data on which uniformity and alignment were measured."""
    return _in_groups("Alignment and uniformity", sources, looks, "geometries", _geometries)


def _in_groups(title: str, sources: Sequence[Source], looks: Looks, kind: str, parts_of: Callable) -> List[Section]:
    """What ``parts_of`` makes of all records of one ``group``, with the ending of their keys."""
    records = found(sources, kind)
    names = system_names(sources, records, looks)
    groups: Dict[tuple, List[Found]] = {}
    for one in records:
        groups.setdefault(one.record.group, []).append(one)
    parts: List[Part] = []
    for number, group in enumerate(groups.values(), start=1):
        parts += parts_of(group, names, looks, f"-{number}" if len(groups) > 1 else "")
    return [Section(title, parts)] if parts else []


def _attacks(group: List[Found], names: dict, looks: Looks, ending: str) -> List[Part]:
    first = group[0].record
    series, lines = [], []
    radii = sorted({radius for one in group for curve in one.record.models.values() for radius, _ in curve})
    for source, place, record in group:
        for own, curve in record.models.items():
            name = names[source, place, own]
            points = tuple(Point(Estimate(radius), accuracy.times(100)) for radius, accuracy in curve)
            if points:
                series.append(Series(name, points, looks.of(name)))
            by_radius = dict(curve)
            lines.append([name, *(by_radius[e].times(100) if e in by_radius else None for e in radii)])
    what = f"{first.method} on the embeddings of {first.data}, {first.norm} ball a text"
    columns = [Column("model", is_text=True)]
    columns += [Column(f"ε = {e:g}" if e else "clean", ".1f", True) for e in radii]
    chart = Chart(
        f"accuracy-epsilon{ending}",
        f"accuracy under {first.method}",
        f"epsilon, {first.norm} norm of the perturbation of a text",
        "accuracy, %",
        tuple(series),
        f"{what}. Bands are 95 % intervals.",
        has_root_scale=len(radii) > 3,
        y_range=(0.0, 103.0),
    )
    table = Table(f"accuracy-epsilon{ending}", f"Accuracy, %, under {what} [95 % interval]", columns, lines)
    warnings = [
        Html(paragraph(f"{names[source, place, own]}: {warning}", "warning"))
        for source, place, record in group
        for own, warning in record.warnings
    ]
    return [*([chart] if series else []), table, *warnings]


def _geometries(group: List[Found], names: dict, looks: Looks, ending: str) -> List[Part]:
    data, positives, num = group[0].record.group
    series, lines = [], []
    quantities = dict.fromkeys(q for one in group for model in one.record.models for q in model.quantities)
    for source, place, record in group:
        for model in record.models:
            name = names[source, place, model.name]
            lines.append([name, *(model.quantities.get(quantity) for quantity in quantities)])
            alignment, uniformity = model.quantities.get("alignment"), model.quantities["uniformity"]
            # Of a model without dropout there is no alignment by two masks: the table alone has it.
            if alignment is not None and alignment.value is not None and uniformity.value is not None:
                series.append(Series(name, (Point(uniformity, alignment),), looks.of(name)))
    what = f"{num:,} sentences of {data}; positives: {positives}"
    chart = Chart(
        f"alignment-uniformity{ending}",
        "alignment and uniformity",
        "uniformity (lower is better)",
        "alignment (lower is better)",
        tuple(series),
        f"{what}. Towards the lower left is better. Bars are 95 % intervals.",
        is_line=False,
    )
    columns = [Column("model", is_text=True), *(Column(q.replace("_", " "), ".3f", True) for q in quantities)]
    return [*([chart] if series else []), Table(f"geometry{ending}", f"{what} [95 % interval]", columns, lines)]
