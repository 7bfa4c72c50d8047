"""Classes by name and by number: which names there are, in which order, and what is said where they do not agree.

A label is text or a whole number; its name is that text without white space around it, or the number's digits, so that
1 in JSON and ``1`` in a table are one class. A class's id is its place among the names:

* as the data set says, where it does (a `datasets` ClassLabel, SentEval, the demo, ``data.label_names``);
* else by number where all names are whole numbers;
* else by code point, as `sorted` has it.

So classes 0 to C - 1 are their own ids.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from fastadv.errors import UserError

MAX_CLASSES = 1000
MIN_ROWS_A_CLASS = 10
MAX_IMBALANCE = 20
_MAX_SHOWN = 20
UNLABELLED = "-1"
"""how `datasets` number the class of a row without one"""
MARKS = (UNLABELLED, "-", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "\\N")
"""labels that mark a row without one: in SNLI's own files, and where pandas, R, Excel and databases write tables"""
SKIPPING = "data.skip_labels (--skip_labels) leaves such rows out"
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?|[+-]inf")


class LabelledRow(NamedTuple):
    """A text or a pair with its class."""

    texts: Tuple[str, ...]
    label: str
    """the name of its class"""
    file: str
    where: str
    """file and row, of a folder or a file without what lies before its name"""


def why_no_class(name: str) -> Optional[str]:
    """What is wrong with the name of a class, or None. ``name`` has no white space around it."""
    if not name or name.lower() == "nan":
        return "no label"
    if name[0] == name[-1] == '"' and len(name) > 1:
        return f"the label {name} lies in quotes, which data.quoting = double (--quoting double) takes off"
    if _DECIMAL.fullmatch(name):
        return f"{name} is no class; expected a name or a whole number, for scores (regression) are not trained on"
    return None


