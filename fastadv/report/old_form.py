"""``evaluation.json`` as versions before format 2 wrote it, brought into today's form.

It did not say what a number is attacked from, which task it is of, or in which unit a radius is: that is told here,
and nowhere else, by the names that the parts of those versions gave.
"""

from fastadv.evaluation.model_names import names_of_seeds
from fastadv.evaluation.suite.schema import ABSOLUTE, CLASSIFICATION, FEATURES, FORMAT, OF_RMS, SIMILARITY, STS_B

_UNDER_ATTACK = " under attack"
_RATES_OF_SUCCESS = {"attack success": "accuracy", "fooled": "spearman"}
"""of the attacker, and what the same part measured without an attack"""
_TASKS = {
    "spearman": SIMILARITY,
    "spearman under attack": SIMILARITY,
    "fooled": SIMILARITY,
    "retrieval@1": FEATURES,
    "centred cosine": FEATURES,
}


def in_todays_form(found: dict) -> dict:
    """The record with ``quantities`` and ``models``. KeyError, TypeError and the like where it is damaged."""
    if found["format"] == FORMAT:
        return found
    if found["format"] != 1:
        raise ValueError(f"format {found['format']!r}, expected 1 or {FORMAT}")
    systems = {one["name"]: one.get("models", []) for one in found["systems"]}
    owners = [(model, system) for system, models in systems.items() for model in models]
    names = names_of_seeds(systems)
    models = [{"model": model, "name": name, "system": system} for (model, system), name in zip(owners, names)]
    quantities = [_quantity(row) for row in found["numbers"]]
    return {**found, "format": FORMAT, "models": found.get("models") or models, "quantities": quantities}


def _quantity(row: dict) -> dict:
    part, name, metric, epsilon = row["part"], row.get("set") or "", row["metric"], row.get("epsilon")
    clean = _RATES_OF_SUCCESS.get(metric, metric.removesuffix(_UNDER_ATTACK))
    is_attacked = clean != metric or (epsilon is not None and epsilon > 0)
    return {
        **{"part": part, "set": name, "metric": metric, "epsilon": epsilon},
        "unit": row.get("unit") or "",
        "better": row.get("better"),
        "task": _TASKS.get(metric, FEATURES if part == "geometry" else CLASSIFICATION),
        "radius_unit": "" if epsilon is None else ABSOLUTE if metric == "accuracy" else OF_RMS,
        "attacked_from": [(part, name, clean), STS_B] if is_attacked else [],
    }
