"""JSON as this package writes it: files that are whole or not there, and null for a number that is not finite.

One policy for numbers that are not known: None in Python, null in JSON, an empty cell in CSV, "n/a" for a reader.
"""

import json
import math
from pathlib import Path
from typing import Any, Mapping

from fastadv.files.atomic_file import written_aside


def json_ready(value: Any) -> Any:
    """``value`` as JSON can hold it: arrays become lists, numbers that are not finite None, other objects text."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(part) for key, part in value.items()}
    if hasattr(value, "tolist"):
        return json_ready(value.tolist())
    if isinstance(value, (list, tuple, set)):
        return [json_ready(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def json_text(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON text, by `json_ready`."""
    return json.dumps(json_ready(value), indent=indent, allow_nan=False)


def write_json(path: str | Path, value: Any, indent: int | None = 1) -> None:
    """Writes ``value`` to a file that is replaced at once and ends in a line break."""
    with written_aside(path) as aside:
        aside.write_text(json_text(value, indent) + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: its content is not JSON, in UTF-8 or as a byte order mark says.
        RecursionError: it is nested too deeply.
    """
    return json.loads(Path(path).read_bytes())
