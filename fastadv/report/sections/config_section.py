"""Configurations: what a run was, and in what several runs differ."""

import io
import os.path
from itertools import islice
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from fastadv.pages.table import Column, Table
from fastadv.pages.words import paragraph, shown
from fastadv.report.run_record import RunRecord
from fastadv.report.sections.before_after_section import definitions
from fastadv.report.sections.section import Html, Part, Section

_ABSENT = "not there"
_MAX_KEYS = 5000
_MAX_LETTERS = 256 * 1024
"""of a config that the page shows; the engine takes none that is longer"""
_MAX_LETTERS_OF_VALUES = 4 * _MAX_LETTERS
"""of all lists of a config together as they are compared"""
_MAX_LETTERS_OF_CELL = 300
_MAX_DEPTH = 200
"""an alias may stand within what it names"""

_SUMMARY = (
    ("objective", ("objective",)),
    ("encoder", ("encoder", "model")),
    ("pooling", ("encoder", "pooling")),
    ("tokens a sentence, at most", ("encoder", "max_length")),
    ("prompt", ("encoder", "prompt")),
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
        shown_values = [(k, as_text(v, _MAX_LETTERS_OF_CELL)) for k, v in values if v is not None]
        parts.append(Html(definitions(shown_values, css="plain")))
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
    rows = [[key, *(values.get(key) for values in flat.values())] for key in keys]
    differing = [[row[0], *_cells(row[1:])] for row in rows if len(set(row[1:])) > 1]
    columns = [Column("value", is_text=True), *(Column(name, is_text=True) for name in runs)]
    table = Table("config-differences", "What the configurations differ in", columns, differing)
    return table, len(rows) - len(differing)


def _cells(values: Sequence[Optional[str]]) -> List[str]:
    """Cut for display; of long values the part where they begin to differ."""
    start = len(os.path.commonprefix([value for value in values if value is not None]))
    start = 0 if start < _MAX_LETTERS_OF_CELL // 2 else start - _MAX_LETTERS_OF_CELL // 4
    end = start + _MAX_LETTERS_OF_CELL

    def cut(value: str) -> str:
        if len(value) <= _MAX_LETTERS_OF_CELL:
            return value
        return f"{'…' * (start > 0)}{value[start:end]}{'…' * (len(value) > end)}"

    return [_ABSENT if value is None else cut(value) for value in values]


def flattened(config: Any) -> Dict[str, str]:
    """Dotted name -> value as text; at most 5,000, since a config from elsewhere may repeat itself endlessly."""
    found: Dict[str, str] = {}
    left = _MAX_LETTERS_OF_VALUES
    for name, value in islice(_leaves(config, "", 0), _MAX_KEYS):
        if isinstance(value, _CONTAINERS):
            found[name] = as_text(value, left)
            left -= len(found[name])
        else:
            found[name] = "" if value is None else _scalar(value, str)
    return found


def _leaves(value: Any, name: str, depth: int) -> Iterator[Tuple[str, Any]]:
    """Dotted names and their values, of which only an empty or a very deep one is a mapping."""
    if not isinstance(value, dict) or not value or depth == _MAX_DEPTH:
        yield name, value
        return
    for key, part in value.items():
        yield from _leaves(part, f"{name}.{_scalar(key, str)}" if name else _scalar(key, str), depth + 1)


def as_text(value: Any, most: int) -> str:
    """``str(value)``, the first ``most`` letters of it, made piece by piece: aliases make lists of lists that no
    memory holds."""
    if not isinstance(value, _CONTAINERS):
        return _scalar(value, str)[:most]
    text = io.StringIO()
    for piece in _pieces(value, 0):
        if text.tell() >= most:
            break
        text.write(piece)
    return text.getvalue()[: max(most, 0)]


_CONTAINERS = (dict, list, tuple)


def _pieces(value: Any, depth: int) -> Iterator[str]:
    """The parts of ``repr(value)``, none of them empty."""
    if not isinstance(value, _CONTAINERS) or depth == _MAX_DEPTH:
        yield "…" if isinstance(value, _CONTAINERS) else _scalar(value, repr)
        return
    yield "{" if isinstance(value, dict) else "["
    for number, part in enumerate(value):
        if number:
            yield ", "
        if isinstance(value, dict):
            yield f"{_scalar(part, repr)}: "
        yield from _pieces(value[part] if isinstance(value, dict) else part, depth + 1)
    yield "}" if isinstance(value, dict) else "]"


def _scalar(value: Any, form: Callable[[Any], str]) -> str:
    try:
        return form(value)
    except ValueError:
        # Python writes no whole number of more than 4,300 digits; one in hexadecimal can be read.
        return hex(value) if isinstance(value, int) else type(value).__name__


def get(config: dict, path: Tuple[str, ...]) -> Optional[Any]:
    """What stands at a path of names; None where nothing does."""
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _lines(text: str) -> str:
    """With its line ends; anything else that is invisible is shown."""
    return "\n".join(shown(line) for line in text.replace("\r\n", "\n").split("\n"))
