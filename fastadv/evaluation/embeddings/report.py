"""What an attack found as numbers with intervals, as a table to read, and as one line a text.

Intervals are 95 % by the bootstrap over texts (``intervals.py``); models of one report are attacked on the same texts,
so that their difference has a paired one.
"""

from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np

from fastadv.data.labelled.labels import LabelMap
from fastadv.evaluation.embeddings.checks import Check
from fastadv.evaluation.embeddings.classifier_attack import ClassifierUnderAttack
from fastadv.evaluation.intervals import (
    CONFIDENCE,
    NUM_RESAMPLES,
    mean_statistic,
    paired_statistic_interval,
    resample_counts,
    statistic_interval,
)
from fastadv.files.csv_file import write_csv
from fastadv.pages.text_table import aligned, interval_cell

_ROWS = (
    ("accuracy", "accuracy", ".3f"),
    ("distance_l2", "l2 distance", ".3f"),
    ("distance_cosine", "cosine distance", ".4f"),
)
"""key, what the table calls it, how it is written"""


def report(
    results: Dict[str, ClassifierUnderAttack],
    label_maps: Dict[str, LabelMap],
    checks: Optional[Dict[str, List[Check]]] = None,
    seed: int = 0,
) -> dict:
    """All models' numbers, ready for JSON.

    Args:
        results, label_maps, checks: by the model's name; the first is the one that others are compared with.
        seed: of the bootstrap.
    """
    first = next(iter(results.values()))
    counts = resample_counts(len(first.labels), seed=seed)
    models = []
    for name, result in results.items():
        numbers = _of_model(result, label_maps[name], counts)
        if result is not first:
            _add_differences(numbers, first, result, counts)
        found = (checks or {}).get(name, [])
        listed = [{**vars(check)} for check in found]
        warnings = [check.text for check in found if check.is_warning]
        if not numbers["num_attacked"]:
            warnings.insert(0, "no text is right without an attack: none was attacked, and radii say nothing")
        models.append({"name": name, **numbers, "checks": listed, "warnings": warnings})
    return {
        "settings": first.settings.as_dict(),
        "num_texts": len(first.labels),
        "confidence": CONFIDENCE,
        "num_resamples": NUM_RESAMPLES,
        "models": models,
    }


def _of_model(result: ClassifierUnderAttack, label_map: LabelMap, counts: np.ndarray) -> dict:
    rows = []
    for number, epsilon in enumerate(result.settings.epsilons):
        is_right = result.is_right[number]
        row = {"epsilon": epsilon, "accuracy": _interval(is_right, counts)}
        row["per_class"] = _per_class(is_right, result.labels, label_map)
        row["accuracy_first_run"] = float(result.is_right_first_run[number].mean())
        if result.is_right_transferred is not None:
            row["accuracy_transferred"] = float(result.is_right_transferred[number].mean())
        for name in ("distance_l2", "distance_cosine"):
            distances = getattr(result, name)
            if distances is not None:
                row[name] = _interval(distances[number], counts)
        rows.append(row)
    num_attacked = int(result.is_right_clean.sum())
    return {
        "num_attacked": num_attacked,
        "num_skipped": len(result.labels) - num_attacked,
        "accuracy": _interval(result.is_right_clean, counts),
        "per_class": _per_class(result.is_right_clean, result.labels, label_map),
        "share_without_gradient": float(result.has_vanished.mean()),
        "epsilons": rows,
    }


def _add_differences(numbers: dict, first: ClassifierUnderAttack, other: ClassifierUnderAttack, counts) -> None:
    """To the first model, paired: on the same resamples of the same texts."""

    def difference(before: np.ndarray, after: np.ndarray) -> dict:
        return vars(paired_statistic_interval(mean_statistic(before), mean_statistic(after), counts))

    numbers["accuracy_difference"] = difference(first.is_right_clean, other.is_right_clean)
    for row, before, after in zip(numbers["epsilons"], first.is_right, other.is_right, strict=True):
        row["accuracy_difference"] = difference(before, after)


def _interval(values: np.ndarray, counts: np.ndarray) -> Dict[str, Optional[float]]:
    if not np.isfinite(values).all():
        # A vector that is not finite is at no distance.
        return {"value": None, "low": None, "high": None}
    return {**vars(statistic_interval(mean_statistic(values), counts))}


def _per_class(is_right: np.ndarray, labels: np.ndarray, label_map: LabelMap) -> Dict[str, dict]:
    """Accuracy and number of texts of every class that has any."""
    found = {}
    for number, name in enumerate(label_map.names):
        of_class = labels == number
        if of_class.any():
            found[name] = {"accuracy": float(is_right[of_class].mean()), "num_texts": int(of_class.sum())}
    return found


def text_table(results: dict) -> str:
    """Aligned lines, a radius a line and a model a column, and the warnings under it."""
    models = results["models"]
    lines = [["", *(model["name"] for model in models)], ["accuracy, clean", *(_cell(m["accuracy"]) for m in models)]]
    lines.append(["attacked; wrong already", *(f"{m['num_attacked']:,}; {m['num_skipped']:,}" for m in models)])
    for key, label, form in _ROWS:
        for number, epsilon in enumerate(results["settings"]["epsilons"]):
            cells = [model["epsilons"][number].get(key) for model in models]
            if all(cell is not None for cell in cells):
                shown = [_cell(c, form) if m["num_attacked"] else "n/a" for m, c in zip(models, cells, strict=True)]
                lines.append([f"{label}, epsilon {epsilon:g}", *shown])
    return f"{caption(results)}\n{aligned(lines)}"


def warning_lines(results: dict) -> List[str]:
    """What the checks of each model warn of."""
    return [f"{model['name']}: {warning}" for model in results["models"] for warning in model["warnings"]]


def caption(results: dict) -> str:
    """What was done, in one line."""
    settings = results["settings"]
    steps = f"{settings['num_steps']} step{'s' if settings['num_steps'] > 1 else ''}"
    runs = settings["num_restarts"] * len(settings["step_sizes"])
    return (
        f"{settings['method']} on the embeddings of {results['num_texts']:,} texts, {settings['norm']} ball a text, "
        f"{steps}, {runs} run{'s' if runs > 1 else ''} a radius [95 % interval]"
    )


def _cell(interval: Dict[str, Optional[float]], form: str = ".3f") -> str:
    return "not finite" if interval["value"] is None else interval_cell(interval, form)


def write_rows(
    path: Path, results: Dict[str, ClassifierUnderAttack], label_maps: Dict[str, LabelMap], rows: Sequence[int]
) -> None:
    """One line a model and text.

    Args:
        rows: (N,) the place of each text in its source, counted from 0.
    """
    first = next(iter(results.values()))
    distances = [name for name in ("distance_l2", "distance_cosine") if getattr(first, name) is not None]
    columns = [f"{name}@{epsilon:g}" for name in distances for epsilon in first.settings.epsilons]
    lines = []
    for name, result in results.items():
        names, fooled = label_maps[name].names, result.fooling_epsilon
        measured = [getattr(result, column)[k] for column in distances for k in range(len(first.settings.epsilons))]
        for text, row in enumerate(rows):
            # Never fooled: empty.
            epsilon = f"{fooled[text]:g}" if np.isfinite(fooled[text]) else ""
            labels = names[result.labels[text]], names[result.predicted[text]]
            numbers = [f"{values[text]:.6g}" for values in measured]
            lines.append([name, row, *labels, int(result.is_right_clean[text]), epsilon, *numbers])
    write_csv(path, ["model", "row", "label", "predicted", "is_right_clean", "fooling_epsilon", *columns], lines)
