"""What robustness costs without an attack: clean quality against quality under attack, a point a system."""

from types import MappingProxyType
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from fastadv.report.before_after_section import LOOK_BEFORE
from fastadv.report.chart import Chart, Point, Series
from fastadv.report.evaluation_sections import evaluations_of, system_name
from fastadv.report.named import Found, Looks, found, system_names
from fastadv.report.records import Number
from fastadv.report.section import Section
from fastadv.report.sources import Source
from fastadv.report.table import Column, Estimate, Table
from fastadv.report.text_attack_sections import attack_names

MAX_CHARTS = 6
"""the table has all"""
_PROBE = "probe@"

_UNDER_ATTACK = " under attack"
_RATES_OF_SUCCESS = ("attack success", "fooled")
"""of the attacker, as evaluation.json names them"""
_TOWARDS = {"higher": "the upper right", "lower": "the lower right", None: "the right"}

Pairs = Dict[str, Tuple[Estimate, Estimate]]
"""name of a system -> clean, attacked"""


class TradeOff(NamedTuple):
    """A chart's worth of pairs; of ``clean`` more is better."""

    clean: str
    attacked: str
    pairs: Pairs
    better: Optional[str] = "higher"
    """of ``attacked``: "higher", "lower", or None where neither is"""
    befores: Mapping[str, str] = MappingProxyType({})
    """name of a run before training -> the run"""


