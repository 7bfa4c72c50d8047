"""What robustness costs without an attack: clean quality against quality under attack, a point a system."""

from functools import partial
from types import MappingProxyType
from typing import Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from fastadv.evaluation.suite.schema import Counterpart, Quantity
from fastadv.pages.chart import Chart, Point, Series
from fastadv.pages.table import Column, Estimate, Table
from fastadv.report.named import Found, Looks, evaluations_of, found, means_of, system_names
from fastadv.report.records import Number
from fastadv.report.sections.before_after_section import LOOK_BEFORE, of_side
from fastadv.report.sections.section import Section
from fastadv.report.sections.text_attack_sections import attack_names
from fastadv.report.sources import Source

MAX_CHARTS = 6
"""the table has all"""
_PROBE, _CLEAN_PROBE = "probe@", "probe@0"
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
    missing: Sequence[str] = ()
    """measured under this attack too, but not at this radius, or not without an attack"""


def trade_off_section(sources: Sequence[Source], looks: Looks) -> List[Section]:
    """From all that was measured both with and without an attack, on the same texts where the attack did both."""
    charts, lines = [], []
    num_runs = sum(one.run is not None for one in sources)
    for one in [*_embeddings(sources, looks), *_texts(sources, looks), *_evaluations(sources), *_probes(sources)]:
        better = one.better or "neither"
        lines += [[name, one.clean, x, one.attacked, y, better] for name, (x, y) in one.pairs.items()]
        if len(charts) < MAX_CHARTS:
            series = [_series(one, name, looks, num_runs == 1) for name in one.pairs]
            caption = f"Towards {_TOWARDS[one.better]} is better. Bars are 95 % intervals."
            if one.missing:
                caption += f" Not measured here, or not without the attack: {', '.join(one.missing)}."
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
    is_before = name in of.befores
    look = LOOK_BEFORE if is_before and is_alone else looks.of(of.befores.get(name, name))
    return Series(name, (Point(*of.pairs[name]),), look, is_open=is_before)


def shared_radii(
    radii_of: Mapping[str, Collection[float]], choose: Callable[[Dict[float, List[str]]], float]
) -> Iterator[Tuple[float, List[str]]]:
    """Every system once: at a radius that most of them share, then those that lack it at one of theirs.

    Args:
        radii_of: name of a system -> where it was measured.
        choose: which of several radii, given the systems at each.
    """
    left = [name for name, radii in radii_of.items() if radii]
    while left:
        radii = sorted({radius for name in left for radius in radii_of[name]})
        at_radius = {radius: [name for name in left if radius in radii_of[name]] for radius in radii}
        most = max(map(len, at_radius.values()))
        radius = choose({radius: names for radius, names in at_radius.items() if len(names) == most})
        yield radius, at_radius[radius]
        left = [name for name in left if name not in at_radius[radius]]