@dataclass(frozen=True)
class LabelMap:
    """The classes of a model: class i is called ``names[i]``."""

    names: Tuple[str, ...]

    def __post_init__(self):
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"classes need names, each its own, got {self.names}")

    @classmethod
    def in_order(cls, names: Iterable[str]) -> "LabelMap":
        """The map of a set of names by the module's rule, whatever their order."""
        distinct = set(names)
        is_whole = all(_WHOLE.fullmatch(name) for name in distinct)
        return cls(tuple(sorted(distinct, key=int if is_whole else None)))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def id2label(self) -> Dict[int, str]:
        """As a configuration of transformers has it."""
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> Dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def apply_to(self, config) -> None:
        """Writes the classes into a configuration of transformers, which is saved with the model."""
        # The number first: setting it writes names of its own.
        config.num_labels = len(self)
        config.id2label, config.label2id = self.id2label, self.label2id

    @classmethod
    def from_config(cls, config, names: Optional[Sequence[str]] = None) -> "LabelMap":
        """The classes of a model that was saved with them.

        Args:
            config: of transformers.
            names: what the classes are called, in the order of their numbers; None: as the configuration says.

        Raises:
            UserError: one class, classes of which a text has several or none, classes that are not numbered from 0, two
                of one name, or another number of ``names``.
        """
        given, num_classes, problem = config.id2label, config.num_labels, getattr(config, "problem_type", None)
        if problem not in (None, "single_label_classification"):
            raise UserError(
                f"the model is made for {problem} (problem_type): expected single_label_classification, of one class a "
                "text"
            )
        if num_classes < 2:
            raise UserError(
                f"the model has {num_classes} class{'es' * (num_classes != 1)} (num_labels): expected a classifier, "
                "with two or more"
            )
        if names is None:
            if sorted(given) != list(range(len(given))):
                numbers = ", ".join(map(str, sorted(given)[:_MAX_SHOWN]))
                raise UserError(
                    f"the model's configuration numbers its classes {numbers} (id2label): expected 0 to "
                    f"{len(given) - 1}; --label_names gives their names in the order of the logits"
                )
            names = [str(given[number]) for number in range(len(given))]
        twice = next((name for name in names if list(names).count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"the model has two classes called {twice!r}: {listed(names)}; expected names that differ, which "
                "--label_names gives in the order of the logits"
            )
        if len(names) != num_classes:
            raise UserError(f"{len(names)} names of classes, {listed(names)}: the model has {num_classes}")
        return cls(tuple(names))

    def ids_of(self, found: "FoundLabels") -> List[int]:
        """The class of each of a source's labels, in the order they were first found.

        Raises:
            UserError: a row with a label that is no class; its place and the classes.
        """
        ids = self.label2id
        for name in found.counts:
            if name not in ids and found.counts[name]:
                raise UserError(
                    f"{found.place_of(name)}, column {found.column}: the label {name!r} is unknown; "
                    f"known are {listed(self.names)}{f'; {SKIPPING}' if name in MARKS else ''}"
                )
        return [ids.get(name, -1) for name in found.counts]


@dataclass
class FoundLabels:
    """The labels of a source, taken down row by row as it is read."""

    column: str
    """what the column is called"""
    given: Optional[List[str]] = None
    """all names in their order, where the data set says so"""
    counts: Dict[str, int] = field(default_factory=dict)
    """rows of each name, in the order they were first found; those given come first"""
    files: Dict[str, Dict[str, str]] = field(default_factory=dict)
    """file -> name -> place of the first row"""
    source: str = ""
    """the source's name, by which files are found; not kept in the cache"""
    _numbers: Dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self):
        for name in self.given or ():
            self.counts.setdefault(name, 0)
        self._numbers = {name: i for i, name in enumerate(self.counts)}

    def add(self, name: str, file: str, where: str) -> int:
        """Counts a row and returns the number of its label: how many others were found before.

        Raises:
            UserError: more labels than a classifier can have meant.
        """
        if name not in self.counts and len(self.counts) == MAX_CLASSES:
            raise UserError(
                f"{self.locate(where)}, column {self.column}: more than {MAX_CLASSES:,} different labels; "
                "expected the column of a class"
            )
        self.counts[name] = self.counts.get(name, 0) + 1
        self.files.setdefault(file, {}).setdefault(name, where)
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def label_map(self) -> LabelMap:
        """The classes of this source alone."""
        return LabelMap(tuple(self.given)) if self.given else LabelMap.in_order(self.counts)

    def place_of(self, name: str) -> str:
        """Where the first row of a label is."""
        return self.locate(next(places[name] for places in self.files.values() if name in places))

    def locate(self, where: str) -> str:
        """A place with the folder of its file, where the source is a file or a folder of them."""
        path = Path(self.source).expanduser()
        if path.is_file():
            # The cache may have met the same content under another name.
            return f"{path}{where.removeprefix(next(iter(self.files), path.name))}"
        is_file_of_folder = path.is_dir() and self.source and not where.startswith(f"{path.name}[")
        return str(path / where) if is_file_of_folder else where

    def to_json(self) -> str:
        kept = {name: getattr(self, name) for name in ("column", "given", "counts", "files")}
        return json.dumps(kept)

    @classmethod
    def from_json(cls, text: bytes | str, source: str) -> "FoundLabels":
        return cls(**json.loads(text), source=source)


def agree_on_labels(found: Sequence[FoundLabels], names: Optional[Sequence[str]] = None) -> LabelMap:
    """The classes of one or more sources that train one model.

    Args:
        names: all classes in their order; None: by the module's rule. Then one of the files must have all of them: a
            file with labels of its own is more often a slip than a rare class.

    Raises:
        UserError: a label that is none of ``names``; files with different labels; labels that differ in case alone, or
            that mark a row without a label; rows of one class only.
    """
    if names is not None:
        label_map = LabelMap(tuple(names))
    elif found[0].given and all(one.given == found[0].given for one in found):
        label_map = LabelMap(tuple(found[0].given))
    else:
        label_map = _agreed(found)
    total: Counter = Counter()
    for one in found:
        label_map.ids_of(one)
        total.update(one.counts)
    present = [name for name, count in total.items() if count]
    if len(present) < 2:
        where = f"{found[0].place_of(present[0])}, column {found[0].column}"
        raise UserError(
            f"all {total[present[0]]:,} rows have the label {present[0]!r} (first: {where}); expected two classes"
        )
    return label_map


