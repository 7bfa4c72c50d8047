"""Where sentences come from: files of text or tables, folders of them, datasets, and the demo reviews.

A record is the strings of one line or row: the sentence alone, or the sentence with its positive, or these two with a
hard negative, each from the column (of a table or a dataset) or field (of a JSON object) that the config names.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

from fastadv.data.sources import demo
from fastadv.data.sources.compressed import is_named_gzip, kind_of
from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, checked_record, iterate_lines, record_of_object
from fastadv.data.sources.tables import (
    TABLES,
    check_parquet,
    check_table,
    is_quoted,
    iterate_parquet,
    iterate_table,
    no_such_column,
)
from fastadv.data.sources.text_file import open_text
from fastadv.errors import UserError

_LINES = (".txt", ".jsonl")
SUFFIXES = (*_LINES, *TABLES, ".parquet")
_FILES = "a .txt, .jsonl, .csv or .tsv file, plain or .gz, or a .parquet file"
_ALLOWED = f"{_FILES}, a folder of them, a dataset's name, or demo:imdb-train|dev|test"
# owner/name:configuration, as the Hub spells them; the last two dots of a path never pass.
_DEMO_ON_HUB = "stanfordnlp/imdb"
_DATASET_NAME = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)?(:[\w.-]+)?")
_ROWS_A_READ = 1024
# Words in the names of files that say of which split these are, as `datasets` reads them, and some that people write.
_WORDS_OF_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF_WORD = {word: split for split, words in _WORDS_OF_SPLITS.items() for word in words}

Record = Tuple[str, ...]


class RecordSource(Protocol):
    """A source that exists and has the columns asked for; nothing but names and heads has been read."""

    def identity(self) -> Tuple[str, Optional[int]]:
        """A hash of all the content, and an upper bound on the number of records where one is known."""

    def records(self, report: LineReport, max_bytes: int) -> Iterator[Record]:
        """Every record in order, with the rest counted in ``report``."""


class Files:
    """Files of any mixture of formats, read one after the other.

    Args:
        numbers: fields where a number is as good as text.
        quoting: of tables, see `fastadv.data.sources.tables.is_quoted`.
    """

    def __init__(
        self,
        paths: List[Path],
        fields: Sequence[str],
        ignored: Tuple[str, ...] = (),
        numbers: Sequence[str] = (),
        quoting: str = "auto",
    ):
        self.paths, self.fields, self.ignored, self.numbers = paths, tuple(fields), ignored, tuple(numbers)
        self.quoting = quoting
        for path in paths:
            kind = kind_of(path)
            if kind == ".txt" and len(self.fields) > 1:
                raise UserError(f"{path} has no columns, so no {_listed(self.fields[1:])}; expected .jsonl or a table")
            if kind == ".parquet":
                check_parquet(path, self.fields, self.numbers)
            elif kind in TABLES:
                check_table(path, self.fields, quoting)
            else:
                with open_text(path):
                    pass

    def identity(self) -> Tuple[str, Optional[int]]:
        digest = hashlib.blake2b(digest_size=16)
        bounds: List[Optional[int]] = []
        for path in self.paths:
            # What ends a file and what kind it is changes the sentences; what it is called does not.
            file_digest, num_feeds, num_returns, kind = hashlib.blake2b(digest_size=16), 0, 0, kind_of(path)
            try:
                with open(path, "rb") as file:
                    while block := file.read(1 << 20):
                        file_digest.update(block)
                        num_feeds += block.count(b"\n")
                        num_returns += block.count(b"\r") - block.count(b"\r\n")
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
            is_by_line = kind in _LINES or not is_quoted(path, self.quoting)
            num_lines = 1 + (num_feeds or num_returns if is_by_line else num_feeds + num_returns)
            suffix = f"{kind}.gz" if is_named_gzip(path) else kind
            digest.update(f"{suffix} {is_by_line}".encode() + b"\0" + file_digest.digest())
            if kind == ".parquet":
                bounds.append(check_parquet(path, self.fields, self.numbers))
            else:
                # How many lines a compressed file has, only unpacking it would tell.
                bounds.append(None if is_named_gzip(path) else num_lines)
        return f"files-{digest.hexdigest()}", None if None in bounds else sum(bounds)

    def records(self, report: LineReport, max_bytes: int) -> Iterator[Record]:
        report.ignored_files.extend(self.ignored)
        for path in self.paths:
            for record, _ in placed_records(path, self.fields, report, max_bytes, quoting=self.quoting):
                report.num_sentences += 1
                yield record


def placed_records(
    path: Path,
    fields: Sequence[str],
    report: LineReport,
    max_bytes: int,
    numbers: Sequence[str] = (),
    quoting: str = "auto",
) -> Iterator[Tuple[Record, str]]:
    """Yields ``(record, place)`` for each record of a file of any format, with the rest counted in ``report``.

    Args:
        numbers: see `fastadv.data.sources.lines.checked_record`.
        quoting: of tables, see `fastadv.data.sources.tables.is_quoted`.
    """
    kind = kind_of(path)
    if kind == ".parquet":
        yield from iterate_parquet(path, fields, report, max_bytes, numbers)
    elif kind in TABLES:
        yield from iterate_table(path, fields, report, max_bytes, quoting)
    else:
        for text, where in iterate_lines(path, report, max_bytes):
            if kind == ".jsonl":
                record = record_of_object(text, fields, where, report, numbers)
                if record is not None:
                    yield record, where
                continue
            report.num_with_tabs += "\t" in text
            report.num_like_json += text[0] == "{" and text[-1] == "}"
            yield (text,), where


class Columns:
    """Text columns of a `datasets` split."""

    def __init__(self, rows, name: str, fields: Sequence[str]):
        for field in fields:
            if field not in rows.column_names:
                raise no_such_column(name, field, rows.column_names)
        # A selection or a shuffle lives in an index beside the table; with_format keeps it in force.
        self.table = rows.select_columns(list(dict.fromkeys(fields))).with_format("arrow")
        self.name, self.fields = name, tuple(fields)

    def values(self) -> Iterator[Tuple[object, ...]]:
        """The columns' values row by row, as Arrow has them: a class is its number."""
        for table in self.table.iter(batch_size=_ROWS_A_READ):
            yield from zip(*(table.column(field).to_pylist() for field in self.fields))

    def identity(self) -> Tuple[str, Optional[int]]:
        digest = hashlib.blake2b(digest_size=16)
        for values in self.values():
            for value in values:
                encoded = repr(value).encode("utf-8", errors="surrogatepass")
                digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return f"column-{digest.hexdigest()}", len(self.table)

    def records(self, report: LineReport, max_bytes: int) -> Iterator[Record]:
        is_column_named = len(self.fields) > 1
        for number, values in enumerate(self.values()):
            report.num_lines += 1
            where = f"{self.name} row {number}"
            record = checked_record(values, self.fields, where, report, is_column_named, max_bytes)
            if record is not None:
                report.num_sentences += 1
                yield record


