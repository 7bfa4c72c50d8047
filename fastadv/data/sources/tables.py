"""Rows of .csv, .tsv and .parquet files, read a few at a time.

Cells lie between commas, of ``.tsv`` between tabs. ``.csv`` has quotes and ``.tsv`` has none, unless ``quoting`` says
otherwise:

* with quotes, as Python's `csv` module reads its default dialect: a cell that begins with a double quote ends at its
  closing one and may hold separators and line ends. A row over several lines is counted as such;
* without, a row is a line by the rule of `fastadv.data.sources.lines`, and a double quote is a letter like any other. A
  row in which a cell that is read lies in quotes is counted, for it may have been meant otherwise.

The first row that is not empty names the columns. Rows are counted from 1, this one and empty ones included. Of the
others

* a row of more than ``max_bytes`` (its ending not counted) is skipped and counted, and never held in memory; a quote
  that is not closed makes such a row, and reading goes on at the line after;
* an empty line counts as blank;
* a row with more or fewer cells than there are columns is skipped and counted as ragged; one whose quote the file's end
  leaves open, or in which a closing quote is followed by something else than a separator, as malformed;
* malformed UTF-8 becomes U+FFFD, and is counted.

Rows of ``.parquet`` files are counted from 0, as pandas and `datasets` do; null is a missing value.
"""

import csv
import difflib
import json
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Sequence, TextIO, Tuple

import pyarrow as pa
import pyarrow.parquet as pq

from fastadv.data.sources.compressed import kind_of
from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, checked_record, raw_lines
from fastadv.data.sources.text_file import decoded, num_bytes, open_text
from fastadv.errors import UserError

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = tuple(_SEPARATORS)
_ROWS_A_READ = 1024


def is_quoted(path: Path, quoting: str = "auto") -> bool:
    """Whether cells may lie in quotes: ``double`` or ``none`` say so, ``auto`` means those of a .csv alone."""
    return quoting == "double" or (quoting == "auto" and kind_of(path) != ".tsv")


def nearest_column(field: str, columns: Sequence[str]) -> str:
    """The end of a message about a column that is not there: the one of a name near to it, if there is one."""
    if f'"{field}"' in columns:
        return "; names in quotes are read with data.quoting = double (--quoting double)"
    by_lower = {column.lower(): column for column in columns}
    near = difflib.get_close_matches(field.lower(), by_lower, n=1)
    return f"; nearest is {by_lower[near[0]]!r}" if near else ""


def no_such_column(name: object, field: str, columns: Sequence[str]) -> UserError:
    """The error of a column that ``name`` lacks, with those it has."""
    there = ", ".join(columns)
    return UserError(f"{name} has no column {field!r}; its columns are {there}{nearest_column(field, columns)}")


def require_columns(path: Path, names: Sequence[str], fields: Sequence[str]) -> None:
    """Raises UserError where a field is not among a file's columns, or there twice."""
    for field in fields:
        if field not in names:
            raise no_such_column(path, field, names)
        if list(names).count(field) > 1:
            raise UserError(f"{path} has more than one column {field!r}")


class _Row(NamedTuple):
    """A row as it lies in the file, its malformed bytes not replaced."""

    cells: Sequence[str]
    num_lines: int = 1
    fault: Optional[str] = None
    """``too_long``, ``bad_csv`` or None"""


class _RowTooLong(Exception):
    pass


class _RowLines:
    """Lines for `csv.reader`, which asks for more of them while a quote is open."""

    def __init__(self, file: TextIO, max_bytes: int):
        self._file, self._max_bytes, self._num_bytes = file, max_bytes, 0
        self._is_cut = False
        self.num_lines = 0
        """of this row, so far"""

    def begin_row(self) -> None:
        self._num_bytes = self.num_lines = 0

    def __iter__(self) -> "_RowLines":
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._max_bytes + len("\r\n"))
        if self._is_cut and line == "\n":
            line = self._file.readline(self._max_bytes + len("\r\n"))
        self._is_cut = False
        if not line:
            raise StopIteration
        self.num_lines += 1
        if self._num_bytes + num_bytes(line.rstrip("\r\n")) > self._max_bytes:
            while line and not line.endswith(("\n", "\r")):
                line = self._file.readline(1 << 16)
            # A line feed may be what is left of a skipped line's \r\n.
            self._is_cut = line.endswith("\r")
            raise _RowTooLong
        self._num_bytes += num_bytes(line)
        return line


def _quoted_rows(file: TextIO, separator: str, max_bytes: int) -> Iterator[_Row]:
    # One limit for the whole process, of 128 KiB at first; the lines' own limit comes before it.
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
    lines = _RowLines(file, max_bytes)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        lines.begin_row()
        cells: List[str] = []
        fault: Optional[str] = None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except _RowTooLong:
            fault = "too_long"
        except csv.Error:
            fault = "bad_csv"
        yield _Row(cells, lines.num_lines, fault)


def _plain_rows(file: TextIO, line_end: str, separator: str, max_bytes: int) -> Iterator[_Row]:
    for line in raw_lines(file, line_end, max_bytes):
        yield _Row((), fault="too_long") if line is None else _Row(line.split(separator) if line else ())


