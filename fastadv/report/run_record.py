"""What a run folder says about its run: read for the report, whatever of it is there.

A run may be going on, may have been killed in the middle of a line, or may have logged fields this version does not
know: what cannot be read is left out, never an error.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import yaml

PICTURE = "attack.png"
ATTACK = "attack.json"
"""of `fastadv attack`, whose own picture has the same name: in its folder a run draws none"""

FILES = (
    ("config.yaml", "the full configuration of the run"),
    ("metrics.jsonl", "one JSON object a logged step"),
    ("tensorboard", "the same numbers as TensorBoard events"),
    ("checkpoints", "states to resume from, and the best weights where dev scores choose them"),
    ("model", "the exported encoder: opens in AutoModel and SentenceTransformer"),
    ("before-*.npz", "the measurement before training, one value a sentence, for a resumed run"),
    ("results.json", "the table before → after as numbers"),
    (PICTURE, "the attack curves as a picture"),
    ("deepwordbug.log", "what the attack on letters printed"),
)
"""name or pattern in the run folder, what it is"""


@dataclass(frozen=True)
class RunRecord:
    """Everything the report shows."""

    name: str
    config_text: str
    config: Dict[str, Any]
    """empty where config.yaml is absent or unreadable"""
    series: Dict[str, Tuple[List[float], List[float]]]
    """metric -> steps, values"""
    results: Optional[dict]
    """the table before → after, None where it was not made"""


def read_run(folder: Path) -> RunRecord:
    text = _text(folder / "config.yaml")
    return RunRecord(
        name=folder.resolve().name,
        config_text=text,
        config=_config(text),
        series=read_series(folder / "metrics.jsonl"),
        results=_results(folder / "results.json"),
    )


def list_files(folder: Path) -> List[Tuple[str, str, int]]:
    """Name, what it is, and bytes of the files and folders a run leaves, those that exist."""
    found = [(path.name, what, _size(path)) for name, what in FILES for path in sorted(folder.glob(name))]
    return [one for one in found if one[0] != PICTURE or not (folder / ATTACK).exists()]


def read_series(path: Path) -> Dict[str, Tuple[List[float], List[float]]]:
    """Finite numbers by metric in the order of the file; a nested object gives ``outer/inner``.

    A step that occurs twice (a run resumed from before it) counts with its last line.
    """
    by_metric: Dict[str, Dict[float, float]] = {}
    for line in _text(path).split("\n"):
        row = _logged(line)
        for name, value in _flat(row) if row else ():
            if _is_number(value) and name != "step":
                by_metric.setdefault(name, {})[row["step"]] = value
    ordered = {name: sorted(points.items()) for name, points in by_metric.items()}
    return {name: ([step for step, _ in points], [value for _, value in points]) for name, points in ordered.items()}


def num_unread_lines(path: Path) -> int:
    """Lines of metrics.jsonl that `read_series` leaves out; 0 where there is no such file."""
    return sum(_logged(line) is None for line in _text(path).split("\n") if line.strip())


def _logged(line: str) -> Optional[dict]:
    """The object of a line that names its step; None where it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and _is_number(row.get("step")) else None


def _flat(row: dict, prefix: str = ""):
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _is_number(value: object) -> bool:
    """Of those that a float holds."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _config(text: str) -> Dict[str, Any]:
    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


_ROW_NUMBERS = ("before", "after", "before_low", "before_high", "after_low", "after_high", "difference", "low", "high")


_STRENGTHS = {"radius", "max_words", "share"}
"""how much was done to a sentence; the first of them is in every row"""


def _results(path: Path) -> Optional[dict]:
    """None where a row lacks what the page shows of it."""
    try:
        results = json.loads(_text(path))
        rows = results["rows"]
        whole = all(
            all(_is_number(row[name]) for name in _ROW_NUMBERS)
            and all(isinstance(row[name], str) for name in ("key", "label", "better"))
            and all(row[name] is None or _is_number(row[name]) for name in _STRENGTHS & {"radius", *row})
            for row in rows
        )
        counts = _is_number(results["num_sentences"]) and _is_number(results["num_steps"])
        is_known = all(_is_number(radius) for radius in results["radii"])
        is_known &= all(isinstance(warning, str) for warning in results.get("warnings", []))
        is_known &= all(isinstance(one[name], str) for one in results.get("missing", []) for name in ("label", "why"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return results if rows and whole and counts and is_known else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
