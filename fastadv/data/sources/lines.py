"""The line rule: how the bytes of a .txt or .jsonl file become sentences, with nothing lost silently.

Rows of tables have theirs in `fastadv.data.sources.tables`. A file is UTF-8. A byte order mark at its start is dropped.
``\\n`` and ``\\r\\n`` end a line and nothing else does: U+2028, U+0085, ``\\x0b``, ``\\x0c`` and a lone ``\\r``
stay in the text, and so does whitespace at either end. Then, in this order,

* a line of more than ``max_bytes`` (its ending not counted) is skipped and counted, and never held in memory;
* malformed bytes become U+FFFD, and are counted;
* a line that is only whitespace is skipped and counted;
* in a ``.jsonl`` file the line is a JSON object whose ``field`` is the sentence. A line that is no JSON, and
  an object without the field or with something other than a string there, is skipped and counted. A sentence
  that is only whitespace counts as a blank line; half a surrogate pair, which UTF-8 cannot hold, as malformed
  bytes. Where several fields are read (a sentence, its positive, its hard negative) one at fault costs the line.
"""

import codecs
import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from fastadv.data.sources.compressed import open_binary

MAX_BYTES_PER_LINE = 1 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
# Enough to show what a file holds; a file whose every line has keys of its own must not fill the memory.
_MAX_FIELDS_KEPT = 20


@dataclass
class LineReport:
    """What became of every line (or row of a dataset) that was read.

    ``num_lines`` is ``num_sentences`` and every line skipped: blank, too long, bad JSON or CSV, ragged, without field
    or label.
    """

    num_lines: int = 0
    num_sentences: int = 0
    """lines that gave a sentence"""
    num_blank: int = 0
    """lines of whitespace only"""
    num_too_long: int = 0
    """lines skipped for their length"""
    num_bad_json: int = 0
    """lines that are no JSON"""
    num_bad_csv: int = 0
    """rows that the csv module refuses, or whose quote is never closed"""
    num_ragged: int = 0
    """rows with more or fewer cells than there are columns"""
    num_without_field: int = 0
    """lines whose field is absent or no string"""
    num_unlabelled: int = 0
    """rows of a labelled data set that it marks as without a label, skipped"""
    num_undecodable: int = 0
    """lines kept in which malformed bytes were replaced"""
    num_replacements: int = 0
    """malformed byte sequences replaced, over all lines"""
    num_without_tokens: int = 0
    """sentences dropped because the tokenizer left only special tokens"""
    first: Dict[str, str] = field(default_factory=dict)
    """``file:line``, or file, row and column, of the first line counted under each name (``blank``, ...)"""
    ignored_files: List[str] = field(default_factory=list)
    """entries of a folder that are no files of sentences"""
    fields_seen: List[str] = field(default_factory=list)
    """fields of the objects counted in num_without_field (the first few names)"""

    def note(self, kind: str, where: str, column: Optional[str] = None) -> None:
        """Counts a line under ``num_<kind>`` and keeps the place of the first.

        Args:
            column: the one at fault; None: the whole line, or a line of one column.
        """
        setattr(self, f"num_{kind}", getattr(self, f"num_{kind}") + 1)
        self.first.setdefault(kind, where if column is None else f"{where}, column {column}")

    def note_replacements(self, num_replaced: int, where: str) -> None:
        """Counts a line that is kept with ``num_replaced`` malformed sequences replaced, where there are any."""
        if num_replaced:
            self.note("undecodable", where)
            self.num_replacements += num_replaced

    def note_fields(self, names) -> None:
        """Remembers the fields of an object that gave no sentence."""
        for name in names:
            if len(self.fields_seen) < _MAX_FIELDS_KEPT and name not in self.fields_seen:
                self.fields_seen.append(name)

    def summary(self) -> str:
        """All counts that are not zero, on one line."""
        kept = self.num_sentences - self.num_without_tokens
        parts = [f"{kept:,} sentences of {self.num_lines:,} lines"]
        labels = {
            "blank": "blank",
            "too_long": "too long, skipped",
            "bad_json": "not JSON, skipped",
            "bad_csv": "malformed rows, skipped",
            "ragged": "rows of another number of cells, skipped",
            "without_field": "without the field, skipped",
            "unlabelled": "without a label, skipped",
            "undecodable": "with malformed UTF-8, replaced",
            "without_tokens": "without tokens, dropped",
        }
        for kind, label in labels.items():
            count = getattr(self, f"num_{kind}")
            if count:
                where = f" (first: {self.first[kind]})" if kind in self.first else ""
                parts.append(f"{count:,} {label}{where}")
        if self.ignored_files:
            shown = ", ".join(self.ignored_files[:5])
            more = ", ..." if len(self.ignored_files) > 5 else ""
            parts.append(f"{len(self.ignored_files):,} other files ignored ({shown}{more})")
        return "; ".join(parts)


