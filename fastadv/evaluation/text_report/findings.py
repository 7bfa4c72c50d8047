"""What a model gained over its baseline under a text attack, and whether more than a shift of its bias would explain.

A gain counts where the model falls less often than the baseline and less often than the control, the baseline with
the model's class shares (`text_attack_control.py`), each on the texts that both get right, by McNemar's exact test at
the 5 % level. The tests are not corrected for their number.
"""

from types import MappingProxyType
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from fastadv.evaluation.intervals import CONFIDENCE
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text_report.rates import CAPS, paired

GAIN, LEAN, UNCONTROLLED, NONE, LOSS, UNKNOWN = "gain", "lean", "uncontrolled", "no gain", "loss", "n/a"
"""lean: it falls less often than the baseline, but not less often than the control; uncontrolled: there is none"""

_LEVEL = 1 - CONFIDENCE


def _models(runs: Sequence[AttackedModel]) -> Tuple[Optional[AttackedModel], List[tuple]]:
    """The baseline, which is the first, and each other model with its control or None."""
    baseline, *others = [run for run in runs if not run.facts.get("control")] or [None]
    controls = {run.facts["control"]["robust"]: run for run in runs if run.facts.get("control")}
    return baseline, [(model, controls.get(model.name)) for model in others]


def comparisons(runs: Sequence[AttackedModel], labels: Sequence[str]) -> List[dict]:
    """Each model with the baseline and its control, each control with the baseline; all texts and by class, at caps."""
    baseline, others = _models(runs)
    pairs = []
    for model, control in others:
        pairs += [(baseline, model)] + ([(control, model), (baseline, control)] if control else [])
    return [_comparison(first, second, labels) for first, second in pairs]


def findings(runs: Sequence[AttackedModel]) -> List[dict]:
    """A finding for each model after the first, and each cap; `sentence` puts one into words.

    Keys: ``kind``; ``model``, ``baseline`` and ``control`` are names, the last with ``control_words``; ``cap``;
    ``verdict``; ``to_baseline`` and ``to_control`` compare the model with each, by `rates.paired`.
    """
    baseline, others = _models(runs)
    found = []
    for model, control in others:
        about = None if control is None else (control.name, control.facts["control"])
        for cap in CAPS:
            to_control = None if control is None else paired(control.rows, model.rows, cap)
            to_baseline = paired(baseline.rows, model.rows, cap)
            found.append(_finding(model.name, baseline.name, about, cap.name, to_baseline, to_control))
    return found


def findings_in(results: dict) -> List[dict]:
    """The findings of what a ``text-attack.json`` holds.

    Files of earlier versions have sentences in their place; those findings are made of the file's comparisons.
    """
    if all("to_baseline" in finding for finding in results["findings"]):
        return results["findings"]
    pairs = {(one["first"], one["second"]): one["all"] for one in results["comparisons"]}
    baseline = next(model["name"] for model in results["models"] if not model.get("control"))
    controls = {model["control"]["robust"]: model for model in results["models"] if model.get("control")}
    found = []
    for model, cap in ((finding["model"], finding["cap"]) for finding in results["findings"]):
        control = controls.get(model)
        about = None if control is None else (control["name"], control["control"])
        to_control = None if control is None else pairs[control["name"], model][cap]
        found.append(_finding(model, baseline, about, cap, pairs[baseline, model][cap], to_control))
    return found


def _comparison(first: AttackedModel, second: AttackedModel, labels: Sequence[str]) -> dict:
    def at_caps(of_class: Optional[str] = None) -> Dict[str, dict]:
        rows = [[row for row in run.rows if of_class in (None, row.label)] for run in (first, second)]
        return {cap.name: paired(*rows, cap) for cap in CAPS}

    known = dict.fromkeys([*labels, *(row.label for row in first.rows)])
    return {
        "first": first.name,
        "second": second.name,
        "all": at_caps(),
        "per_class": {label: at_caps(label) for label in known},
    }


def _finding(
    model: str,
    baseline: str,
    control: Optional[Tuple[str, Mapping]],
    cap: str,
    to_baseline: dict,
    to_control: Optional[dict],
) -> dict:
    """``control`` is the name of the model's control, and what is known of it."""
    name, facts = control or (None, None)
    return {
        "kind": "text attack beside its control",
        "model": model,
        "baseline": baseline,
        "control": name,
        "control_words": None if facts is None else facts.get("words", "class shares"),
        "cap": cap,
        "verdict": _verdict(to_baseline, to_control),
        "to_baseline": to_baseline,
        "to_control": to_control,
    }


def _verdict(to_baseline: dict, to_control: Optional[dict]) -> str:
    if not to_baseline["num_texts"]:
        return UNKNOWN
    if to_baseline["p_value"] >= _LEVEL:
        return NONE
    if to_baseline["difference"]["value"] < 0:
        return LOSS
    if to_control is None:
        return UNCONTROLLED
    if not to_control["num_texts"]:
        return UNKNOWN
    return GAIN if to_control["p_value"] < _LEVEL and to_control["difference"]["value"] > 0 else LEAN


def sentence(finding: dict, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """A finding in words.

    Args:
        names: what the reader knows models by; a model that is not there keeps its own name.
    """
    model, baseline = (names.get(finding[role], finding[role]) for role in ("model", "baseline"))
    to_baseline, to_control = finding["to_baseline"], finding["to_control"]
    cap = next(cap for cap in CAPS if cap.name == finding["cap"])
    where = "" if cap is CAPS[0] else f" ({cap.words})"
    if not to_baseline["num_texts"]:
        return f"{model}{where}: n/a, it and {baseline} are right on no text that both were attacked on."
    first, second = _fooled_shares(to_baseline)
    said = (
        f"{model}{where} falls on {second} of the {to_baseline['num_texts']:,} texts that it and {baseline} "
        f"get right, {baseline} on {first}: difference {_points(to_baseline)}."
    )
    conclusion = {
        NONE: "No gain.",
        LOSS: "It falls more often.",
        UNCONTROLLED: "No control was run, so this may be no more than a shift.",
        LEAN: "This is no gain beyond the control.",
        GAIN: "This is a gain beyond the control.",
        UNKNOWN: "Beside the control there is nothing to compare.",
    }[finding["verdict"]]
    if to_control is None or not to_control["num_texts"]:
        return f"{said} {conclusion}"
    share, second = _fooled_shares(to_control)
    return (
        f"{said} The control, {baseline} with its {finding['control_words']}, falls on {share} where it falls on "
        f"{second} ({to_control['num_texts']:,} texts): difference {_points(to_control)}. {conclusion}"
    )


def _fooled_shares(pair: dict):
    first, second = pair["num_both"] + pair["num_only_first"], pair["num_both"] + pair["num_only_second"]
    return f"{first / pair['num_texts']:.1%}", f"{second / pair['num_texts']:.1%}"


def _points(pair: dict) -> str:
    difference = pair["difference"]
    low, high = (100 * difference[end] for end in ("low", "high"))
    return f"{100 * difference['value']:+.1f} points [{low:+.1f}, {high:+.1f}], p = {pair['p_value']:.2g}"
