"""A text attack's report: JSON, a table as CSV and text, a PNG, and a page of the texts with their changed words."""

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from fastadv.config.text_attack import CAPS
from fastadv.data.labelled.labels import LabelMap
from fastadv.evaluation.intervals import CONFIDENCE
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text_report.chart import text_attack_png
from fastadv.evaluation.text_report.findings import comparisons, findings, sentence
from fastadv.evaluation.text_report.page import class_word, page, percent
from fastadv.evaluation.text_report.rates import predicted_shares, rates, rates_by_class
from fastadv.evaluation.versions import versions
from fastadv.files.atomic_file import written_aside
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import json_ready, write_json
from fastadv.pages.text_table import aligned

REPORT_FILES = ("text-attack.json", "text-attack-table.csv", "text-attack.png", "text-attack.html")

MAX_CLASSES_SHOWN = 10
"""in the table for a terminal; the files have all"""

_COUNTS = ("num_texts", "num_attacked", "num_succeeded", "num_failed", "num_skipped", "num_error")
_MEANS = ("queries", "words_changed", "share_changed")


def write_report(out: str | Path, runs: Sequence[AttackedModel], protocol: Optional[Mapping[str, Any]] = None) -> dict:
    """Writes the four files into the folder ``out``; returns what is in the JSON.

    Args:
        runs: models under one attack on the same texts, the baseline first; controls
            (`text_attack_control.control_runs`) may stand anywhere. A tuple (name, rows, facts) will do.
        protocol: what was done: recipe, goal, limits, data with its hash, seed, candidate counts; None: the
            ``protocol`` of the first run's facts. Two entries are for the report itself: ``title``, and ``class_word``
            where the labels are no classes.
    """
    out, runs = Path(out).expanduser(), [AttackedModel(*run) for run in runs]
    results = summary(runs, protocol)
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "text-attack-table.csv", results)
    text_attack_png(results, out / "text-attack.png")
    picture = (out / "text-attack.png").read_bytes()
    with written_aside(out / "text-attack.html") as aside:
        # A text may hold half a surrogate pair, which no encoding has.
        aside.write_text(page(results, runs, picture), encoding="utf-8", errors="backslashreplace")
    write_json(out / "text-attack.json", results)
    return results


def summary(runs: Sequence[AttackedModel], protocol: Optional[Mapping[str, Any]] = None) -> dict:
    """All numbers, ready for JSON; see `text_attack_rates.rates` and `text_attack_findings`."""
    labels = _labels(runs)
    if protocol is None:
        protocol = runs[0].facts.get("protocol", {}) if runs else {}
    return {
        "kind": "text attack",
        "versions": versions("textattack"),
        "protocol": json_ready(dict(protocol)),
        "confidence": CONFIDENCE,
        "caps": [{**vars(cap)} for cap in CAPS],
        "labels": labels,
        "models": [_model(run, labels) for run in runs],
        "comparisons": comparisons(runs, labels),
        "findings": findings(runs),
    }


def _model(run: AttackedModel, labels: Sequence[str]) -> dict:
    facts = {name: value for name, value in run.facts.items() if name not in ("name", "protocol")}
    return {
        "name": run.name,
        **json_ready(facts),
        "rates": rates(run.rows),
        "per_class": rates_by_class(run.rows, labels),
        "predicted": predicted_shares(run.rows, labels),
    }


def _labels(runs: Sequence[AttackedModel]) -> List[str]:
    """As the first model that names them has them; else those of the rows."""
    named = next((run.facts["labels"] for run in runs if run.facts.get("labels")), None)
    if named is not None:
        return list(named)
    found = {row.label for run in runs for row in run.rows}
    return list(LabelMap.in_order(found).names) if found else []


def write_table(path: Path, results: dict) -> None:
    """One line a model and class, and one with an empty class for a model's whole; an empty cell is n/a."""
    shares = ("accuracy", "robust_accuracy")
    columns = ["model", "class", *_COUNTS]
    for name in (*shares, *(f"success_{cap.name}" for cap in CAPS), *_MEANS):
        columns += [name, f"{name}_low", f"{name}_high"]
    lines = []
    for model in results["models"]:
        for label, found in {"": model["rates"], **model["per_class"]}.items():
            line = [model["name"], label, *(found[name] for name in _COUNTS)]
            intervals = [found[name] for name in shares] + [found["success"][cap.name] for cap in CAPS]
            for interval in (*intervals, *(found[name] for name in _MEANS)):
                ends = (interval[end] for end in ("value", "low", "high"))
                line += [None if end is None else f"{end:.6g}" for end in ends]
            lines.append(line)
    write_csv(path, columns, lines)


def text_table(results: dict) -> str:
    """Aligned lines for a terminal: a model a line, success rates by class, and the sentences of the findings."""
    head = ["", "texts", "accuracy", "after", "attacked", "success [95 %]"]
    head += [cap.words for cap in CAPS[1:]] + ["queries", "words changed", "skipped", "errors"]
    lines = [head]
    for model in results["models"]:
        found = model["rates"]
        cells = [model["name"], f"{found['num_texts']:,}"]
        cells += [percent(found["accuracy"]["value"]), percent(found["robust_accuracy"]["value"])]
        cells += [f"{found['num_attacked']:,}", _with_interval(found["success"]["any"])]
        cells += [percent(found["success"][cap.name]["value"]) for cap in CAPS[1:]]
        cells += [number(found["queries"]["value"]), number(found["words_changed"]["value"])]
        lines.append([*cells, f"{found['num_skipped']:,}", f"{found['num_error']:,}"])
    parts = [aligned(lines)]
    if len(results["labels"]) <= MAX_CLASSES_SHOWN:
        parts.append(aligned(_class_lines(results)))
    return "\n".join([*parts, *map(sentence, results["findings"])])


def _class_lines(results: dict) -> List[List[str]]:
    lines = [[f"success by {class_word(results)}", *results["labels"]]]
    for model in results["models"]:
        cells = []
        for label in results["labels"]:
            found = model["per_class"].get(label)
            success = None if found is None else found["success"]["any"]
            cells.append("n/a" if not success or success["value"] is None else _of_total(success))
        lines.append([model["name"], *cells])
    return lines


def _of_total(share: Dict[str, Any]) -> str:
    return f"{percent(share['value'])} of {share['total']:,}"


def _with_interval(share: Dict[str, Any]) -> str:
    if share["value"] is None:
        return "n/a"
    return f"{percent(share['value'])} [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def number(value: Optional[float]) -> str:
    return "n/a" if value is None else f"{value:.1f}"