class Demo:
    """The movie reviews of the `demo` extra."""

    def __init__(self, name: str, fields: Sequence[str]):
        self.name = name
        demo.check_sentences_name(name)
        if len(fields) > 1:
            raise UserError(f"{name} has sentences alone, so no {_listed(fields[1:])}; expected .jsonl or a table")

    def identity(self) -> Tuple[str, Optional[int]]:
        return f"{self.name}-{demo.reviews_fingerprint()}", None

    def records(self, report: LineReport, max_bytes: int) -> Iterator[Record]:
        for sentence in demo.demo_sentences(self.name):
            report.num_lines += 1
            report.num_sentences += 1
            yield (sentence,)


def _listed(fields: Sequence[str]) -> str:
    return " and no ".join(map(repr, fields))


def named_fields(field: str, positive_field: Optional[str], negative_field: Optional[str]) -> Tuple[str, ...]:
    """The columns of a record in its order.

    Raises:
        UserError: a negative without a positive.
    """
    if negative_field is not None and positive_field is None:
        raise UserError(f"data.negative_field = {negative_field!r}: expected null where data.positive_field is null")
    return tuple(name for name in (field, positive_field, negative_field) if name is not None)


def is_dataset_name(name: str) -> bool:
    """Whether ``name`` is taken for a dataset of the Hub or its cache: nothing is there, and it has the form."""
    path = Path(name).expanduser()
    looks_like_path = path.suffix.lower() in (*SUFFIXES, ".json", ".gz") or path.is_symlink() or os.path.exists(path)
    return not (name.startswith("demo:") or looks_like_path) and _DATASET_NAME.fullmatch(name) is not None


