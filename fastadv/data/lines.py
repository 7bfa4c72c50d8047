"""The line rule: how the bytes of a file become sentences, with nothing lost silently.

A file is UTF-8. A byte order mark at its start is dropped. ``\\n`` and ``\\r\\n`` end a line and nothing else
does: U+2028, U+0085, ``\\x0b``, ``\\x0c`` and a lone ``\\r`` stay in the text, and so does whitespace at
either end. Then, in this order,

* a line of more than ``max_bytes`` (its ending not counted) is skipped and counted, and never held in memory;
* malformed bytes become U+FFFD, and are counted;
* a line that is only whitespace is skipped and counted;
* in a ``.jsonl`` file the line is a JSON object whose ``field`` is the sentence. A line that is no JSON, and
  an object without the field or with something other than a string there, is skipped and counted. A sentence
  that is only whitespace counts as a blank line; half a surrogate pair, which UTF-8 cannot hold, as malformed
  bytes.
"""

import codecs
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from fastadv.errors import UserError

MAX_BYTES_PER_LINE = 1 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
# Enough to show what a file holds; a file whose every line has keys of its own must not fill the memory.
_MAX_FIELDS_KEPT = 20


@dataclass
class LineReport:
    """What became of every line (or row of a dataset) that was read.

    ``num_lines = num_sentences + num_blank + num_too_long + num_bad_json + num_without_field``.
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
    num_without_field: int = 0
    """lines whose field is absent or no string"""
    num_undecodable: int = 0
    """lines kept in which malformed bytes were replaced"""
    num_replacements: int = 0
    """malformed byte sequences replaced, over all lines"""
    num_without_tokens: int = 0
    """sentences dropped because the tokenizer left only special tokens"""
    first: Dict[str, str] = field(default_factory=dict)
    """``file:line`` of the first line counted under each name (``blank``, ``too_long``, ...)"""
    ignored_files: List[str] = field(default_factory=list)
    """entries of a folder that are neither .txt nor .jsonl files"""
    fields_seen: List[str] = field(default_factory=list)
    """fields of the objects counted in num_without_field (the first few names)"""

    def note(self, kind: str, where: str) -> None:
        """Counts a line under ``num_<kind>`` and keeps the place of the first."""
        setattr(self, f"num_{kind}", getattr(self, f"num_{kind}") + 1)
        self.first.setdefault(kind, where)

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
            "without_field": "without the field, skipped",
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


def iterate_lines(path: Path, report: LineReport, max_bytes: int = MAX_BYTES_PER_LINE) -> Iterator[Tuple[str, str]]:
    """Yields ``(text, "file:line")`` for each line that is neither too long nor blank.

    Memory stays near ``max_bytes`` however long a line is.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
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
                replaced = text.count(_REPLACEMENT) - line.count(_REPLACEMENT.encode())
                if replaced:
                    report.note("undecodable", where)
                    report.num_replacements += replaced
                if text.strip():
                    yield text, where
                else:
                    report.note("blank", where)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _without_ending(raw: bytes) -> bytes:
    if raw.endswith(b"\r\n"):
        return raw[:-2]
    return raw[:-1] if raw.endswith(b"\n") else raw


def sentence_of_object(line: str, field_name: str, where: str, report: LineReport) -> Optional[str]:
    """The sentence in a JSON line, or None with the reason counted."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        report.note("bad_json", where)
        return None
    value = parsed.get(field_name) if isinstance(parsed, dict) else None
    if not isinstance(value, str):
        report.note("without_field", where)
        if isinstance(parsed, dict):
            report.note_fields(parsed)
        return None
    return checked_sentence(value, where, report)


def checked_sentence(text: str, where: str, report: LineReport) -> Optional[str]:
    """A string from JSON or a dataset under the same rule as a line: None where it is blank."""
    if not text.strip():
        report.note("blank", where)
        return None
    text, replaced = _SURROGATE.subn(_REPLACEMENT, text)
    if replaced:
        report.note("undecodable", where)
        report.num_replacements += replaced
    return text
