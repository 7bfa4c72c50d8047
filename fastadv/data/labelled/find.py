"""Labelled texts and pairs of texts: where they come from, and which columns they lie in.

Nothing is skipped but empty lines, and rows whose label says that they have none, of a known data set or as the user
names it: whatever else is wrong with a row stops the reading, named by file, row and column.
"""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Collection, Iterator, List, Optional, Protocol, Sequence, Tuple

from fastadv.config.text_attack import PAIR_ROLES
from fastadv.data.labelled.labels import SKIPPING, UNLABELLED, FoundLabels, LabelledRow, LabelMap, why_no_class
from fastadv.data.labelled.matching import matched
from fastadv.data.sources import demo
from fastadv.data.sources.compressed import kind_of
from fastadv.data.sources.find import Columns, Files, FoundFiles, FoundRows, find_source, placed_records
from fastadv.data.sources.first_fault import FirstFault
from fastadv.data.sources.known_datasets import KnownDataset, known_dataset
from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, checked_record
from fastadv.data.sources.senteval_sets import senteval_set
from fastadv.data.sources.tables import class_names
from fastadv.errors import UserError

logger = logging.getLogger(__name__)

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
    quoting: str = "auto",
    skip_labels: Sequence[str] = (),
) -> LabelledSource:
    """Finds the labelled texts that ``source`` names: ``demo:imdb``, a folder of one of SentEval's sets, or whatever
    `fastadv.data.sources.find.open_source` finds that has columns.

    Args:
        label_field, field, pair_field: the columns of the label, of the text and of a pair's second text.
        quoting: of tables, see `fastadv.data.sources.tables.is_quoted`.
        skip_labels: labels of rows that are left out and counted.

    Raises:
        UserError: nothing there can be read as labelled texts, or it lacks a column.
    """
    name = os.fspath(source)
    if name.startswith("demo:"):
        own: LabelledSource = _with_own_columns(DemoReviews(name, split), name, label_field, field, pair_field)
        return _without_labels(own, skip_labels)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        found_set = senteval_set(folder, split)
        if found_set is not None:
            return _without_labels(_with_own_columns(found_set, name, label_field, field, pair_field), skip_labels)
    known = known_dataset(name)
    if known is not None and not known.names:
        raise UserError(
            f"{name} has scores, not classes; expected a data set with labels (regression is not trained on)"
        )
    found = find_source(name, split if known is None else known.splits.get(split, split))
    if isinstance(found, FoundFiles):
        texts = (field,) if pair_field is None else (field, pair_field)
        return _without_labels(LabelledFiles(found, texts, label_field, quoting, skip_labels), skip_labels)
    skipped = {*skip_labels, UNLABELLED} if known is not None and known.skips_unlabelled else skip_labels
    return _without_labels(LabelledColumns(found, label_field, field, pair_field, known, skipped), skipped)


class WithoutLabels:
    """A source without its rows of some labels, which are counted."""

    def __init__(self, source: LabelledSource, labels: Collection[str]):
        self._source, self._labels = source, frozenset(labels)
        self.text_columns, self.label_column = source.text_columns, source.label_column
        self.given = None if source.given is None else tuple(name for name in source.given if name not in labels)

    def identity(self) -> Tuple[str, Optional[int]]:
        content, num_rows = self._source.identity()
        return f"{content}-without-{sorted(self._labels)}", num_rows

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        for row in self._source.rows(report):
            if row.label in self._labels:
                report.note("unlabelled", row.where)
                report.num_sentences -= 1
            else:
                yield row


def _without_labels(source: LabelledSource, labels: Collection[str]) -> LabelledSource:
    return WithoutLabels(source, labels) if labels else source


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

    def __init__(
        self,
        found: FoundFiles,
        text_columns: Tuple[str, ...],
        label_column: str,
        quoting: str = "auto",
        skip_labels: Collection[str] = (),
    ):
        fields = (*text_columns, label_column)
        super().__init__(found.paths, fields, found.ignored, numbers=(label_column,), quoting=quoting)
        self.text_columns, self.label_column, self._skipped = text_columns, label_column, skip_labels
        self._names = {
            path: class_names(path, label_column) if kind_of(path) == ".parquet" else None for path in self.paths
        }
        every = set(self._names.values())
        self.given = every.pop() if len(every) == 1 else None

    def identity(self) -> Tuple[str, Optional[int]]:
        content, num_rows = super().identity()
        # Places in a folder name its files; that of a file alone is known without the cache.
        names = [path.name for path in self.paths] if len(self.paths) > 1 else []
        return f"labelled-{content}-{names}", num_rows

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        report.ignored_files.extend(self.ignored)
        for path in self.paths:
            fault, names = FirstFault(path, _types(self)), self._names[path]
            records = placed_records(path, self.fields, fault, MAX_BYTES_PER_LINE, self.numbers, self.quoting)
            try:
                for (*texts, label), where in records:
                    fault.num_sentences += 1
                    label = _class(label, where, self.label_column, fault, names, self._skipped)
                    yield LabelledRow(tuple(texts), label, path.name, where)
            finally:
                report.add(fault)
            if not fault.num_sentences:
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
        skip_labels: Collection[str] = (),
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
        self._skipped = skip_labels
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
        return f"labelled-{content}-{self._is_joined}-{self.name}", num_rows

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        column, fault = self.label_column, FirstFault(None, _types(self))
        for number, (*texts, label) in enumerate(self.values()):
            report.num_lines += 1
            where = f"{self.name} row {number}"
            if self._is_joined:
                texts = [" ".join(text.strip() for text in texts if text is not None and text.strip())]
            values, columns = (*texts, label), (*self.text_columns, column)
            *texts, name = checked_record(values, columns, where, fault, True, MAX_BYTES_PER_LINE, (column,))
            report.num_sentences += 1
            # Classes by their names, in a column of text, are as they are.
            names = self.given if isinstance(label, int) else None
            yield LabelledRow(tuple(texts), _class(name, where, column, fault, names, self._skipped), self.name, where)


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


