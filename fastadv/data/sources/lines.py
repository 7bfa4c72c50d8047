"""The line rule: how the bytes of a .txt or .jsonl file become sentences, with nothing lost silently.

Rows of tables have theirs in `fastadv.data.sources.tables`, and encodings in `fastadv.data.sources.text_file`.
``\\n`` and ``\\r\\n`` end a line and nothing else does: U+2028, U+0085, ``\\x0b``, ``\\x0c`` and a lone ``\\r``
stay in the text, and so does whitespace at either end. Only in a file whose beginning has ``\\r`` and no ``\\n``, as
old Macs wrote, ``\\r`` ends a line. Then, in this order,

* a line of more than ``max_bytes`` (its ending not counted) is skipped and counted, and never held in memory;
* malformed bytes become U+FFFD, and are counted;
* a line that is only whitespace is skipped and counted;
* in a ``.jsonl`` file the line is a JSON object whose ``field`` is the sentence. A line that is no JSON, and
  an object without the field or with something other than a string there, is skipped and counted. A sentence
  that is only whitespace counts as a blank line; half a surrogate pair, which UTF-8 cannot hold, as malformed
  bytes. Where several fields are read (a sentence, its positive, its hard negative) one at fault costs the line.
"""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Iterator, Optional, Sequence, TextIO, Tuple

from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.text_file import decoded, num_bytes, open_text

MAX_BYTES_PER_LINE = 1 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def raw_lines(file: TextIO, line_end: str, max_bytes: int) -> Iterator[Optional[str]]:
    """The lines of `open_text` without their endings; None in the place of one of more than ``max_bytes``."""
    while raw := file.readline(max_bytes + len("\r\n")):
        line = raw.removesuffix(line_end)
        line = line.removesuffix("\r") if line_end == "\n" and line != raw else line
        if num_bytes(line) <= max_bytes:
            yield line
            continue
        while raw and not raw.endswith(line_end):
            raw = file.readline(1 << 16)
        yield None


def iterate_lines(
    path: Path, report: LineReport, max_bytes: int = MAX_BYTES_PER_LINE, keeps_blank: bool = False
) -> Iterator[Tuple[str, str]]:
    """Yields ``(text, "file:line")`` for each line that is neither too long nor, unless kept, blank.

    Memory stays near ``max_bytes`` however long a line is.

    Raises:
        UserError: the file cannot be read.
    """
    with open_text(path) as (file, line_end):
        for number, line in enumerate(raw_lines(file, line_end, max_bytes), start=1):
            report.num_lines += 1
            where = f"{path.name}:{number}"
            if line is None:
                report.note("too_long", where)
                continue
            text, num_replaced = decoded(line)
            report.note_replacements(num_replaced, where)
            if keeps_blank or text.strip():
                yield text, where
            else:
                report.note("blank", where)


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
    may_be_blank: Sequence[str] = (),
) -> Optional[Tuple[str, ...]]:
    """Values from JSON, a table or a dataset under the same rule as a line.

    Args:
        is_column_named: a fault's place is given with its column.
        max_bytes: of all values together; None where the line was measured before.
        numbers: fields where a number is as good as text; it is returned as its digits.
        may_be_blank: fields that may hold white space alone.

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
        if name not in may_be_blank and not value.strip():
            report.note("blank", where, name if is_column_named else None)
            return None
    pairs = [without_surrogates(value) for value in values]
    report.note_replacements(sum(replaced for _, replaced in pairs), where)
    return tuple(text for text, _ in pairs)


def without_surrogates(text: str) -> Tuple[str, int]:
    """A text with U+FFFD in the place of each half of a surrogate pair, and how many there were."""
    return _SURROGATE.subn(_REPLACEMENT, text)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
