"""Configurations: what a run was, and in what several runs differ."""

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
    todo: List[Tuple[str, Any, int]] = [("", config, 0)]
    left = _MAX_LETTERS_OF_VALUES
    while todo and len(found) < _MAX_KEYS:
        prefix, value, depth = todo.pop()
        if isinstance(value, dict) and value and depth < _MAX_DEPTH:
            parts = list(islice(value.items(), _MAX_KEYS))
            names = [_scalar(name, str) for name, _ in parts]
            inside = zip((f"{prefix}.{name}" if prefix else name for name in names), (part for _, part in parts))
            todo += reversed([(name, part, depth + 1) for name, part in inside])
        elif isinstance(value, _CONTAINERS):
            found[prefix] = as_text(value, left)
            left -= len(found[prefix])
        else:
            found[prefix] = "" if value is None else _scalar(value, str)
    return found


def as_text(value: Any, most: int) -> str:
    """``str(value)``, the first ``most`` letters of it, made piece by piece: aliases make lists of lists that no
    memory holds."""
    if not isinstance(value, _CONTAINERS):
        return _scalar(value, str)[:most]
    pieces, length, open_ones = [], 0, [_pieces(value)]
    while open_ones and length < most:
        piece = next(open_ones[-1], None)
        if piece is None:
            open_ones.pop()
        elif isinstance(piece, str):
            pieces.append(piece)
            length += len(piece)
        elif len(open_ones) < _MAX_DEPTH:
            open_ones.append(_pieces(piece))
        else:
            pieces.append("…")
            length += 1
    return "".join(pieces)[:most]


_CONTAINERS = (dict, list, tuple)


def _pieces(value: Any) -> Iterator[Any]:
    """Of one level: texts, and what is a level of its own."""
    yield "{" if isinstance(value, dict) else "["
    for number, part in enumerate(value):
        before = ", " if number else ""
        if isinstance(value, dict):
            before, part = f"{before}{_scalar(part, repr)}: ", value[part]
        yield before
        yield part if isinstance(part, _CONTAINERS) else _scalar(part, repr)
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
