"""What evaluations and attacks have left, taken from their JSON into what the page shows.

Each ``read_…`` takes what the file holds and raises KeyError, TypeError, ValueError or AttributeError where it is not
what this version writes: the caller names the file. A share is of 1, as in the files.
"""

import math
import os.path
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from fastadv.evaluation.suite.schema import Quantity, quantities_of, quantity_of
from fastadv.evaluation.text.rows import TextAttackRow
from fastadv.evaluation.text_report.findings import findings_in, sentence
from fastadv.evaluation.text_report.page import recipe_name
from fastadv.evaluation.text_report.rates import CAPS
from fastadv.pages.table import Estimate
from fastadv.report.old_form import in_todays_form


class Model(NamedTuple):
    """A model as a record knows it."""

    folder: str
    """as it was given"""
    fingerprint: str = ""
    """of its weights; of a classifier in an evaluation two with a dash between, encoder and whole; "" is not known"""
    name: str = ""
    """what an evaluation calls it, its parts too"""

    def is_same(self, other: "Model") -> bool:
        """Equal weights, or the same folder."""
        if set(filter(None, self.fingerprint.split("-"))) & set(filter(None, other.fingerprint.split("-"))):
            return True
        first, second = (os.path.abspath(os.path.expanduser(one.folder)) for one in (self, other))
        return first == second


@dataclass(frozen=True)
class EmbeddingAttack:
    """attack.json: accuracy against the radius."""

    method: str
    norm: str
    data: str
    group: tuple
    """equal for attacks whose numbers compare: same texts, same settings but for the radii"""
    models: Dict[str, List[Tuple[float, Estimate]]]
    """name -> (radius, accuracy), radius 0 being no attack"""
    warnings: List[Tuple[str, str]]
    """name of a model, what was noticed"""
    given: Dict[str, Model]
    """name -> the model"""

    @property
    def subject(self) -> object:
        """Equal for records, of every kind, whose models of one name would be two points of one thing."""
        return self.group


@dataclass(frozen=True)
class TextAttackOfModel:
    """A line of text-attack.json's table."""

    name: str
    given: Model
    control_of: Optional[Tuple[str, str]]
    """of a control the names of the baseline that it is, and of the model that it is set against"""
    counts: Dict[str, int]
    rates: Dict[str, Estimate]
    """accuracy, robust_accuracy, and success by the name of the cap, of 1; the means of queries and words_changed"""
    accuracy_drop: Optional[float]


@dataclass(frozen=True)
class TextAttack:
    """text-attack.json, and the rows beside it."""

    attack: str
    models: List[TextAttackOfModel]
    findings: List[dict]
    """what `fastadv.evaluation.text_report.findings.sentence` puts into words"""
    rows: Dict[str, List[TextAttackRow]] = field(default_factory=dict)

    @property
    def subject(self) -> object:
        return self.attack


@dataclass(frozen=True)
class GeometryOfModel:
    """A point of the plane; the alignment of a model without dropout may not be known."""

    name: str
    quantities: Dict[str, Estimate]


@dataclass(frozen=True)
class Geometry:
    """geometry.json."""

    data: str
    positives: str
    num_sentences: int
    models: List[GeometryOfModel]

    @property
    def group(self) -> tuple:
        """Equal for geometries whose numbers compare."""
        return self.data, self.positives, self.num_sentences

    @property
    def subject(self) -> object:
        return self.data, self.positives


@dataclass(frozen=True)
class Number:
    """One of evaluation.json's."""

    quantity: Quantity
    system: str
    model: Optional[str]
    """None: the mean over the system's models"""
    estimate: Estimate
    spread: Optional[float]

    @property
    def what(self) -> str:
        """The number in words, without the system."""
        unit = f" ({self.quantity.unit})" if self.quantity.unit else ""
        return f"{quantity_words(self.quantity)}{unit}"


def quantity_words(quantity: Quantity) -> str:
    """Set and metric, each once, and the radius."""
    at = "" if quantity.epsilon is None else f", epsilon {quantity.epsilon:g}"
    words = dict.fromkeys(part for part in (quantity.set, quantity.metric.replace("_", " ")) if part)
    return f"{' '.join(words)}{at}"


class Difference(NamedTuple):
    """A system less the baseline."""

    quantity: Quantity
    system: str
    baseline: str
    test: str
    estimate: Estimate
    p_value: Optional[float]
    p_holm: Optional[float]


@dataclass(frozen=True)
class Evaluation:
    """evaluation.json."""

    systems: Dict[str, List[Model]]
    """name -> its models, one a seed"""
    parts: Dict[str, Tuple[str, Optional[str]]]
    """name -> status, why"""
    numbers: List[Number]
    differences: List[Difference]
    warnings: List[str]


