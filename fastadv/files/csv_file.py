"""CSV as this package writes it: a header, lines that end in a line feed, and empty cells for what is not known."""

import csv
import math
from pathlib import Path
from typing import Any, Iterable, Sequence

from fastadv.files.atomic_file import written_aside


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a file that is replaced at once.

    None and numbers that are not finite are empty cells, other numbers have all their digits. Half a surrogate pair,
    which no encoding has, is written as its escape.
    """
    with written_aside(path) as aside:
        with aside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([csv_cell(cell) for cell in row] for row in rows)


def csv_cell(value: Any) -> Any:
    """``value`` as a cell."""
    is_unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
    return "" if is_unknown else value


def read_csv(path: str | Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header, by the names of the columns."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
