"""Labelled texts and pairs of texts: where they come from, and which columns they lie in.

Nothing is skipped but empty lines, and rows that a known data set marks as without a label: whatever else is wrong with
a row stops the reading, named by file, row and column.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, List, Optional, Protocol, Sequence, Tuple

from fastadv.data.labelled.labels import FoundLabels, LabelledRow, LabelMap, why_no_class
from fastadv.data.sources import demo
from fastadv.data.sources.find import Columns, Files, FoundFiles, FoundRows, find_source, placed_records
from fastadv.data.sources.first_fault import FirstFault
from fastadv.data.sources.known_datasets import KnownDataset, known_dataset
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, LineReport, checked_record
from fastadv.data.sources.senteval_sets import senteval_set
from fastadv.errors import UserError

TEXT, LABEL = "text", "label"
"""what ``field`` and ``label_field`` say by default: where a known data set has no such column, its own is meant"""


class LabelledSource(Protocol):
    """A source that exists and has the columns asked for."""

    text_columns: Tuple[str, ...]
    """one, or two of a pair"""
    label_column: str
    given: Optional[Sequence[str]]
    """the names of all classes in their order, where the data set says so"""

    def identity(self) -> Tuple[str, Optional[int]]:
        """A hash of all the content, and an upper bound on the number of rows where one is known."""

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        """Every row in order, each counted in ``report``. UserError at the first that is not right."""


def open_labelled(
    source: str | os.PathLike,
    label_field: str = LABEL,
    field: str = TEXT,
    pair_field: Optional[str] = None,
    split: str = "train",
) -> LabelledSource:
    """Finds the labelled texts that ``source`` names: ``demo:imdb``, a folder of one of SentEval's sets, or whatever
    `fastadv.data.sources.find.open_source` finds that has columns.

    Args:
        label_field, field, pair_field: the columns of the label, of the text and of a pair's second text.

    Raises:
        UserError: nothing there can be read as labelled texts, or it lacks a column.
    """
    name = os.fspath(source)
    if name.startswith("demo:"):
        return _with_own_columns(DemoReviews(name, split), name, label_field, field, pair_field)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        found_set = senteval_set(folder, split)
        if found_set is not None:
            return _with_own_columns(found_set, name, label_field, field, pair_field)
    known = known_dataset(name)
    if known is not None and not known.names:
        raise UserError(
            f"{name} has scores, not classes; expected a data set with labels (regression is not trained on)"
        )
    found = find_source(name, split if known is None else known.splits.get(split, split))
    if isinstance(found, FoundFiles):
        texts = (field,) if pair_field is None else (field, pair_field)
        return LabelledFiles(found, texts, label_field)
    return LabelledColumns(found, label_field, field, pair_field, known)


def _with_own_columns(source, name: str, label_field: str, field: str, pair_field: Optional[str]) -> LabelledSource:
    own = (*source.text_columns, source.label_column)
    allowed = [
        (TEXT, None, LABEL),
        (source.text_columns[0], *(source.text_columns[1:] or (None,)), source.label_column),
    ]
    if (field, pair_field, label_field) not in allowed:
        asked = ", ".join(repr(column) for column in (field, pair_field, label_field) if column is not None)
        raise UserError(
            f"{name} has the columns {', '.join(own)}, got {asked}; expected data.field = {TEXT}, "
            f"data.pair_field = null and data.label_field = {LABEL}"
        )
    return source


class LabelledFiles(Files):
    """Files with columns, of any mixture of formats."""

    given = None

    def __init__(self, found: FoundFiles, text_columns: Tuple[str, ...], label_column: str):
        super().__init__(found.paths, (*text_columns, label_column), found.ignored, numbers=(label_column,))
        self.text_columns, self.label_column = text_columns, label_column

    def identity(self) -> Tuple[str, Optional[int]]:
        content, num_rows = super().identity()
        # Places in a folder name its files; that of a file alone is known without the cache.
        names = [path.name for path in self.paths] if len(self.paths) > 1 else []
        return f"labelled-{content}-{names}", num_rows

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        report.ignored_files.extend(self.ignored)
        for path in self.paths:
            fault, num_rows = FirstFault(path, _types(self)), 0
            records = placed_records(path, self.fields, fault, MAX_BYTES_PER_LINE, self.numbers)
            try:
                for (*texts, label), where in records:
                    num_rows += 1
                    yield LabelledRow(tuple(texts), _class(label, where, self.label_column, fault), path.name, where)
            finally:
                report.num_lines += fault.num_lines
                report.num_blank += fault.num_blank
                report.num_sentences += num_rows
            if not num_rows:
                raise UserError(f"{path} holds no labelled row")


def _types(source: LabelledSource) -> str:
    return f"{' and '.join(source.text_columns)}: text, {source.label_column}: a name or a whole number"


class LabelledColumns(Columns):
    """Columns of a `datasets` split. Classes that it has names for go by these, in their order."""

    def __init__(
        self,
        found: FoundRows,
        label_field: str,
        field: str,
        pair_field: Optional[str],
        known: Optional[KnownDataset],
    ):
        there = found.rows.column_names
        parts: Tuple[str, ...] = (field,) if pair_field is None else (field, pair_field)
        self._is_joined = False
        if known is not None and parts == (TEXT,) and TEXT not in there and set(known.texts) <= set(there):
            parts, self._is_joined = known.texts, known.is_joined
        if known is not None and label_field == LABEL and LABEL not in there and known.label in there:
            label_field = known.label
        super().__init__(found.rows, found.name, (*parts, label_field))
        self.text_columns, self.label_column = ((" + ".join(parts),) if self._is_joined else parts), label_field
        self._skips_unlabelled = known is not None and known.skips_unlabelled
        self.given = self._names_of(found.rows.features[label_field], known)

    def _names_of(self, feature, known: Optional[KnownDataset]) -> Optional[Tuple[str, ...]]:
        names = getattr(feature, "names", None)
        if names is not None:
            return tuple(names)
        dtype = str(getattr(feature, "dtype", feature))
        if not dtype.startswith(("int", "uint", "string", "large_string")):
            raise UserError(
                f"the column {self.label_column!r} of {self.name} holds {dtype}; expected "
                "classes: names or whole numbers, for scores (regression) are not trained on"
            )
        is_its_label = known is not None and self.label_column == known.label
        return known.names if is_its_label and "int" in dtype else None

    def identity(self) -> Tuple[str, Optional[int]]:
        content, num_rows = super().identity()
        return f"labelled-{content}-{self._is_joined}-{self._skips_unlabelled}-{self.name}", num_rows

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        column, fault = self.label_column, FirstFault(None, _types(self))
        for number, (*texts, label) in enumerate(self.values()):
            report.num_lines += 1
            where = f"{self.name} row {number}"
            if isinstance(label, int) and self.given is not None:
                if label == -1 and self._skips_unlabelled:
                    report.note("unlabelled", where)
                    continue
                if not 0 <= label < len(self.given):
                    known = f"known are 0 to {len(self.given) - 1}"
                    why = "no label (-1)" if label == -1 else f"the label {label} is unknown; {known}"
                    fault.fail(f"{where}, column {column}", why)
                label = self.given[label]
            if self._is_joined:
                texts = [" ".join(text.strip() for text in texts if text is not None and text.strip())]
            values, names = (*texts, label), (*self.text_columns, column)
            *texts, label = checked_record(values, names, where, fault, True, MAX_BYTES_PER_LINE, (column,))
            report.num_sentences += 1
            label = _class(label, where, column, fault) if self.given is None else label
            yield LabelledRow(tuple(texts), label, self.name, where)


class DemoReviews:
    """The IMDb reviews of the `demo` extra with their sentiment."""

    text_columns, label_column = (TEXT,), LABEL

    def __init__(self, name: str, split: str):
        self.split = "dev" if split == "validation" else split
        demo.check_reviews_name(name, self.split)
        self.name, self.given = name, demo.SENTIMENTS

    def identity(self) -> Tuple[str, Optional[int]]:
        return f"{self.name}-{self.split}-{demo.reviews_fingerprint()}", None

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        for number, (text, label) in enumerate(demo.demo_reviews(self.split)):
            report.num_lines += 1
            report.num_sentences += 1
            yield LabelledRow((text,), label, self.name, f"{self.name}[{self.split}] review {number}")


def _class(label: str, where: str, column: str, fault: FirstFault) -> str:
    label = label.strip()
    why = why_no_class(label)
    if why is not None:
        fault.fail(f"{where}, column {column}", why)
    return label


@dataclass
class LabelledTexts:
    """Labelled texts as they are, in memory; all lists of one length."""

    label_map: LabelMap
    first: List[str] = field(default_factory=list)
    second: Optional[List[str]] = None
    """of pairs; None where there are texts alone"""
    labels: List[int] = field(default_factory=list)
    """ids of ``label_map``"""

    def __len__(self) -> int:
        return len(self.labels)


def read_labelled(
    source: str | os.PathLike,
    label_field: str = LABEL,
    field: str = TEXT,
    pair_field: Optional[str] = None,
    split: str = "train",
    label_map: Optional[LabelMap] = None,
) -> LabelledTexts:
    """All rows of ``source``, untokenised, for what evaluates texts rather than trains on them.

    Args:
        label_map: the classes of the model that is evaluated; None: by the rule of `fastadv.data.labelled.labels`.

    Raises:
        UserError: what `open_labelled` and its rows raise, or an unknown label.
    """
    opened = open_labelled(source, label_field, field, pair_field, split)
    found = new_found_labels(opened, source)
    rows = []
    for row in opened.rows(LineReport()):
        rows.append((row.texts, found.add(row.label, row.file, row.where)))
    if not rows:
        raise UserError(f"{source} holds no labelled row")
    label_map = found.label_map if label_map is None else label_map
    ids = label_map.ids_of(found)
    texts = list(zip(*(texts for texts, _ in rows)))
    second = list(texts[1]) if len(texts) == 2 else None
    return LabelledTexts(label_map, list(texts[0]), second, [ids[number] for _, number in rows])


def new_found_labels(opened: LabelledSource, source: str | os.PathLike) -> FoundLabels:
    """What takes down the labels of an opened source's rows."""
    given = None if opened.given is None else list(opened.given)
    return FoundLabels(opened.label_column, given, source=os.fspath(source))
