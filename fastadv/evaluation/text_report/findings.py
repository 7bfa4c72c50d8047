"""What a model gained over its baseline under a text attack, and whether more than a shift of its bias would explain.

A gain counts where the model falls less often than the baseline and less often than the control, the baseline with
the model's class shares (`text_attack_control.py`), each on the texts that both get right, by McNemar's exact test at
the 5 % level. The tests are not corrected for their number.
"""

from types import MappingProxyType
from typing import Dict, List, Mapping, Optional, Sequence

from fastadv.evaluation.intervals import CONFIDENCE
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text_report.rates import CAPS, paired

GAIN, LEAN, UNCONTROLLED, NONE, LOSS, UNKNOWN = VERDICTS = (
    "gain",
    "lean",
    "uncontrolled",
    "no gain",
    "loss",
    "n/a",
)
"""lean: it falls less often than the baseline, but not less often than the control; uncontrolled: there is none"""

_LEVEL = 1 - CONFIDENCE


def controls_of(runs: Sequence[AttackedModel]) -> Dict[str, AttackedModel]:
    """By the name of the model that each is the control of."""
    return {run.facts["control"]["robust"]: run for run in runs if run.facts.get("control")}


def models_of(runs: Sequence[AttackedModel]) -> List[AttackedModel]:
    """All that are no control; the first is the baseline."""
    return [run for run in runs if not run.facts.get("control")]


def control_words(control: AttackedModel) -> str:
    """What of the robust model a control has."""
    return _words_of(control.facts["control"])


def _words_of(control: Mapping) -> str:
    return control.get("words", "class shares")


def comparisons(runs: Sequence[AttackedModel], labels: Sequence[str]) -> List[dict]:
    """Each model with the baseline and its control, each control with the baseline; all texts and by class, at caps."""
    baseline, *others = models_of(runs) or [None]
    controls = controls_of(runs)
    pairs = []
    for other in others:
        control = controls.get(other.name)
        pairs += [(baseline, other)] + ([(control, other), (baseline, control)] if control else [])
    return [_comparison(first, second, labels) for first, second in pairs]


def findings(runs: Sequence[AttackedModel]) -> List[dict]:
    """A finding for each model after the first, and each cap; `sentence` puts one into words.

    Keys: ``kind``; ``model``, ``baseline`` and ``control`` are names, the last with ``control_words``; ``cap``;
    ``verdict``; ``to_baseline`` and ``to_control`` compare the model with each, by `rates.paired`.
    """
    baseline, *others = models_of(runs) or [None]
    found, controls = [], controls_of(runs)
    for model in others:
        control = controls.get(model.name)
        words = None if control is None else control_words(control)
        for cap in CAPS:
            to_baseline = paired(baseline.rows, model.rows, cap)
            to_control = None if control is None else paired(control.rows, model.rows, cap)
            name = None if control is None else control.name
            found.append(_finding(model.name, baseline.name, name, words, cap.name, to_baseline, to_control))
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
        name, words = (None, None) if control is None else (control["name"], _words_of(control["control"]))
        to_control = None if name is None else pairs[name, model][cap]
        found.append(_finding(model, baseline, name, words, cap, pairs[baseline, model][cap], to_control))
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
    control: Optional[str],
    words: Optional[str],
    cap: str,
    to_baseline: dict,
    to_control: Optional[dict],
) -> dict:
    return {
        "kind": "text attack beside its control",
        "model": model,
        "baseline": baseline,
        "control": control,
        "control_words": words,
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
