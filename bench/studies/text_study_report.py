"""The text study's tables and plot, from the reports of its attacks.

Clean accuracy has the change against fine-tuning with a paired bootstrap over texts. Success rates have what a text
attack's own report says of them: the same at a cap of two words, each beside its control's, and whether a gain goes
beyond it; and in a table of its own how many of the texts that fooled fine-tuning fool a system too.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

import numpy as np

from bench.studies.text_study_transfer import transferred
from fastadv.evaluation.intervals import paired_interval
from fastadv.evaluation.text.rows import ERROR, TextAttackRow, read_rows
from fastadv.evaluation.text.run import rows_files
from fastadv.evaluation.text_report.findings import findings_in, sentence

LEAST_SUCCESS = {"deepwordbug": 0.80, "pwws": 0.85}
"""of the fine-tuned victim of sentiment; an attack that does less is broken"""

CAPS = {"any": "", "words_2": ", ≤ 2 words"}
"""how much of a text may be changed for a success to count"""


@dataclass(frozen=True)
class Attacked:
    """What one attack found: its summary, and each model's rows."""

    summary: dict
    rows: Dict[str, List[TextAttackRow]]
    transferred: Dict[str, dict]
    """what `bench.studies.text_study_transfer` found"""

    @classmethod
    def read(cls, folder: Path, models: Optional[Mapping[str, Path]] = None) -> "Attacked":
        """From an attack's folder.

        Args:
            models: name → where it is saved, on which texts are tried that fooled the first model of the attack.
        """
        summary = json.loads((folder / "text-attack.json").read_text(encoding="utf-8"))
        names = [model["name"] for model in summary["models"]]
        files = rows_files(folder, names)
        rows = {name: read_rows(path) for name, path in zip(names, files)}
        if not models:
            return cls(summary, rows, {})
        remains = summary["protocol"]["settings"]["goal"] == "remain"
        return cls(summary, rows, transferred(rows[names[0]], models, folder / "transferred.json", remains))

    @property
    def models(self) -> List[dict]:
        """All that are no control, the baseline first."""
        return [model for model in self.summary["models"] if not model.get("control")]

    def control_of(self, name: str) -> Optional[dict]:
        found = (model for model in self.summary["models"] if (model.get("control") or {}).get("robust") == name)
        return next(found, None)

    def verdict(self, name: str, cap: str = "any") -> str:
        found = (entry for entry in self.summary["findings"] if entry["model"] == name and entry["cap"] == cap)
        return next((entry["verdict"] for entry in found), "")

    def difference(self, name: str) -> Optional[dict]:
        """Of success rates, the baseline's less the model's, on texts that both get right."""
        baseline = self.models[0]["name"]
        found = (c for c in self.summary["comparisons"] if c["first"] == baseline and c["second"] == name)
        return next((entry["all"]["any"] for entry in found), None)

    def is_right(self, name: str) -> Dict[int, float]:
        """By row, 1 where the model is right before the attack."""
        return {row.row: float(row.is_attacked) for row in self.rows[name] if row.outcome != ERROR}


def report(found: Dict[str, Dict[str, Attacked]]) -> Tuple[str, dict]:
    """Tables in Markdown, and all their numbers."""
    lines: List[str] = []
    numbers: dict = {"tasks": {}, "faults": []}
    for task, attacks in found.items():
        first = next(iter(attacks.values()))
        baseline = first.models[0]["name"]
        columns = [f"{recipe}{words}" for recipe in attacks for words in CAPS.values()]
        lines += ["", f"### {task.capitalize()}", "", "| | clean accuracy, % | " + " | ".join(columns) + " |"]
        lines.append("|---" + "|---:" * (1 + len(columns)) + "|")
        rows = []
        for model in first.models:
            name = model["name"]
            accuracy = _accuracy(first, baseline, name)
            cells = [f"{accuracy['value']:.1f}" + ("" if name == baseline else f" [{_interval(accuracy['change'])}]")]
            row = {"name": name, "accuracy": accuracy, "attacks": {}}
            for recipe, attacked in attacks.items():
                of_attack = row["attacks"][recipe] = _attack(attacked, name)
                cells += [_cell(of_attack["caps"][cap]) for cap in CAPS]
            rows.append(row)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        numbers["tasks"][task] = rows
        lines += ["", "| fooled by texts made against fine-tuning, % | " + " | ".join(attacks) + " |"]
        lines.append("|---" + "|---:" * len(attacks) + "|")
        for name in first.transferred:
            found_there = (_transferred(attacked.transferred[name]) for attacked in attacks.values())
            lines.append(f"| {name} | " + " | ".join(found_there) + " |")
        lines += ["", *(f"* {recipe}: {s}" for recipe, a in attacks.items() for s in _sentences(a))]
        for recipe, least in LEAST_SUCCESS.items():
            value = rows[0]["attacks"][recipe]["caps"]["any"]["success"] if recipe in attacks else None
            if task == "sentiment" and value is not None and value < least:
                fault = f"{recipe} succeeds on {value:.1%} of the fine-tuned model's texts; expected {least:.0%}"
                numbers["faults"].append(fault)
                lines.append(f"* **{fault}**")
    return "\n".join(lines).strip() + "\n", numbers


