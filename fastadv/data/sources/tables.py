"""Rows of .csv, .tsv and .parquet files, read a few at a time.

``.csv`` follows Python's `csv` module in its default dialect, ``.tsv`` the same with tabs: a cell that begins with
a double quote ends at its closing one and may hold separators and line ends. The first row that is not empty names the
columns. Rows are counted from 1, this one and empty ones included. Of the others

* a row of more than ``max_bytes`` (its ending not counted) is skipped and counted, and never held in memory; a quote
  that is not closed makes such a row, and reading goes on at the line after;
* an empty line counts as blank;
* a row with more or fewer cells than there are columns is skipped and counted as ragged, and so is one whose quote
  the file's end leaves open, as malformed;
* malformed UTF-8 becomes U+FFFD, and is counted.

Rows of ``.parquet`` files are counted from 0, as pandas and `datasets` do; null is a missing value.
"""

import csv
import difflib
import io
import re
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, TextIO, Tuple

import pyarrow as pa
import pyarrow.parquet as pq

from fastadv.data.sources.compressed import kind_of, open_binary
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, LineReport, checked_record
from fastadv.errors import UserError

_DIALECTS = {".csv": csv.excel, ".tsv": csv.excel_tab}
# How `surrogateescape` keeps a byte that is no UTF-8.
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_REPLACEMENT = "\ufffd"
_ROWS_A_READ = 1024


def nearest_column(field: str, columns: Sequence[str]) -> str:
    """The end of a message about a column that is not there: the one of a name near to it, if there is one."""
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


class _RowTooLong(Exception):
    pass


class _RowLines:
    """Lines for `csv.reader`, which asks for more of them while a quote is open."""

    def __init__(self, file: TextIO, max_bytes: int):
        self._file, self._max_bytes, self._num_bytes = file, max_bytes, 0
        self._is_cut = self.is_at_end = False

    def begin_row(self) -> None:
        self._num_bytes = 0

    def __iter__(self) -> "_RowLines":
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._max_bytes + len("\r\n"))
        if self._is_cut and line == "\n":
            line = self._file.readline(self._max_bytes + len("\r\n"))
        self._is_cut = False
        if not line:
            self.is_at_end = True
            raise StopIteration
        if self._num_bytes + _num_bytes(line.rstrip("\r\n")) > self._max_bytes:
            while line and not line.endswith(("\n", "\r")):
                line = self._file.readline(1 << 16)
            # A line feed may be what is left of a skipped line's \r\n.
            self._is_cut = line.endswith("\r")
            raise _RowTooLong
        self._num_bytes += _num_bytes(line)
        return line


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _decoded(cell: str) -> Tuple[str, int]:
    """A cell with its malformed bytes replaced, and how many sequences of them there were."""
    if cell.isascii() or not _ESCAPED_BYTE.search(cell):
        return cell, 0
    text = cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text, text.count(_REPLACEMENT) - cell.count(_REPLACEMENT)


@contextmanager
def _open_csv(path: Path, max_bytes: int):
    """Yields the lines, their csv reader, the names of the columns ([] for a file of no row) and their row's number."""
    # One limit for the whole process, of 128 KiB at first; the lines' own limit comes before it.
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
    with open_binary(path) as file:
        # Line ends are the csv module's business: untranslated, and a lone \r is one of them.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        lines = _RowLines(text, max_bytes)
        reader = csv.reader(lines, _DIALECTS[kind_of(path)])
        number, header = 0, []
        try:
            while header == []:
                lines.begin_row()
                number, header = number + 1, next(reader, None)
        except (_RowTooLong, csv.Error):
            header = []
        if header is not None and (not header or lines.is_at_end):
            raise UserError(f"{path} does not begin with a row of column names of at most {max_bytes:,} bytes")
        yield lines, reader, [_decoded(name)[0] for name in header or ()], number


def check_csv(path: Path, fields: Sequence[str]) -> None:
    """Raises UserError where a column is not there; reads the first row. A file of no row at all passes."""
    with _open_csv(path, MAX_BYTES_PER_LINE) as (_, _, names, _):
        if names:
            require_columns(path, names, fields)


def iterate_csv(
    path: Path, fields: Sequence[str], report: LineReport, max_bytes: int = MAX_BYTES_PER_LINE
) -> Iterator[Tuple[Tuple[str, ...], str]]:
    """Yields ``(cells, "file row n")`` for each row in which all the named cells hold text."""
    with _open_csv(path, max_bytes) as (lines, reader, names, number_of_names):
        if not names:
            return
        require_columns(path, names, fields)
        columns = [names.index(field) for field in fields]
        for number in count(number_of_names + 1):
            where = f"{path.name} row {number}"
            lines.begin_row()
            fault: Optional[str] = None
            row: Optional[List[str]] = []
            try:
                row = next(reader, None)
            except _RowTooLong:
                fault = "too_long"
            except csv.Error:
                fault = "bad_csv"
            if row is None:
                return
            report.num_lines += 1
            if fault is not None:
                report.note(fault, where)
            elif lines.is_at_end:
                # A row ends with its line; only an open quote looks for another one.
                report.note("bad_csv", where)
            elif not row:
                report.note("blank", where)
            elif len(row) != len(names):
                report.note("ragged", f"{where}, {len(row)} cells for {len(names)} columns")
            else:
                cells = [_decoded(row[column]) for column in columns]
                record = checked_record([text for text, _ in cells], fields, where, report, is_column_named=True)
                if record is not None:
                    report.note_replacements(sum(replaced for _, replaced in cells), where)
                    yield record, where


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