def _class(
    label: str,
    where: str,
    column: str,
    fault: FirstFault,
    names: Optional[Sequence[str]] = None,
    skipped: Collection[str] = (),
) -> str:
    """The name of a label's class.

    Args:
        label: as it was read, a number in its digits.
        names: of the classes that numbers stand for; None: labels are names.
        skipped: labels that are no class, and stay as they are.
    """
    label = label.strip()
    if label in skipped:
        return label
    why = why_no_class(label)
    if why is None and names is not None:
        if label == UNLABELLED:
            why = f"no label ({UNLABELLED}); {SKIPPING}"
        elif not label.isdigit() or int(label) >= len(names):
            why = f"the label {label} is unknown; known are 0 to {len(names) - 1}"
        else:
            return names[int(label)]
    if why is not None:
        fault.fail(f"{where}, column {column}", why)
    return label


def roles_of(columns: Sequence[str]) -> Tuple[str, str]:
    """The names of a pair's columns in lower case; `PAIR_ROLES` of single texts, and where these are one name."""
    found = tuple(column.lower() for column in columns)
    return found if len(set(found)) == 2 else PAIR_ROLES


@dataclass
class LabelledTexts:
    """Labelled texts as they are, in memory; all lists of one length."""

    label_map: LabelMap
    first: List[str] = field(default_factory=list)
    second: Optional[List[str]] = None
    """of pairs; None where there are texts alone"""
    labels: List[int] = field(default_factory=list)
    """ids of ``label_map``"""
    columns: Tuple[str, ...] = (TEXT,)
    """what the texts are called: one name, or two of pairs"""
    is_ordered: bool = False
    """whether the data say in which order their classes are"""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def roles(self) -> Tuple[str, str]:
        """What the two texts of a pair are to a recipe of attacks."""
        return roles_of(self.columns)

    def classes_of(self, model: LabelMap, name: Optional[str] = None) -> LabelMap:
        """The classes of a model as these data call them (`fastadv.data.labelled.matching`); what is not matched by its
        name is logged.

        Args:
            name: the model's, in the log; None: nothing is logged.

        Raises:
            UserError: a label that is no class of the model.
        """
        present = [self.label_map.names[label] for label in dict.fromkeys(self.labels)]
        found, how = matched(model, self.label_map, present, self.is_ordered)
        if how is not None and name is not None:
            logger.info("%s: %s", name, how)
        return found


def read_labelled(
    source: str | os.PathLike,
    label_field: str = LABEL,
    field: str = TEXT,
    pair_field: Optional[str] = None,
    split: str = "train",
    label_map: Optional[LabelMap] = None,
    quoting: str = "auto",
    skip_labels: Sequence[str] = (),
) -> LabelledTexts:
    """All rows of ``source``, untokenised, for what evaluates texts rather than trains on them.

    Args:
        label_map: the classes of the model that is evaluated; None: by the rule of `fastadv.data.labelled.labels`.
        quoting, skip_labels: as `open_labelled` has them.

    Raises:
        UserError: what `open_labelled` and its rows raise, or an unknown label.
    """
    opened = open_labelled(source, label_field, field, pair_field, split, quoting, skip_labels)
    found, report, rows = new_found_labels(opened, source), LineReport(), []
    for row in opened.rows(report):
        rows.append((row.texts, found.add(row.label, row.file, row.where)))
    if not rows:
        raise UserError(f"{source} holds no labelled row: {report.summary()}")
    report.say("read", os.fspath(source))
    label_map = found.label_map if label_map is None else label_map
    ids = label_map.ids_of(found)
    texts = list(zip(*(texts for texts, _ in rows)))
    second = list(texts[1]) if len(texts) == 2 else None
    labels, is_ordered = [ids[number] for _, number in rows], opened.given is not None
    return LabelledTexts(label_map, list(texts[0]), second, labels, opened.text_columns, is_ordered)


def new_found_labels(opened: LabelledSource, source: str | os.PathLike) -> FoundLabels:
    """What takes down the labels of an opened source's rows."""
    given = None if opened.given is None else list(opened.given)
    return FoundLabels(opened.label_column, given, source=os.fspath(source))
