"""What a model gained over its baseline under a text attack, and whether more than a shift of its bias would explain.

A gain counts where the model falls less often than the baseline and less often than the control, the baseline with
the model's class shares (`text_attack_control.py`), each on the texts that both get right, by McNemar's exact test at
the 5 % level. The tests are not corrected for their number.
"""

import re
from typing import Dict, List, Mapping, Optional, Sequence

from fastadv.evaluation.intervals import CONFIDENCE
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text_report.rates import CAPS, Cap, paired

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
    return control.facts["control"].get("words", "class shares")


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
    """For each model after the first, and each cap: ``model``, ``cap``, ``verdict``, ``sentence``."""
    baseline, *others = models_of(runs) or [None]
    controls = controls_of(runs)
    return [_finding(baseline, controls.get(other.name), other, cap) for other in others for cap in CAPS]


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


def _finding(baseline: AttackedModel, control: Optional[AttackedModel], model: AttackedModel, cap: Cap) -> dict:
    to_baseline = paired(baseline.rows, model.rows, cap)
    to_control = None if control is None else paired(control.rows, model.rows, cap)
    verdict = _verdict(to_baseline, to_control)
    return {
        "model": model.name,
        "cap": cap.name,
        "verdict": verdict,
        "sentence": _sentence(baseline, control, model, cap, to_baseline, to_control, verdict),
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


def _sentence(baseline, control, model, cap: Cap, to_baseline: dict, to_control: Optional[dict], verdict: str) -> str:
    where = "" if cap is CAPS[0] else f" ({cap.words})"
    if not to_baseline["num_texts"]:
        return f"{model.name}{where}: n/a, it and {baseline.name} are right on no text that both were attacked on."
    first, second = _fooled_shares(to_baseline)
    said = (
        f"{model.name}{where} falls on {second} of the {to_baseline['num_texts']:,} texts that it and {baseline.name} "
        f"get right, {baseline.name} on {first}: difference {_points(to_baseline)}."
    )
    conclusion = {
        NONE: "No gain.",
        LOSS: "It falls more often.",
        UNCONTROLLED: "No control was run, so this may be no more than a shift.",
        LEAN: "This is no gain beyond the control.",
        GAIN: "This is a gain beyond the control.",
        UNKNOWN: "Beside the control there is nothing to compare.",
    }[verdict]
    if to_control is None or not to_control["num_texts"]:
        return f"{said} {conclusion}"
    words = control_words(control)
    share, second = _fooled_shares(to_control)
    return (
        f"{said} The control, {baseline.name} with its {words}, falls on {share} where it falls on {second} "
        f"({to_control['num_texts']:,} texts): difference {_points(to_control)}. {conclusion}"
    )


def renamed(sentence: str, names: Mapping[str, str]) -> str:
    """A sentence of `findings` with other names of its models; ``names`` has all of the attack's."""
    if not names:
        return sentence
    # The longest first: a name may be the beginning of another.
    any_name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    places = rf"^({any_name})(?=(?: \([^)]*\))?(?: falls on |: n/a))|(?<=it and )({any_name})(?= (?:get|are) right)"
    places += rf"|(?<=get right, )({any_name})(?= on )|(?<=The control, )({any_name})(?= with its )"
    return re.sub(places, lambda found: names[found[0]], sentence)


def _fooled_shares(pair: dict):
    first, second = pair["num_both"] + pair["num_only_first"], pair["num_both"] + pair["num_only_second"]
    return f"{first / pair['num_texts']:.1%}", f"{second / pair['num_texts']:.1%}"


def _points(pair: dict) -> str:
    difference = pair["difference"]
    low, high = (100 * difference[end] for end in ("low", "high"))
    return f"{100 * difference['value']:+.1f} points [{low:+.1f}, {high:+.1f}], p = {pair['p_value']:.2g}"