def _middle(at_radius: Dict[float, List[str]]) -> float:
    return list(at_radius)[len(at_radius) // 2]


def _embeddings(sources: Sequence[Source], looks: Looks) -> List[TradeOff]:
    """At the radius at which systems are told apart best: where their mean is nearest to half the clean one."""
    names = system_names(sources, found(sources, "embedding_attacks"), looks)
    groups: Dict[tuple, Dict[str, Dict[float, Estimate]]] = {}
    for source, place, record in _not_of_an_evaluation(sources, "embedding_attacks"):
        for own, curve in record.models.items():
            groups.setdefault((record.method, record.norm, *record.group), {})[names[source, place, own]] = dict(curve)
    results = []
    for (method, norm, *_), curves in groups.items():
        radii_of = {name: [radius for radius in curve if radius > 0] for name, curve in curves.items() if 0.0 in curve}
        for radius, shared in shared_radii(radii_of, partial(_nearest_to_half, curves)):
            pairs = {name: (curves[name][0.0].times(100), curves[name][radius].times(100)) for name in shared}
            missing = [name for name in curves if name not in pairs]
            words = f"accuracy, %, {method} {norm}, ε = {radius:g}"
            results.append(TradeOff("clean accuracy, %", words, pairs, missing=missing))
    return results


def _nearest_to_half(curves: Dict[str, Dict[float, Estimate]], at_radius: Dict[float, List[str]]) -> float:
    def off(radius: float) -> float:
        names = at_radius[radius]
        return abs(sum(curves[n][radius].value - curves[n][0.0].value / 2 for n in names)) / len(names)

    return min(at_radius, key=off)


def _texts(sources: Sequence[Source], looks: Looks) -> List[TradeOff]:
    records = found(sources, "text_attacks")
    names, attacks = system_names(sources, records, looks), attack_names(records)
    results = []
    for source, place, record in _not_of_an_evaluation(sources, "text_attacks"):
        pairs = {}
        for model in record.models:
            clean, robust = (model.rates[name].times(100) for name in ("accuracy", "robust_accuracy"))
            if clean.value is not None and robust.value is not None:
                pairs[names[source, place, model.name]] = (clean, robust)
        if pairs:
            results.append(TradeOff("accuracy before, %", f"accuracy after {attacks[source, place]}, %", pairs))
    return results


def _not_of_an_evaluation(sources: Sequence[Source], kind: str) -> List[Found]:
    """Records whose numbers evaluation.json does not have: there they are means over a system's seeds."""
    parts = {(s.name, n.quantity.part) for s in sources if s.evaluation is not None for n in s.evaluation.numbers}
    return [one for one in found(sources, kind) if (one.source, one.place) not in parts]


def _evaluations(sources: Sequence[Source]) -> List[TradeOff]:
    """What was measured under each attack, against its clean counterpart. Over all evaluations."""
    clean: Dict[Counterpart, Dict[str, Number]] = {}
    attacked: Dict[Quantity, Dict[float, Dict[str, Estimate]]] = {}
    for name, number in means_of(evaluations_of(sources)):
        quantity = number.quantity
        if number.estimate.value is None:
            continue
        if quantity.attacked_from:
            at_any = quantity._replace(epsilon=None)
            attacked.setdefault(at_any, {}).setdefault(quantity.epsilon or 0.0, {})[name] = number.estimate
        elif quantity.epsilon is None:
            clean.setdefault((quantity.part, quantity.set, quantity.metric), {})[name] = number
    results = []
    for quantity, by_radius in attacked.items():
        of_clean = next((clean[place] for place in quantity.attacked_from if place in clean), {})
        every = dict.fromkeys(name for of_systems in by_radius.values() for name in of_systems)
        radii_of = {n: [radius for radius, of in by_radius.items() if n in of] for n in every if n in of_clean}
        for radius, shared in shared_radii(radii_of, _middle):
            pairs = {name: (of_clean[name].estimate, by_radius[radius][name]) for name in shared}
            at, unit = f", ε = {radius:g}" if radius else "", f", {quantity.unit}" if quantity.unit else ""
            words = f"{quantity.part}: {quantity.set} {quantity.metric}{at}{unit}"
            missing = [name for name in every if name not in pairs]
            clean_words = next(iter(of_clean.values())).what
            results.append(TradeOff(clean_words, words, pairs, quantity.better, missing=missing))
    return results


def _probes(sources: Sequence[Source]) -> List[TradeOff]:
    """Of runs that were measured before and after: the sentiment probe, each run and what it began from."""
    rows_of: Dict[str, Dict[float, dict]] = {}
    for one in sources:
        for row in [] if one.run is None or not one.run.results else one.run.results["rows"]:
            radius = 0.0 if row["key"] == _CLEAN_PROBE else row["radius"]
            if row["key"].startswith(_PROBE) and radius is not None:
                rows_of.setdefault(one.name, {})[radius] = row
    radii_of = {name: [radius for radius in rows if radius > 0] for name, rows in rows_of.items() if 0 in rows}
    results = []
    for radius, shared in shared_radii(radii_of, _middle):
        pairs: Pairs = {}
        for name in shared:
            clean, attacked = rows_of[name][0], rows_of[name][radius]
            for side, called in (("before", f"{name}, before"), ("after", name)):
                pairs[called] = (of_side(clean, side).times(100), of_side(attacked, side).times(100))
        befores = {f"{name}, before": name for name in shared}
        missing = [name for name in rows_of if name not in shared]
        under = f"sentiment probe, %, radius {radius:g}"
        results.append(TradeOff("sentiment probe, clean, %", under, pairs, befores=befores, missing=missing))
    return results
