"""What robustness costs without an attack: clean quality against quality under attack, a point a system."""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from fastadv.report.chart import Chart, Point, Series
from fastadv.report.evaluation_sections import evaluations_of, system_name
from fastadv.report.named import Looks, found, system_names
from fastadv.report.records import Number
from fastadv.report.section import Section
from fastadv.report.sources import Source
from fastadv.report.table import Column, Estimate, Table
from fastadv.report.text_attack_sections import attack_names

MAX_CHARTS = 6
"""the table has all"""
_PROBE = "probe@"

Pairs = Dict[str, Tuple[Estimate, Estimate]]
"""name of a system -> clean, attacked"""


def trade_off_section(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """From all that was measured both with and without an attack, on the same texts where the attack did both."""
    found_pairs = [*_embeddings(sources), *_texts(sources), *_evaluations(sources), *_probes(sources)]
    charts, lines = [], []
    for clean, attacked, pairs in found_pairs:
        series = [Series(name, (Point(x, y),), looks.of(name)) for name, (x, y) in pairs.items()]
        lines += [[name, clean, x, attacked, y] for name, (x, y) in pairs.items()]
        if len(charts) < MAX_CHARTS:
            caption = "Towards the upper right is better. Bars are 95 % intervals."
            key = f"trade-off-{len(charts) + 1}"
            charts.append(Chart(key, attacked, clean, attacked, tuple(series), caption, is_line=False))
    if not charts:
        return []
    columns = [Column("system", is_text=True), Column("clean", is_text=True), Column("value", ".1f", True)]
    columns += [Column("under attack", is_text=True), Column("attacked", ".1f", True)]
    table = Table("trade-off", "Clean quality and quality under attack [95 % interval]", columns, lines)
    return [Section("Clean against robust", [*charts, table])]


def chosen(radii: Sequence[float], mean_at: Callable[[float], Optional[float]], clean: float) -> Optional[float]:
    """The radius at which systems are told apart best: where their mean is nearest to half the clean one."""
    known = [(radius, mean_at(radius)) for radius in radii if radius > 0]
    left = [(abs(mean - clean / 2), radius) for radius, mean in known if mean is not None]
    return min(left)[1] if left else None


def _embeddings(sources: Sequence[Source]) -> List[Tuple[str, str, Pairs]]:
    records = found(sources, "embedding_attacks")
    names = system_names(records)
    groups: Dict[tuple, Dict[str, Dict[float, Estimate]]] = {}
    for source, place, record in records:
        for own, curve in record.models.items():
            groups.setdefault((record.method, record.norm, *record.group), {})[names[source, place, own]] = dict(curve)
    results = []
    for (method, norm, *_), curves in groups.items():
        curves = {name: curve for name, curve in curves.items() if 0.0 in curve}
        shared = sorted(set.intersection(*(set(curve) for curve in curves.values()))) if curves else []
        if not shared:
            continue

        def mean_at(radius: float, curves=curves) -> float:
            return sum(curve[radius].value for curve in curves.values()) / len(curves)

        radius = chosen(shared, mean_at, mean_at(0.0))
        if radius is not None:
            pairs = {name: (curve[0.0].times(100), curve[radius].times(100)) for name, curve in curves.items()}
            results.append(("clean accuracy, %", f"accuracy, %, {method} {norm}, ε = {radius:g}", pairs))
    return results


def _texts(sources: Sequence[Source]) -> List[Tuple[str, str, Pairs]]:
    records = found(sources, "text_attacks")
    names, attacks = system_names(records), attack_names(records)
    results = []
    for source, place, record in records:
        pairs = {}
        for model in record.models:
            clean, robust = model.shares["accuracy"].times(100), model.shares["robust_accuracy"].times(100)
            if clean.value is not None and robust.value is not None:
                pairs[names[source, place, model.name]] = (clean, robust)
        if pairs:
            results.append(("accuracy before, %", f"accuracy after {attacks[source, place]}, %", pairs))
    return results


def _evaluations(sources: Sequence[Source]) -> List[Tuple[str, str, Pairs]]:
    """STS-B against what was measured under each attack, over all evaluations."""
    evaluations = evaluations_of(sources)
    clean: Dict[str, Estimate] = {}
    attacked: Dict[Tuple[str, str, str, str], Dict[float, Dict[str, Estimate]]] = {}
    for source, evaluation in evaluations:
        for number in evaluation.numbers:
            if number.model is not None or number.estimate.value is None:
                continue
            name = system_name(source, number.system, evaluations)
            if number.set == "STS-B" and number.epsilon is None and number.part == "sts":
                clean[name] = number.estimate
            elif _is_attacked(number):
                key = (number.part, number.set, number.metric, number.unit)
                attacked.setdefault(key, {}).setdefault(number.epsilon or 0.0, {})[name] = number.estimate
    results = []
    for (part, set_name, metric, unit), by_radius in attacked.items():
        radius = _middle(by_radius)
        at = f", ε = {radius:g}" if radius else ""
        pairs = {name: (clean[name], value) for name, value in by_radius[radius].items() if name in clean}
        if pairs:
            words = " ".join(dict.fromkeys(filter(None, (part, set_name, metric.replace("_", " ")))))
            results.append(("STS-B, Spearman × 100", f"{words}{at}{f', {unit}' if unit else ''}", pairs))
    return results


def _is_attacked(number: Number) -> bool:
    is_rate = any(word in number.metric for word in ("success", "robust", "adversarial", "after"))
    return is_rate or (number.epsilon is not None and number.epsilon > 0)


def _middle(by_radius: Dict[float, object]) -> float:
    radii = sorted(by_radius)
    return radii[len(radii) // 2]


def _probes(sources: Sequence[Source]) -> List[Tuple[str, str, Pairs]]:
    """Of runs that were measured before and after: the sentiment probe, each run and what it began from."""
    by_radius: Dict[float, Pairs] = {}
    for one in sources:
        rows = {} if one.run is None or not one.run.results else {row["key"]: row for row in one.run.results["rows"]}
        if "probe@0" not in rows:
            continue
        for key, row in rows.items():
            if key.startswith(_PROBE) and row["radius"]:
                pairs = by_radius.setdefault(row["radius"], {})
                for side, name in (("before", f"{one.name}, before"), ("after", one.name)):
                    pairs[name] = (_side(rows["probe@0"], side), _side(row, side))
    radius = _middle(by_radius) if by_radius else None
    return (
        []
        if radius is None
        else [("sentiment probe, clean, %", f"sentiment probe, %, radius {radius:g}", by_radius[radius])]
    )


def _side(row: dict, side: str) -> Estimate:
    return Estimate(row[side], row[f"{side}_low"], row[f"{side}_high"]).times(100)
