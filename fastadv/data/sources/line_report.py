"""What became of every line of a text: counts, the places of the first ones, and the line that says so."""

import logging
from dataclasses import dataclass, field
from typing import Dict, List, Optional

logger = logging.getLogger(__name__)

# Enough to show what a file holds; a file whose every line has keys of its own must not fill the memory.
_MAX_FIELDS_KEPT = 20
_SKIPPED = ("too_long", "bad_json", "bad_csv", "ragged", "without_field")
_WORDS = {
    "blank": "blank",
    "too_long": "too long, skipped",
    "bad_json": "not JSON, skipped",
    "bad_csv": "malformed rows, skipped",
    "ragged": "rows of another number of cells, skipped",
    "without_field": "without the field, skipped",
    "unlabelled": "rows of labels that are left out",
    "undecodable": "with malformed UTF-8, replaced",
    "spanning": "rows over several lines",
    "quoted": "rows with cells in quotes, kept with them",
    "without_tokens": "without tokens, dropped",
}
# Shares above which a reading is doubted. A quarter of the sentences of film reviews are longer than 32 tokens.
_MANY_FAULTS, _MANY_OF_ANOTHER_KIND, _MANY_CUT, _MANY_UNKNOWN = 0.1, 0.5, 0.5, 0.01


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
    """rows of a labelled data set that are marked as without a label, skipped"""
    num_undecodable: int = 0
    """lines kept in which malformed bytes were replaced"""
    num_replacements: int = 0
    """malformed byte sequences replaced, over all lines"""
    num_spanning: int = 0
    """rows of a table that go over several lines, by a quote that is closed on a later one"""
    num_spanned_lines: int = 0
    """the lines of these rows"""
    num_quoted: int = 0
    """rows, of a table without quoting, in which a cell that is read begins and ends with a double quote"""
    num_with_tabs: int = 0
    """lines of a .txt file that hold a tab"""
    num_like_json: int = 0
    """lines of a .txt file that begin and end with braces"""
    num_without_tokens: int = 0
    """sentences dropped because the tokenizer left only special tokens"""
    num_texts: int = 0
    """texts that were tokenised: a sentence, its positive and its hard negative are three"""
    num_cut: int = 0
    """texts cut to ``max_length`` tokens"""
    num_tokens: int = 0
    """tokens of all texts, special ones left out; 0: nothing was tokenised"""
    num_unknown: int = 0
    """those of them that stand for what the tokenizer does not know"""
    max_length: int = 0
    """tokens a text was cut to, special ones included"""
    first: Dict[str, str] = field(default_factory=dict)
    """``file:line``, or file, row and column, of the first line counted under each name (``blank``, ...)"""
    ignored_files: List[str] = field(default_factory=list)
    """entries of a folder that are no files of sentences"""
    fields_seen: List[str] = field(default_factory=list)
    """fields of the objects counted in num_without_field (the first few names)"""

    def count(self, kind: str, where: str) -> None:
        """Counts a line under ``num_<kind>`` and keeps the place of the first."""
        setattr(self, f"num_{kind}", getattr(self, f"num_{kind}") + 1)
        self.first.setdefault(kind, where)

    def note(self, kind: str, where: str, column: Optional[str] = None) -> None:
        """Counts a line with a fault.

        Args:
            column: the one at fault; None: the whole line, or a line of one column.
        """
        self.count(kind, where if column is None else f"{where}, column {column}")

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

    def add(self, other: "LineReport") -> None:
        """Counts what ``other`` counted, as of a file after those of this report."""
        for name, value in vars(other).items():
            if name.startswith("num_"):
                setattr(self, name, getattr(self, name) + value)
        self.first = {**other.first, **self.first}

    def summary(self) -> str:
        """All counts that are not zero, on one line; of texts that were tokenised also how many were cut, and how many
        tokens are unknown."""
        kept = self.num_sentences - self.num_without_tokens
        parts = [f"{kept:,} sentences of {self.num_lines:,} lines"]
        for kind, words in _WORDS.items():
            count = getattr(self, f"num_{kind}")
            if count:
                lines = f", {self.num_spanned_lines:,} lines" if kind == "spanning" else ""
                where = f" (first: {self.first[kind]})" if kind in self.first else ""
                parts.append(f"{count:,} {words}{lines}{where}")
        if self.num_tokens:
            parts.append(self.summary_of_tokens())
        if self.ignored_files:
            shown = ", ".join(self.ignored_files[:5])
            more = ", ..." if len(self.ignored_files) > 5 else ""
            parts.append(f"{len(self.ignored_files):,} other files ignored ({shown}{more})")
        return "; ".join(parts)

    def summary_of_tokens(self) -> str:
        """How many texts were cut, and how many tokens the tokenizer does not know."""
        return (
            f"{self.num_cut:,} cut to {self.max_length} tokens; {self.num_unknown:,} of {self.num_tokens:,} tokens "
            "unknown to the tokenizer"
        )

    def doubts(self) -> List[str]:
        """A line for each reason to doubt that the text is what was meant."""
        found = []
        num_skipped = sum(getattr(self, f"num_{kind}") for kind in _SKIPPED)
        for count, what in (
            (num_skipped, "were skipped for their faults"),
            (self.num_undecodable, "are not UTF-8, and bytes of theirs were replaced"),
            (self.num_quoted, "have cells in quotes, which data.quoting = double (--quoting double) takes off"),
        ):
            if count > _MANY_FAULTS * self.num_lines:
                found.append(f"{count:,} of {self.num_lines:,} lines {what}")
        for count, what in (
            (self.num_with_tabs, "hold tabs; the name of a table ends in .tsv"),
            (self.num_like_json, "look like JSON; the name of a file of JSON lines ends in .jsonl"),
        ):
            if count > _MANY_OF_ANOTHER_KIND * self.num_lines:
                found.append(f"{count:,} of {self.num_lines:,} lines {what}")
        if self.num_cut > _MANY_CUT * self.num_texts:
            found.append(f"{self.num_cut:,} of {self.num_texts:,} texts are cut to {self.max_length} tokens")
        if self.num_unknown > _MANY_UNKNOWN * self.num_tokens:
            share = 100 * self.num_unknown / self.num_tokens
            found.append(f"{share:.1f} % of the tokens are unknown to the tokenizer: is it of the text's language?")
        return found

    def say(self, what: str, name: str, place: str = "") -> None:
        """Logs the summary, and each doubt as a warning.

        Args:
            what: what was done, as ``read``.
            name: the source's.
            place: where the result lies, in words.
        """
        logger.info("%s %s%s: %s", what, name, place, self.summary())
        self._say_doubts(name)

    def say_tokens(self, name: str) -> None:
        """Logs what became of texts that were read before, where they were tokenised."""
        if self.num_tokens:
            logger.info("%s: %s texts, %s", name, f"{self.num_texts:,}", self.summary_of_tokens())
            self._say_doubts(name)

    def _say_doubts(self, name: str) -> None:
        for doubt in self.doubts():
            logger.warning("%s: %s", name, doubt)
