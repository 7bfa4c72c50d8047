"""What an evaluation leaves: ``evaluation.json``, its two lists as CSV, and the table that a person reads."""

from pathlib import Path
from typing import Dict, List, Optional, Tuple

from fastadv.config.commands import encoding_words
from fastadv.evaluation.suite.schema import DIFFERENCE_COLUMNS, NUMBER_COLUMNS, Quantity, quantities_of, quantity_of
from fastadv.evaluation.text_report.findings import sentence
from fastadv.files.atomic_file import written_aside
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import write_json
from fastadv.pages.text_table import aligned

FILES = ("evaluation.json", "numbers.csv", "differences.csv", "summary.md")


def write_evaluation(out: Path, evaluation: dict) -> None:
    """The four files, ``evaluation.json`` last."""
    out.mkdir(parents=True, exist_ok=True)
    for name, columns in (("numbers", NUMBER_COLUMNS), ("differences", DIFFERENCE_COLUMNS)):
        write_csv(out / f"{name}.csv", columns, ([row[column] for column in columns] for row in evaluation[name]))
    with written_aside(out / "summary.md") as aside:
        aside.write_text(summary(evaluation), encoding="utf-8")
    write_json(out / "evaluation.json", evaluation)


def summary(evaluation: dict) -> str:
    """Markdown: a table a part, a line a quantity and a column a system, and below it what kept numbers away."""
    names = [system["name"] for system in evaluation["systems"]]
    lines = ["# Evaluation", ""]
    for system in evaluation["systems"]:
        num = len(system["models"])
        lines.append(f"* {system['name']}: {num} model{'s' * (num > 1)} ({', '.join(system['models'])})")
        lines += [f"  * {model_words(m)}" for m in evaluation["models"] if m["system"] == system["name"]]
    lines += ["", _LEGEND.format(first=names[0]), ""]
    differences = {(*_key(row), row["system"]): row for row in evaluation["differences"]}
    for name, part in evaluation["parts"].items():
        lines += [f"## {name}", ""]
        quantities = [one for one in means_in(evaluation) if one[0].part == name]
        if not quantities:
            lines += [f"n/a: {part['why']}", ""]
            continue
        lines += ["| | rows | " + " | ".join(names) + " |", "|---" * 2 + "|---" * len(names) + "|"]
        for quantity, rows in quantities:
            cells = [_value(row, differences.get((*_key(row), row["system"]))) for row in rows]
            lines.append(f"| {label(quantity)} | {max(row['num'] for row in rows):,} | " + " | ".join(cells) + " |")
        lines.append("")
        for quantity, rows in quantities:
            lines += _reasons(rows, label(quantity))
        controls = control_sentences(part)
        lines += ["", *(f"* {sentence}" for sentence in controls)] if controls else []
        data = part["protocol"].get("data", {})
        if data:
            lines += ["", f"{data['num_rows']:,} rows of {data['path']}, SHA-256 {data['sha256'][:16]}", ""]
    if evaluation["warnings"]:
        lines += ["## Warnings", "", *(f"* {warning}" for warning in evaluation["warnings"]), ""]
    lines.append(
        "Versions: "
        + ", ".join(f"{n} {v}" for n, v in evaluation["versions"].items() if v)
        + f". Seed {evaluation['seed']}."
    )
    return "\n".join(lines) + "\n"


_LEGEND = (
    "Mean over a system's models [95 % interval over rows] ± standard deviation over models. Behind the bar: the "
    "change against {first} on the same rows, with its interval and p by Holm for all comparisons of this evaluation."
)


def _reasons(of_systems: List[dict], what: str) -> List[str]:
    """A line a system without a value, or one for all of them."""
    missing = [row for row in of_systems if row["value"] is None]
    if len(missing) == len(of_systems) > 1 and len({row["why"] for row in missing}) == 1:
        return [f"* n/a in {what}: {missing[0]['why']}"]
    return [f"* n/a in {what}, {row['system']}: {row['why']}" for row in missing]


def short_table(evaluation: dict) -> str:
    """Aligned lines for a terminal: a quantity a line, a column a system."""
    names = [system["name"] for system in evaluation["systems"]]
    cells: List[List[str]] = [["", *names]]
    for quantity, rows in means_in(evaluation):
        cells.append([f"{quantity.part} {label(quantity)}", *map(_value, rows)])
    cells += [[f"{n} n/a", *[""] * len(names)] for n, part in evaluation["parts"].items() if part["status"] == "n/a"]
    said = [f"{name}: {sentence}" for name, part in evaluation["parts"].items() for sentence in control_sentences(part)]
    return "\n".join([aligned(cells), *said])


def control_sentences(part: dict) -> List[str]:
    """What a part's own files say of each model beside its control: a p-value without it may be of a mere shift."""
    return [sentence(found) for found in part["findings"] if found["cap"] == "any"]


def model_words(model: dict) -> str:
    """An entry of ``models`` in a line."""
    if model["why"] is not None:
        return f"{model['name']}: n/a: {model['why']}"
    return f"{model['name']}: {model['kind']}, {encoding_words(model)}, fingerprint {model['fingerprint'][:16]}"


def means_in(evaluation: dict) -> List[Tuple[Quantity, List[dict]]]:
    """Each quantity with the rows of its means, one a system."""
    found: Dict[Tuple, List[dict]] = {}
    for row in evaluation["numbers"]:
        if row["model"] is None:
            found.setdefault(_key(row), []).append(row)
    quantities = quantities_of(evaluation)
    return [(quantity_of(rows[0], quantities), rows) for rows in found.values()]


def _key(row: dict) -> Tuple[str, str, str, Optional[float]]:
    return row["part"], row["set"], row["metric"], row["epsilon"]


def label(quantity: Quantity) -> str:
    """A quantity in words, without its part."""
    unit = f", {quantity.unit}" if quantity.unit else ""
    return f"{quantity.set}: {quantity.metric}{quantity.radius_words}{unit}"


def _value(row: dict, difference: Optional[dict] = None) -> str:
    """The number with its interval and spread, and after a bar its difference to the first system's."""
    if row["value"] is None:
        return "n/a"
    form = ".2f" if row["unit"] or abs(row["value"]) >= 10 else ".3f"
    interval = "" if row["low"] is None else f" [{row['low']:{form}}, {row['high']:{form}}]"
    spread = "" if row["spread"] is None else f" ± {row['spread']:{form}}"
    value = f"{row['value']:{form}}{interval}{spread}"
    if difference is None:
        return value
    change, low, high = (f"{difference[name]:+{form}}" for name in ("value", "low", "high"))
    return f"{value} \\| {change} [{low}, {high}], p {difference['p_holm']:.2g}"