def has_splits(name: str) -> bool:
    """Whether what ``name`` stands for is another text by another split: a dataset, or a folder with splits."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return is_dataset_name(name)
    paths = _files_in(folder)
    if any(kind_of(path) != ".parquet" for path in paths):
        return len(_by_split(paths)) > 1
    return not (folder / "state.json").is_file()


def name_on_hub(name: str) -> Optional[str]:
    """The dataset of the Hub that a source's name means; None for files and folders."""
    if name.startswith("demo:"):
        return _DEMO_ON_HUB
    return name.partition(":")[0] if is_dataset_name(name) else None


def open_source(
    source: str | os.PathLike,
    field: str = "text",
    split: str = "train",
    positive_field: Optional[str] = None,
    negative_field: Optional[str] = None,
    quoting: str = "auto",
) -> RecordSource:
    """Finds what ``source`` names.

    In this order: ``demo:...``; a file or folder that exists (a folder written by ``save_to_disk``; one with files of
    sentences, taken in the order of their names and without subfolders, and of those whose names say several splits
    (train.csv, test.csv) the ones of ``split``; one with parquet files alone, here or
    deeper, which `datasets` reads by splits); else a dataset of the Hub or its cache, as ``owner/name`` or
    ``owner/name:configuration``.

    Args:
        quoting: of tables, see `fastadv.data.sources.tables.is_quoted`.

    Raises:
        UserError: nothing there can be read as sentences, or it lacks a column.
    """
    name, fields = os.fspath(source), named_fields(field, positive_field, negative_field)
    if name.startswith("demo:"):
        return Demo(name, fields)
    found = find_source(name, split)
    if isinstance(found, FoundFiles):
        return Files(found.paths, fields, found.ignored, quoting=quoting)
    return Columns(found.rows, found.name, fields)


class FoundFiles(NamedTuple):
    """The files that a source's name stands for."""

    paths: List[Path]
    ignored: Tuple[str, ...] = ()
    """what else the folder has"""


class FoundRows(NamedTuple):
    """The split of a data set that a source's name stands for."""

    rows: "datasets.Dataset"  # noqa: F821, imported where one is loaded
    name: str
    """as messages have it"""


def find_source(name: str, split: str) -> Union[FoundFiles, FoundRows]:
    """What ``name`` stands for, as `open_source` says, before any column is asked for; not for ``demo:...``.

    Raises:
        UserError: nothing there can be read.
    """
    if not name:
        # As a path it would be the current folder.
        raise UserError(f"the name of the text is empty; sentences come from {_ALLOWED}")
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _find_in_folder(path, split)
        if path.is_file():
            if not is_named_readable(path):
                raise UserError(f"{name} ends in {path.suffix or 'nothing'!r}; sentences are read from {_FILES}")
            return FoundFiles([path])
        if path.exists():
            raise UserError(f"{name} is no regular file; sentences come from {_ALLOWED}")
    except OSError as error:
        # A name too long, or a folder that is somebody else's.
        raise UserError(f"{error.filename or name} cannot be read: {error.strerror}") from error
    if not is_dataset_name(name):
        raise UserError(f"{name!r} does not exist; sentences come from {_ALLOWED}")
    dataset, _, configuration = name.partition(":")
    return FoundRows(_load_dataset(dataset, configuration or None, split), f"{name}[{split}]")


def is_named_readable(path: Path) -> bool:
    """Whether the name ends as that of a file of sentences does."""
    return kind_of(path) in (SUFFIXES[:-1] if is_named_gzip(path) else SUFFIXES)


def _find_in_folder(folder: Path, split: str) -> Union[FoundFiles, FoundRows]:
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return FoundRows(_load_saved(folder, split), f"{folder.name}[{split}]")
    paths = _files_in(folder)
    if any(kind_of(path) != ".parquet" for path in paths):
        paths = _files_of_split(folder, paths, split)
        return FoundFiles(paths, tuple(sorted({entry.name for entry in folder.iterdir()} - {p.name for p in paths})))
    if any(folder.rglob("*.parquet")):
        return FoundRows(_load_dataset(str(folder), None, split), f"{folder.name}[{split}]")
    raise UserError(f"{folder} holds no .txt or .jsonl file, no table and no saved dataset")


