"""One attacked text a line of CSV: written as the attack goes, so that a stopped run goes on from what is there.

Every string is quoted, so that a text may hold line breaks, quotes and control characters; a line that a killed run
left half written is told by its quotes and its missing end, and dropped.
"""

import csv
import io
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from fastadv.errors import UserError
from fastadv.files.atomic_file import naming, written_aside

SUCCEEDED, FAILED, SKIPPED, ERROR = OUTCOMES = ("succeeded", "failed", "skipped", "error")
LIMITS = ("", "queries", "time")
"""what ended an attack early, as the note says it; an error's note is its message"""

_PAIR = ("second", "second_adversarial")
"""columns that a run on single texts lacks"""
_ENCODING = {"encoding": "utf-8", "errors": "surrogatepass", "newline": ""}
_LARGEST_FIELD = 1 << 30


@dataclass(frozen=True)
class TextAttackRow:
    """What an attack made of one text, or of one pair of texts."""

    row: int
    """in the data source, from 0"""
    first: str
    second: Optional[str]
    """None: not a pair"""
    label: str
    """the name of the true class"""
    outcome: str
    """``succeeded``, ``failed``, ``skipped`` (wrong before anybody attacked it) or ``error``"""
    first_adversarial: str
    second_adversarial: Optional[str]
    """these two equal the texts as given unless the attack succeeded"""
    predicted: str
    predicted_adversarial: str
    """names of classes; empty for an error"""
    score: float
    score_adversarial: float
    """the probability of the true class before and after; NaN for an error"""
    num_queries: int
    num_words: int
    num_words_changed: int
    seconds: float
    note: str
    """what went wrong with an error, or which limit ended the attack: ``queries``, ``time`` or nothing"""

    def __post_init__(self):
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r}: expected one of {', '.join(OUTCOMES)}")

    @property
    def texts(self) -> Tuple[str, ...]:
        """The text as given, or both of the pair."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def texts_adversarial(self) -> Tuple[str, ...]:
        """Likewise after the attack."""
        return (self.first_adversarial, self.second_adversarial)[: len(self.texts)]

    @property
    def is_attacked(self) -> bool:
        """Right before: the rows that a success rate is of."""
        return self.outcome in (SUCCEEDED, FAILED)


_TYPES = {field.name: field.type for field in fields(TextAttackRow)}


def columns(is_pair: bool) -> List[str]:
    """The columns of a file, in their order."""
    return [name for name in _TYPES if is_pair or name not in _PAIR]


def read_rows(path: str | Path) -> List[TextAttackRow]:
    """All rows of a file, in its order; a last line that is not whole is left out.

    Raises:
        UserError: no such file, other columns, or a line that is no row; the file, the line and what is wrong.
    """
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{str(path)!r}: {error.strerror or error}; expected the rows of an attack") from error
    return _rows(_whole(content), path)


def write_rows(path: str | Path, rows: Iterable[TextAttackRow]) -> None:
    """Writes ``rows`` as a file of their own, whole or not at all."""
    rows = list(rows)
    with written_aside(path) as aside:
        with RowWriter(aside, is_pair=any(row.second is not None for row in rows)) as writer:
            for row in rows:
                writer.write(row)


class RowWriter:
    """Adds rows to a file, each on the disk before the next; ``rows`` are those that it already has.

    Args:
        path: of a file that may be there: a line that is not whole is cut off.
        is_pair: whether the texts are pairs.

    Raises:
        UserError: a file that is no such file.
    """

    def __init__(self, path: str | Path, is_pair: bool):
        self._path, self._columns = Path(path), columns(is_pair)
        found = self._path.read_bytes() if self._path.exists() else b""
        kept = _whole(found)
        self.rows: List[TextAttackRow] = _rows(kept, path, self._columns) if kept else []
        with naming(path):
            self._file = self._path.open("a", **_ENCODING)
            if len(kept) < len(found):
                self._file.truncate(len(kept))
        self._writer = csv.writer(self._file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        if not kept:
            self._add(self._columns)

    def write(self, row: TextAttackRow) -> None:
        """Adds one row."""
        self._add([getattr(row, name) for name in self._columns])
        self.rows.append(row)

    def _add(self, values: list) -> None:
        with naming(self._path):
            self._writer.writerow(values)
            self._file.flush()

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        """Has what was written outlast the machine."""
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def _whole(content: bytes) -> bytes:
    """``content`` up to the end of its last whole record: a line end outside quotes, which are doubled inside them."""
    kept, at = 0, 0
    for number, part in enumerate(content.split(b'"')):
        if number % 2 == 0 and b"\n" in part:
            kept = at + part.rindex(b"\n") + 1
        at += len(part) + 1
    return content[:kept]


def _rows(content: bytes, path: str | Path, expected: Optional[List[str]] = None) -> List[TextAttackRow]:
    try:
        # A mark is what Excel puts there.
        text = content.decode("utf-8-sig", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UserError(f"{str(path)!r} is no UTF-8; expected the rows of an attack") from error
    csv.field_size_limit(_LARGEST_FIELD)
    records = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(records, [])
        known = [columns(is_pair=False), columns(is_pair=True)] if expected is None else [expected]
        if header not in known:
            wanted = ", ".join(known[-1])
            raise UserError(f"{str(path)!r} has the columns {', '.join(header) or 'of no file'}; expected {wanted}")
        return [_row(dict(zip(header, record, strict=True))) for record in records]
    except (csv.Error, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{str(path)!r}, line {records.line_num}: {error}; expected a row of an attack") from error


def _row(values: Dict[str, str]) -> TextAttackRow:
    parsed = {name: _TYPES[name](text) if _TYPES[name] in (int, float) else text for name, text in values.items()}
    # A run on single texts lacks the columns of the second.
    return TextAttackRow(**{**dict.fromkeys(_PAIR), **parsed})