@contextmanager
def _open_table(path: Path, max_bytes: int, has_quotes: bool):
    """Yields the names of the columns ([] for a file of no row), and the rows after theirs with their numbers."""
    separator = _SEPARATORS[kind_of(path)]
    # Of quoted cells line ends are the csv module's business.
    with open_text(path, is_by_line=not has_quotes) as (file, line_end):
        if has_quotes:
            rows = enumerate(_quoted_rows(file, separator, max_bytes), start=1)
        else:
            rows = enumerate(_plain_rows(file, line_end, separator, max_bytes), start=1)
        header = next((row for _, row in rows if row.cells or row.fault is not None), _Row(()))
        if header.fault is not None:
            raise UserError(f"{path} does not begin with a row of column names of at most {max_bytes:,} bytes")
        yield [decoded(name)[0] for name in header.cells], rows


def columns_of(path: Path, quoting: str = "auto") -> List[str]:
    """The names of the columns of a .csv or .tsv file; none of a file without any row."""
    with _open_table(path, MAX_BYTES_PER_LINE, is_quoted(path, quoting)) as (names, _):
        return names


def check_table(path: Path, fields: Sequence[str], quoting: str = "auto") -> None:
    """Raises UserError where a column is not there; reads the first row. A file of no row at all passes."""
    names = columns_of(path, quoting)
    if names:
        require_columns(path, names, fields)


def iterate_table(
    path: Path,
    fields: Sequence[str],
    report: LineReport,
    max_bytes: int = MAX_BYTES_PER_LINE,
    quoting: str = "auto",
    may_be_blank: Sequence[str] = (),
) -> Iterator[Tuple[Tuple[str, ...], str]]:
    """Yields ``(cells, "file row n")`` for each row of a .csv or .tsv file in which all the named cells hold text.

    Args:
        quoting: see `is_quoted`.
        may_be_blank: fields whose cells may hold none.
    """
    has_quotes = is_quoted(path, quoting)
    with _open_table(path, max_bytes, has_quotes) as (names, rows):
        if not names:
            return
        require_columns(path, names, fields)
        columns = [names.index(field) for field in fields]
        for number, row in rows:
            where = f"{path.name} row {number}"
            report.num_lines += 1
            if row.num_lines > 1:
                report.count("spanning", where)
                report.num_spanned_lines += row.num_lines
            if row.fault is not None:
                report.note(row.fault, where)
            elif not row.cells:
                report.note("blank", where)
            elif len(row.cells) != len(names):
                report.note("ragged", f"{where}, {len(row.cells)} cells for {len(names)} columns")
            else:
                found = [decoded(row.cells[column]) for column in columns]
                cells = [text for text, _ in found]
                record = checked_record(cells, fields, where, report, True, may_be_blank=may_be_blank)
                if record is None:
                    continue
                report.note_replacements(sum(replaced for _, replaced in found), where)
                if not has_quotes and any(_is_in_quotes(cell) for cell in cells):
                    report.count("quoted", where)
                yield record, where


def _is_in_quotes(cell: str) -> bool:
    return len(cell) > 1 and cell[0] == cell[-1] == '"'


def class_names(path: Path, column: str) -> Optional[Tuple[str, ...]]:
    """The names of the classes whose numbers a column of a .parquet file holds, where `datasets` wrote them there."""
    with _open_parquet(path, (column,), (column,)) as file:
        try:
            written = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
            names = written["info"]["features"][column]["names"]
        # Of another's making, or of a column without names.
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
    is_list = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return tuple(names) if is_list else None


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


@contextmanager
def _open_parquet(path: Path, fields: Sequence[str], numbers: Sequence[str] = ()):
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            require_columns(path, file.schema_arrow.names, fields)
            for field in fields:
                kind = file.schema_arrow.field(field).type
                if not _is_text(kind) and not (field in numbers and _is_number(kind)):
                    expected = "text or numbers" if field in numbers else "text"
                    raise UserError(f"the column {field!r} of {path} holds {kind}; expected {expected}")
            yield file
    except pa.ArrowException as error:
        raise UserError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or str(error).splitlines()[0]}") from error


def check_parquet(path: Path, fields: Sequence[str], numbers: Sequence[str] = ()) -> int:
    """The number of rows; UserError where a column is not there or holds no text. Reads the footer.

    Args:
        numbers: fields where numbers are as good as text.
    """
    with _open_parquet(path, fields, numbers) as file:
        return file.metadata.num_rows


def iterate_parquet(
    path: Path,
    fields: Sequence[str],
    report: LineReport,
    max_bytes: int = MAX_BYTES_PER_LINE,
    numbers: Sequence[str] = (),
) -> Iterator[Tuple[Tuple[str, ...], str]]:
    """Yields ``(values, "file row n")`` for each row in which all the named values are text.

    Args:
        numbers: see `fastadv.data.sources.lines.checked_record`.
    """
    with _open_parquet(path, fields, numbers) as file:
        number = 0
        for batch in file.iter_batches(_ROWS_A_READ, columns=list(dict.fromkeys(fields)), use_threads=False):
            for values in zip(*(batch.column(field).to_pylist() for field in fields)):
                report.num_lines += 1
                where = f"{path.name} row {number}"
                number += 1
                record = checked_record(values, fields, where, report, True, max_bytes, numbers)
                if record is not None:
                    yield record, where