def _agreed(found: Sequence[FoundLabels]) -> LabelMap:
    parts: List[Tuple[str, Iterable[str], FoundLabels]] = []
    for one in found:
        if one.given:
            parts.append((one.source, one.given, one))
        else:
            parts += [(one.locate(file), places, one) for file, places in one.files.items()]
    reference, names, _ = max(parts, key=lambda part: len(set(part[1])))
    known = set(names)
    for file, others, one in parts:
        extra = next((name for name in others if name not in known), None)
        if extra is not None:
            # Of a data set's own names, some may have no row.
            where = next((places[extra] for places in one.files.values() if extra in places), None)
            where = f"{file}" if where is None else f"{one.locate(where)}, column {one.column}"
            raise UserError(
                f"{where}: the label {extra!r} is not among those of {reference} ({listed(sorted(known))}); "
                "expected files with the same labels, or all names in data.label_names"
            )
    given = next((one.given for one in found if one.given and set(one.given) == known), None)
    if given is not None:
        return LabelMap(tuple(given))
    by_case: Dict[str, str] = {}
    for name in sorted(known):
        refuse_mark(name, found)
        other = by_case.setdefault(name.casefold(), name)
        if other != name:
            first, second = (next(one for one in found if one.counts.get(label)) for label in (other, name))
            raise UserError(
                f"the labels {other!r} ({first.place_of(other)}) and {name!r} ({second.place_of(name)}) of column "
                f"{first.column} differ in case alone; expected one spelling, or both in data.label_names"
            )
    return LabelMap.in_order(known)


def refuse_mark(name: str, found: Sequence[FoundLabels]) -> None:
    """Raises UserError for a label that is no class in most data: -1 and its like."""
    if name in MARKS:
        one = next(one for one in found if one.counts.get(name))
        raise UserError(
            f"{one.place_of(name)}, column {one.column}: the label {name!r} marks rows without a label in many data "
            f"sets; {SKIPPING}, and data.label_names with all classes trains on it"
        )


def describe_classes(counts: Dict[str, int]) -> Tuple[str, List[str]]:
    """The rows of each class on one line, and a line for each reason to doubt that they can be learned."""
    shown = [f"{name} {count:,}" for name, count in counts.items()]
    more = ", ..." if len(shown) > _MAX_SHOWN else ""
    summary = f"{len(counts)} classes, {sum(counts.values()):,} rows: {', '.join(shown[:_MAX_SHOWN])}{more}"
    few = [f"{name!r} ({count})" for name, count in counts.items() if count < MIN_ROWS_A_CLASS]
    warnings = []
    if few:
        more = f" and {len(few) - _MAX_SHOWN} more" if len(few) > _MAX_SHOWN else ""
        warnings.append(f"classes of fewer than {MIN_ROWS_A_CLASS} rows: {', '.join(few[:_MAX_SHOWN])}{more}")
    largest, smallest = max(counts, key=counts.get), min(counts, key=counts.get)
    if counts[largest] > MAX_IMBALANCE * counts[smallest]:
        warnings.append(
            f"the largest class, {largest!r}, has {counts[largest]:,} rows and the smallest, {smallest!r}, "
            f"{counts[smallest]:,}: more than {MAX_IMBALANCE} to 1"
        )
    return summary, warnings


def listed(names: Sequence[str]) -> str:
    """Names in quotes, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:_MAX_SHOWN])
    return shown if len(names) <= _MAX_SHOWN else f"{shown} and {len(names) - _MAX_SHOWN} more"