def _files_in(folder: Path) -> List[Path]:
    """The files of sentences that lie in a folder. Names that begin with a dot are of editors and other machines."""
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [entry for entry in entries if is_named_readable(entry) and entry.is_file() and entry.name[0] != "."]


def _by_split(paths: List[Path]) -> Dict[str, List[Path]]:
    """Files by the split that their names say, without those of no split or of several."""
    of_split: Dict[str, List[Path]] = {}
    for path in paths:
        words = re.split(r"[^a-z]+", path.name.partition(".")[0].lower())
        said = {_SPLIT_OF_WORD[word] for word in words if word in _SPLIT_OF_WORD}
        if len(said) == 1:
            of_split.setdefault(said.pop(), []).append(path)
    return of_split


def _files_of_split(folder: Path, paths: List[Path], split: str) -> List[Path]:
    """``paths``, or where their names say several splits, those of ``split`` (of several as ``train+test``)."""
    of_split = _by_split(paths)
    if len(of_split) < 2:
        return paths
    asked = {_SPLIT_OF_WORD.get(part, part) for part in split.split("+")}
    if not asked <= set(of_split):
        there = "; ".join(f"{name}: {', '.join(path.name for path in files)}" for name, files in of_split.items())
        raise UserError(f"{folder} has no file of split {split!r}; by their names it has files of {there}")
    kept = {path for name in asked for path in of_split[name]}
    return [path for path in paths if path in kept]


def _load_saved(folder: Path, split: str):
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    # IndexError: a data set of no row, saved without any file.
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UserError(f"the dataset saved at {folder} cannot be read: {_first_line(error)}") from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    # As in the names of splits that `datasets` takes from the Hub.
    parts = split.split("+")
    if len(parts) > 1 and all(part in loaded for part in parts):
        return datasets.concatenate_datasets([loaded[part] for part in parts])
    if split not in loaded:
        raise UserError(f"{folder} has no split {split!r}; its splits are {', '.join(loaded)}")
    return loaded[split]


def _load_dataset(name: str, configuration: Optional[str], split: str):
    import datasets

    try:
        return datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        found = f"{name} is there, but" if os.path.isdir(name) else f"there is no file or folder {name!r}, and"
        raise UserError(
            f"{found} the dataset of that name (split {split!r}) cannot be loaded: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def iterate_sentences(
    source: str | os.PathLike,
    field: str = "text",
    split: str = "train",
    max_bytes_per_line: int = MAX_BYTES_PER_LINE,
    report: Optional[LineReport] = None,
    quoting: str = "auto",
) -> Iterator[str]:
    """Yields the sentences of ``source`` under the line rule of `fastadv.data.sources.lines`, one at a time.

    Args:
        field: the JSON field or dataset column that holds the sentence.
        split: the split of a dataset.
        report: takes the counts; complete once the iterator is exhausted. None: they are logged then.
        quoting: of tables, see `fastadv.data.sources.tables.is_quoted`.

    Raises:
        UserError: at the call, when nothing named ``source`` can be read; at the end, when no sentence was
        found.
    """
    opened = open_source(source, field, split, quoting=quoting)

    def read() -> Iterator[str]:
        own = LineReport() if report is None else report
        for (sentence,) in records_of(opened, source, (field,), own, max_bytes_per_line):
            yield sentence
        if report is None:
            own.say("read", os.fspath(source))

    return read()


def records_of(
    opened: RecordSource, name: str | os.PathLike, fields: Sequence[str], report: LineReport, max_bytes: int
) -> Iterator[Record]:
    """The records of an opened source; UserError at the end when there was none."""
    yield from opened.records(report, max_bytes)
    if report.num_sentences:
        return
    if report.num_without_field and report.fields_seen:
        there = ", ".join(report.fields_seen)
        wanted, first = " and ".join(map(repr, fields)), report.first["without_field"]
        raise UserError(f"no line of {name} has a string {wanted} (first: {first}); fields there: {there}")
    raise UserError(f"{name} gives no sentence: {report.summary()}")