def iterate_lines(
    path: Path, report: LineReport, max_bytes: int = MAX_BYTES_PER_LINE, keeps_blank: bool = False
) -> Iterator[Tuple[str, str]]:
    """Yields ``(text, "file:line")`` for each line that is neither too long nor, unless kept, blank.

    Memory stays near ``max_bytes`` however long a line is.

    Raises:
        UserError: the file cannot be read.
    """
    with open_binary(path) as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        number = 0
        while raw := file.readline(max_bytes + len(b"\r\n")):
            number += 1
            report.num_lines += 1
            where = f"{path.name}:{number}"
            line = _without_ending(raw)
            if len(line) > max_bytes:
                report.note("too_long", where)
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(1 << 16)
                continue
            text = line.decode("utf-8", errors="replace")
            report.note_replacements(text.count(_REPLACEMENT) - line.count(_REPLACEMENT.encode()), where)
            if keeps_blank or text.strip():
                yield text, where
            else:
                report.note("blank", where)


def _without_ending(raw: bytes) -> bytes:
    if raw.endswith(b"\r\n"):
        return raw[:-2]
    return raw[:-1] if raw.endswith(b"\n") else raw


def record_of_object(
    line: str, fields: Sequence[str], where: str, report: LineReport, numbers: Sequence[str] = ()
) -> Optional[Tuple[str, ...]]:
    """The strings under ``fields`` in a JSON line, or None with the reason counted.

    Args:
        numbers: see `checked_record`.
    """
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        report.note("bad_json", where)
        return None
    values = [parsed.get(name) if isinstance(parsed, dict) else None for name in fields]
    if isinstance(parsed, dict) and not all(isinstance(value, str) for value in values):
        report.note_fields(parsed)
    return checked_record(values, fields, where, report, is_column_named=len(fields) > 1, numbers=numbers)


def checked_record(
    values: Sequence[object],
    fields: Sequence[str],
    where: str,
    report: LineReport,
    is_column_named: bool,
    max_bytes: Optional[int] = None,
    numbers: Sequence[str] = (),
) -> Optional[Tuple[str, ...]]:
    """Values from JSON, a table or a dataset under the same rule as a line.

    Args:
        is_column_named: a fault's place is given with its column.
        max_bytes: of all values together; None where the line was measured before.
        numbers: fields where a number is as good as text; it is returned as its digits.

    Returns:
        the strings, or None with the reason counted.
    """
    if numbers:
        values = [str(value) if name in numbers and _is_number(value) else value for value, name in zip(values, fields)]
    for value, name in zip(values, fields):
        if not isinstance(value, str):
            report.note("without_field", where, name if is_column_named else None)
            return None
    if max_bytes is not None:
        num_bytes = sum(len(value.encode("utf-8", errors="surrogatepass")) for value in values)
        if num_bytes > max_bytes:
            report.note("too_long", where)
            return None
    for value, name in zip(values, fields):
        if not value.strip():
            report.note("blank", where, name if is_column_named else None)
            return None
    pairs = [_SURROGATE.subn(_REPLACEMENT, value) for value in values]
    report.note_replacements(sum(replaced for _, replaced in pairs), where)
    return tuple(text for text, _ in pairs)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
