"""Files that are read whole or not at all: the first thing wrong with one ends the reading, named by file and row."""

from pathlib import Path
from typing import NoReturn, Optional

from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE
from fastadv.data.sources.tables import nearest_column
from fastadv.errors import UserError

_FAULTS = {
    "blank": "blank",
    "too_long": f"a row of more than {MAX_BYTES_PER_LINE:,} bytes",
    "bad_json": "not JSON",
    "bad_csv": "a row that is not readable as CSV, or whose quote is never closed",
    "ragged": "a row of another number of cells",
    "undecodable": "text that is not UTF-8",
}


class FirstFault(LineReport):
    """The report of a reading in which nothing is skipped but empty lines, and nothing replaced.

    Args:
        path: the file, whose folder is put before the places that are noted; None: they are whole.
        types: which columns hold what, in the words of the message about a value that is missing or not of its type.
    """

    def __init__(self, path: Optional[Path], types: str):
        super().__init__()
        self.path, self.types = path, types

    def note(self, kind: str, where: str, column: Optional[str] = None) -> None:
        """Raises UserError, unless an empty line is noted."""
        if kind == "blank" and column is None:
            return super().note(kind, where)
        fault = _FAULTS.get(kind, f"missing, or not of its type ({self.types})")
        if kind == "without_field" and column is not None and self.fields_seen and column not in self.fields_seen:
            fault += f"; fields there: {', '.join(self.fields_seen)}{nearest_column(column, self.fields_seen)}"
        self.fail(where if column is None else f"{where}, column {column}", fault)

    def fail(self, where: str, fault: str) -> NoReturn:
        """Raises the UserError of a fault at ``where``."""
        raise UserError(f"{self.place(where)}: {fault}")

    def place(self, where: str) -> str:
        return where if self.path is None else str(self.path.with_name(where))