def trade_off_section(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """From all that was measured both with and without an attack, on the same texts where the attack did both."""
    charts, lines = [], []
    for one in [*_embeddings(sources), *_texts(sources), *_evaluations(sources), *_probes(sources)]:
        better = one.better or "neither"
        lines += [[name, one.clean, x, one.attacked, y, better] for name, (x, y) in one.pairs.items()]
        if len(charts) < MAX_CHARTS:
            series = [_series(one, name, looks, len(sources) == 1) for name in one.pairs]
            caption = f"Towards {_TOWARDS[one.better]} is better. Bars are 95 % intervals."
            key = f"trade-off-{len(charts) + 1}"
            charts.append(Chart(key, one.attacked, one.clean, one.attacked, tuple(series), caption, is_line=False))
    if not charts:
        return []
    columns = [Column("system", is_text=True), Column("clean", is_text=True), Column("value", ".1f", True)]
    columns += [Column("under attack", is_text=True), Column("attacked", ".1f", True)]
    columns.append(Column("better", is_text=True))
    caption = (
        "Clean quality, of which more is better, and what is left or lost under attack, with the side that is better "
        "[95 % interval]"
    )
    return [Section("Clean against robust", [*charts, Table("trade-off", caption, columns, lines)])]


def _series(of: TradeOff, name: str, looks: Looks, is_alone: bool) -> Series:
    """A point; what a run began from is open, in the colour that it has in the run's other charts."""
    if name not in of.befores:
        return Series(name, (Point(*of.pairs[name]),), looks.of(name))
    look = LOOK_BEFORE if is_alone else looks.of(of.befores[name])
    return Series(name, (Point(*of.pairs[name]),), look, is_open=True)


def chosen(radii: Sequence[float], mean_at: Callable[[float], Optional[float]], clean: float) -> Optional[float]:
    """The radius at which systems are told apart best: where their mean is nearest to half the clean one."""
    known = [(radius, mean_at(radius)) for radius in radii if radius > 0]
    left = [(abs(mean - clean / 2), radius) for radius, mean in known if mean is not None]
    return min(left)[1] if left else None


def _embeddings(sources: Sequence[Source]) -> List[TradeOff]:
    names = system_names(found(sources, "embedding_attacks"))
    groups: Dict[tuple, Dict[str, Dict[float, Estimate]]] = {}
    for source, place, record in _not_of_an_evaluation(sources, "embedding_attacks"):
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
            results.append(TradeOff("clean accuracy, %", f"accuracy, %, {method} {norm}, ε = {radius:g}", pairs))
    return results


def _texts(sources: Sequence[Source]) -> List[TradeOff]:
    records = found(sources, "text_attacks")
    names, attacks = system_names(records), attack_names(records)
    results = []
    for source, place, record in _not_of_an_evaluation(sources, "text_attacks"):
        pairs = {}
        for model in record.models:
            clean, robust = model.shares["accuracy"].times(100), model.shares["robust_accuracy"].times(100)
            if clean.value is not None and robust.value is not None:
                pairs[names[source, place, model.name]] = (clean, robust)
        if pairs:
            results.append(TradeOff("accuracy before, %", f"accuracy after {attacks[source, place]}, %", pairs))
    return results


def _not_of_an_evaluation(sources: Sequence[Source], kind: str) -> List[Found]:
    """Records whose numbers evaluation.json does not have: there they are means over a system's seeds."""
    parts = {(s.name, n.part) for s in sources if s.evaluation is not None for n in s.evaluation.numbers}
    return [one for one in found(sources, kind) if (one.source, one.place) not in parts]


def _evaluations(sources: Sequence[Source]) -> List[TradeOff]:
    """What was measured under each attack, against the same without it; else against STS-B. Over all evaluations."""
    evaluations = evaluations_of(sources)
    clean: Dict[Tuple[str, str, str], Dict[str, Number]] = {}
    attacked: Dict[Tuple[str, str, str, str, Optional[str]], Dict[float, Dict[str, Estimate]]] = {}
    for source, evaluation in evaluations:
        for number in evaluation.numbers:
            if number.model is not None or number.estimate.value is None:
                continue
            name = system_name(source, number.system, evaluations)
            if _is_attacked(number):
                key = (number.part, number.set, number.metric, number.unit, number.better)
                attacked.setdefault(key, {}).setdefault(number.epsilon or 0.0, {})[name] = number.estimate
            elif number.epsilon is None:
                clean.setdefault((number.part, number.set, number.metric), {})[name] = number
    results = []
    for (part, set_name, metric, unit, better), by_radius in attacked.items():
        of_clean = next((clean[key] for key in _counterparts(part, set_name, metric) if key in clean), {})
        radius = _middle(by_radius)
        pairs = {n: (of_clean[n].estimate, value) for n, value in by_radius[radius].items() if n in of_clean}
        if pairs:
            at = f", ε = {radius:g}" if radius else ""
            words = f"{part}: {set_name} {metric}{at}{f', {unit}' if unit else ''}"
            results.append(TradeOff(next(iter(of_clean.values())).what, words, pairs, better))
    return results


def _is_attacked(number: Number) -> bool:
    """By the names that `fastadv evaluate all` gives; what an attack costs (queries) is no quality of the model."""
    is_rate = number.metric.endswith(_UNDER_ATTACK) or number.metric in _RATES_OF_SUCCESS
    return is_rate or (number.epsilon is not None and number.epsilon > 0)


def _counterparts(part: str, set_name: str, metric: str) -> List[Tuple[str, str, str]]:
    """(part, set, metric) of what a number under attack would be without it, the nearest first."""
    names = ("accuracy", "spearman") if metric in _RATES_OF_SUCCESS else (metric.removesuffix(_UNDER_ATTACK),)
    return [*((part, set_name, name) for name in names), ("sts", "STS-B", "spearman")]


def _middle(by_radius: Dict[float, object]) -> float:
    radii = sorted(by_radius)
    return radii[len(radii) // 2]


def _probes(sources: Sequence[Source]) -> List[TradeOff]:
    """Of runs that were measured before and after: the sentiment probe, each run and what it began from."""
    by_radius: Dict[float, Pairs] = {}
    befores: Dict[str, str] = {}
    for one in sources:
        rows = {} if one.run is None or not one.run.results else {row["key"]: row for row in one.run.results["rows"]}
        if "probe@0" not in rows:
            continue
        for key, row in rows.items():
            if key.startswith(_PROBE) and row["radius"]:
                pairs = by_radius.setdefault(row["radius"], {})
                befores[f"{one.name}, before"] = one.name
                for side, name in (("before", f"{one.name}, before"), ("after", one.name)):
                    pairs[name] = (_side(rows["probe@0"], side), _side(row, side))
    radius = _middle(by_radius) if by_radius else None
    if radius is None:
        return []
    under = f"sentiment probe, %, radius {radius:g}"
    return [TradeOff("sentiment probe, clean, %", under, by_radius[radius], befores=befores)]


def _side(row: dict, side: str) -> Estimate:
    return Estimate(row[side], row[f"{side}_low"], row[f"{side}_high"]).times(100)
