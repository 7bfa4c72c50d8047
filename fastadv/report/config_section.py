"""Configurations: what a run was, and in what several runs differ."""

from typing import Any, Dict, List, Optional, Tuple

from fastadv.report.before_after_section import definitions
from fastadv.report.run_record import RunRecord
from fastadv.report.section import Html, Part, Section
from fastadv.report.table import Column, Table
from fastadv.report.words import paragraph, shown

_ABSENT = "not there"
_MAX_KEYS = 5000
_MAX_LETTERS = 256 * 1024
"""of a config that the page shows; the engine takes none that is longer"""

_SUMMARY = (
    ("objective", ("objective",)),
    ("encoder", ("encoder", "model")),
    ("pooling", ("encoder", "pooling")),
    ("tokens a sentence, at most", ("encoder", "max_length")),
    ("training sentences", ("data", "train")),
    ("sentences a step", ("train", "batch_size")),
    ("learning rate", ("optimizer", "lr")),
    ("norm", ("perturbation", "norm")),
    ("inner steps", ("perturbation", "num_steps")),
    ("radius, multiple of RMS(X)", ("perturbation", "epsilon_relative")),
    ("radius", ("perturbation", "epsilon")),
    ("seed", ("train", "seed")),
    ("precision", ("engine", "precision")),
)
"""label, where in the config"""


def config_sections(runs: Dict[str, RunRecord]) -> List[Section]:
    """Of one run its main values; of several what differs, and how much does not."""
    runs = {name: run for name, run in runs.items() if run.config_text}
    if not runs:
        return []
    parts: List[Part] = []
    if len(runs) == 1:
        (run,) = runs.values()
        values = [(label, get(run.config, path)) for label, path in _SUMMARY]
        parts.append(Html(definitions([(k, v) for k, v in values if v is not None], css="plain")))
    else:
        table, num_equal = differences(runs)
        parts.append(Html(paragraph(f"{num_equal:,} other values are equal in all runs.")))
        parts.append(table if table.rows else Html(paragraph("No value differs.")))
    for name, run in runs.items():
        title = "all of config.yaml" if len(runs) == 1 else f"{shown(name)}: all of config.yaml"
        text = run.config_text if len(run.config_text) <= _MAX_LETTERS else f"{run.config_text[:_MAX_LETTERS]}\n…"
        parts.append(Html(f"<details><summary>{title}</summary><pre>{_lines(text)}</pre></details>\n"))
    return [Section("Configuration", parts)]


def differences(runs: Dict[str, RunRecord]) -> Tuple[Table, int]:
    """The values that are not the same in all runs, by dotted name, and the number of those that are."""
    flat = {name: flattened(run.config) for name, run in runs.items()}
    keys = list(dict.fromkeys(key for values in flat.values() for key in values))
    rows = [[key, *(values.get(key, _ABSENT) for values in flat.values())] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    columns = [Column("value", is_text=True), *(Column(name, is_text=True) for name in runs)]
    table = Table("config-differences", "What the configurations differ in", columns, differing)
    return table, len(rows) - len(differing)


def flattened(config: Any) -> Dict[str, str]:
    """Dotted name -> value as text; at most 5,000, since a config from elsewhere may repeat itself endlessly."""
    found: Dict[str, str] = {}
    todo: List[Tuple[str, Any]] = [("", config)]
    while todo and len(found) < _MAX_KEYS:
        prefix, value = todo.pop(0)
        if isinstance(value, dict) and value:
            todo = [(f"{prefix}.{name}" if prefix else str(name), part) for name, part in value.items()] + todo
        else:
            found[prefix] = "" if value is None else str(value)[:300]
    return found


def get(config: dict, path: Tuple[str, ...]) -> Optional[Any]:
    """What stands at a path of names; None where nothing does."""
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _lines(text: str) -> str:
    """With its line ends; anything else that is invisible is shown."""
    return "\n".join(shown(line) for line in text.replace("\r\n", "\n").split("\n"))