def _accuracy(attacked: Attacked, baseline: str, name: str) -> dict:
    """Clean accuracy in points, of all texts of which it is known, and its paired change."""
    before, after = attacked.is_right(baseline), attacked.is_right(name)
    both = [row for row in before if row in after]
    pairs = np.array([[before[row], after[row]] for row in both]) * 100
    return {
        "value": float(np.mean(list(after.values())) * 100),
        "change": vars(paired_interval(pairs[:, 0], pairs[:, 1])),
        "num_texts": len(after),
    }


def _attack(attacked: Attacked, name: str) -> dict:
    rates = next(model for model in attacked.models if model["name"] == name)["rates"]
    control = attacked.control_of(name)
    caps = {
        cap: {
            "success": rates["success"][cap]["value"],
            "control": None if control is None else control["rates"]["success"][cap]["value"],
            "verdict": attacked.verdict(name, cap),
        }
        for cap in CAPS
    }
    return {
        "caps": caps,
        "robust_accuracy": rates["robust_accuracy"]["value"],
        "num_attacked": rates["num_attacked"],
        "difference": (attacked.difference(name) or {}).get("difference"),
        "transferred": attacked.transferred,
    }


def _cell(of_cap: dict) -> str:
    if of_cap["control"] is None:
        return _percent(of_cap["success"])
    said = f"{_percent(of_cap['success'])} ({_percent(of_cap['control'])})"
    return f"{said} **{of_cap['verdict']}**" if of_cap["verdict"] in ("gain", "loss") else said


def _transferred(of_model: dict) -> str:
    tried, fooled = of_model["num_tried"], of_model["num_fooled"]
    return f"{100 * fooled / tried:.1f} of {tried}" if tried else "n/a"


def _sentences(attacked: Attacked) -> List[str]:
    return [sentence(entry) for entry in findings_in(attacked.summary) if entry["cap"] in ("any", "words_2")]


def _percent(value: Optional[float]) -> str:
    return "n/a" if value is None else f"{100 * value:.1f}"


def _interval(change: dict) -> str:
    return f"{change['value']:+.1f}: {change['low']:+.1f}, {change['high']:+.1f}"


def plot(numbers: dict, path: Path) -> None:
    """Success of each attack on each system, its control as an open marker; a column a task, a row a cap."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fastadv.pages.style import PRINT, STYLE, frame

    with rc_context(STYLE):
        figure = Figure(figsize=(12.0, 7.6), layout="constrained", facecolor="white")
        axes = figure.subplots(len(CAPS), len(numbers["tasks"]), squeeze=False)
        for of_cap, (cap, words) in zip(axes, CAPS.items()):
            for panel, (task, rows) in zip(of_cap, numbers["tasks"].items()):
                _points(panel, rows, cap)
                frame(panel, f"{task}: success of attacks{words}, %; open: the control", "", PRINT)
                panel.set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=20, ha="right")
                panel.set_xlim(-0.6, len(rows) - 0.4)
                panel.set_ylim(-2, 104)
                panel.legend(frameon=False, loc="lower left", ncols=len(rows[0]["attacks"]))
        FigureCanvasAgg(figure)
        figure.savefig(path, dpi=150, format="png", metadata={"Software": None})


def _points(panel, rows: List[dict], cap: str) -> None:
    from fastadv.pages.drawing import COLOURS, MARKERS

    recipes = list(rows[0]["attacks"])
    for number, recipe in enumerate(recipes):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        places = np.arange(len(rows)) + (number - (len(recipes) - 1) / 2) * 0.22
        for key, face, aside in (("success", colour, 0.0), ("control", "white", 0.07)):
            found = [row["attacks"][recipe]["caps"][cap][key] for row in rows]
            values = [np.nan if value is None else 100 * value for value in found]
            label = recipe if key == "success" else None
            panel.plot(places + aside, values, marker, color=colour, markerfacecolor=face, label=label, markersize=7)