def read_embedding_attack(found: dict) -> EmbeddingAttack:
    settings = found["settings"]
    data = found["data"]
    others = sorted((name, repr(value)) for name, value in settings.items() if name != "epsilons")
    models, warnings, given = {}, [], {}
    for model in found["models"]:
        given[_text(model["name"])] = _model(model, model.get("model") or model["name"])
        curve = {0.0: _estimate(model["accuracy"])}
        curve.update({_finite(row["epsilon"]): _estimate(row["accuracy"]) for row in model["epsilons"]})
        models[_text(model["name"])] = [(e, a) for e, a in sorted(curve.items()) if a.value is not None]
        warnings += [(model["name"], _text(warning)) for warning in model.get("warnings", [])]
    return EmbeddingAttack(
        method=_text(settings["method"]),
        norm=_text(settings["norm"]),
        data=f"{data['num_texts']:,} texts of {data['source']} ({data['split']})",
        group=(data.get("hash"), *others),
        models=models,
        warnings=warnings,
        given=given,
    )


def read_text_attack(found: dict) -> TextAttack:
    if found["kind"] != "text attack":
        raise ValueError(f"kind {found['kind']!r}")
    models = []
    for model in found["models"]:
        rates = model["rates"]
        named = ("accuracy", "robust_accuracy", "queries", "words_changed")
        estimates = {name: _estimate(rates[name]) for name in named}
        estimates |= {cap.name: _estimate(rates["success"][cap.name]) for cap in CAPS}
        counts = {name: _count(rates[f"num_{name}"]) for name in ("texts", "attacked", "skipped", "error")}
        drop, control = rates["accuracy_drop"], model.get("control")
        models.append(
            TextAttackOfModel(
                name=_text(model["name"]),
                given=_model(model, model.get("model") or model["name"]),
                control_of=(_text(control["baseline"]), _text(control["robust"])) if control else None,
                counts=counts,
                rates=estimates,
                accuracy_drop=None if drop is None else _finite(drop),
            )
        )
    title = recipe_name(found["protocol"]) or found["protocol"].get("title") or "attack"
    findings = findings_in(found)
    for finding in findings:
        # What is wrong with one shows here, where the file is known.
        sentence(finding)
    return TextAttack(_text(title), models, findings)


def read_geometry(found: dict) -> Geometry:
    models = [
        GeometryOfModel(_text(row["model"]), {name: _estimate(one) for name, one in row["quantities"].items()})
        for row in found["models"]
    ]
    if any("uniformity" not in model.quantities for model in models):
        raise ValueError("a model has no uniformity")
    return Geometry(_text(found["data"]), _text(found["positives"]), _count(found["num_sentences"]), models)


def read_evaluation(found: dict) -> Evaluation:
    found = in_todays_form(found)
    parts = {
        _text(name): (_text(part["status"]), None if part.get("why") is None else _text(part["why"]))
        for name, part in found["parts"].items()
    }
    quantities = quantities_of(found)
    models = {_text(one["model"]): _model(one, one["model"]) for one in found["models"]}
    return Evaluation(
        systems={_text(s["name"]): [models[_text(one)] for one in s.get("models", [])] for s in found["systems"]},
        parts=parts,
        numbers=[_read_number(row, quantities) for row in found["numbers"]],
        differences=[_read_difference(row, quantities) for row in found["differences"]],
        warnings=[_text(warning) for warning in found.get("warnings", [])],
    )


def _model(row: dict, folder: str) -> Model:
    return Model(_text(folder), _text(row.get("fingerprint") or ""), _text(row.get("name") or ""))


def _read_quantity(row: dict, quantities: Dict[tuple, Quantity]) -> Quantity:
    place = {"set": _text(row.get("set") or ""), "epsilon": _maybe(row.get("epsilon"))}
    found = quantity_of({**row, "part": _text(row["part"]), "metric": _text(row["metric"]), **place}, quantities)
    _text(found.unit)
    if found.better not in (None, "higher", "lower"):
        raise ValueError(f"better {found.better!r}, expected 'higher', 'lower' or null")
    return found


def _read_number(row: dict, quantities: Dict[tuple, Quantity]) -> Number:
    model = None if row.get("model") is None else _text(row["model"])
    quantity, spread = _read_quantity(row, quantities), _maybe(row.get("spread"))
    return Number(quantity, _text(row["system"]), model, _estimate(row), spread)


def _read_difference(row: dict, quantities: Dict[tuple, Quantity]) -> Difference:
    words = (_text(row.get(name) or "") for name in ("system", "baseline", "test"))
    p_values = (_maybe(row.get(name)) for name in ("p_value", "p_holm"))
    return Difference(_read_quantity(row, quantities), *words, _estimate(row), *p_values)


def _estimate(found: dict) -> Estimate:
    return Estimate(_maybe(found["value"]), _maybe(found.get("low")), _maybe(found.get("high")))


def _maybe(value: Any) -> Optional[float]:
    """None for None and for a number that is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        # A whole number that no float holds.
        return None


def _finite(value: Any) -> float:
    number = _maybe(value)
    if number is None:
        raise ValueError(f"{value!r} is no number")
    return number


def _count(value: Any) -> int:
    return int(_finite(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
