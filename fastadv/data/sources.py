"""Where sentences come from: .txt and .jsonl files, folders of them, datasets, and the demo reviews."""

import hashlib
import os
import re
from pathlib import Path
from typing import Iterator, List, Optional, Protocol, Tuple

from fastadv.data.lines import (
    MAX_BYTES_PER_LINE,
    LineReport,
    checked_sentence,
    iterate_lines,
    sentence_of_object,
)
from fastadv.errors import UserError

SUFFIXES = (".txt", ".jsonl")
_ALLOWED = "a .txt or .jsonl file, a folder of them, a dataset's name, or demo:imdb-train|dev|test"
# owner/name:configuration, as the Hub spells them; the last two dots of a path never pass.
_DATASET_NAME = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)?(:[\w.-]+)?")
_ROWS_A_READ = 1024


class Source(Protocol):
    """A source that exists; nothing but its names has been read."""

    def identity(self) -> Tuple[str, Optional[int]]:
        """A hash of all the content, and an upper bound on the number of sentences where one is known."""

    def sentences(self, report: LineReport, max_bytes: int) -> Iterator[str]:
        """Every sentence in order, with the rest counted in ``report``."""


class Files:
    """.txt and .jsonl files, read one after the other."""

    def __init__(self, paths: List[Path], field: str, ignored: Tuple[str, ...] = ()):
        self.paths, self.field, self.ignored = paths, field, ignored

    def identity(self) -> Tuple[str, Optional[int]]:
        digest, num_lines = hashlib.blake2b(digest_size=16), 0
        for path in self.paths:
            # What ends a file and what kind it is changes the sentences; what it is called does not.
            file_digest = hashlib.blake2b(digest_size=16)
            try:
                with open(path, "rb") as file:
                    while block := file.read(1 << 20):
                        file_digest.update(block)
                        num_lines += block.count(b"\n")
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
            num_lines += 1
            digest.update(path.suffix.lower().encode() + b"\0" + file_digest.digest())
        return f"files-{digest.hexdigest()}", num_lines

    def sentences(self, report: LineReport, max_bytes: int) -> Iterator[str]:
        report.ignored_files.extend(self.ignored)
        for path in self.paths:
            is_json = path.suffix.lower() == ".jsonl"
            for text, where in iterate_lines(path, report, max_bytes):
                sentence = sentence_of_object(text, self.field, where, report) if is_json else text
                if sentence is not None:
                    report.num_sentences += 1
                    yield sentence


class Column:
    """One text column of a `datasets` split."""

    def __init__(self, rows, name: str, field: str):
        if field not in rows.column_names:
            there = ", ".join(rows.column_names)
            raise UserError(f"{name} has no column {field!r}; its columns are {there}")
        # A selection or a shuffle lives in an index beside the table; with_format keeps it in force.
        self.rows, self.name, self.field = rows.select_columns([field]).with_format("arrow"), name, field

    def _values(self) -> Iterator[object]:
        for table in self.rows.iter(batch_size=_ROWS_A_READ):
            yield from table.column(self.field).to_pylist()

    def identity(self) -> Tuple[str, Optional[int]]:
        digest = hashlib.blake2b(digest_size=16)
        for value in self._values():
            encoded = repr(value).encode("utf-8", errors="surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return f"column-{digest.hexdigest()}", len(self.rows)

    def sentences(self, report: LineReport, max_bytes: int) -> Iterator[str]:
        for number, value in enumerate(self._values()):
            where = f"{self.name} row {number}"
            report.num_lines += 1
            if not isinstance(value, str):
                report.note("without_field", where)
            elif len(value.encode("utf-8", errors="surrogatepass")) > max_bytes:
                report.note("too_long", where)
            elif (sentence := checked_sentence(value, where, report)) is not None:
                report.num_sentences += 1
                yield sentence


class Demo:
    """The movie reviews of the `demo` extra."""

    def __init__(self, name: str):
        from fastadv.data import demo

        self.name = name
        demo.check_sentences_name(name)

    def identity(self) -> Tuple[str, Optional[int]]:
        from fastadv.data import demo

        return f"{self.name}-{demo.reviews_fingerprint()}", None

    def sentences(self, report: LineReport, max_bytes: int) -> Iterator[str]:
        from fastadv.data import demo

        for sentence in demo.demo_sentences(self.name):
            report.num_lines += 1
            report.num_sentences += 1
            yield sentence


def open_source(source: str | os.PathLike, field: str = "text", split: str = "train") -> Source:
    """Finds what ``source`` names.

    In this order: ``demo:...``; a file or folder that exists (a folder written by ``save_to_disk``, one with
    .txt or .jsonl files, taken in the order of their names and without subfolders, one with parquet files);
    else a dataset of the Hub or its cache, as ``owner/name`` or ``owner/name:configuration``.

    Raises:
        UserError: nothing there can be read as sentences.
    """
    name = os.fspath(source)
    if name.startswith("demo:"):
        return Demo(name)
    if not name:
        # As a path it would be the current folder.
        raise UserError(f"the name of the text is empty; sentences come from {_ALLOWED}")
    path = Path(name).expanduser()
    if path.is_dir():
        return _open_folder(path, field, split)
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(
                f"{name} ends in {path.suffix or 'nothing'!r}; sentences are read from .txt and .jsonl files"
            )
        return Files([path], field)
    if path.exists():
        raise UserError(f"{name} is no regular file; sentences come from {_ALLOWED}")
    looks_like_path = (
        path.suffix.lower() in (*SUFFIXES, ".json", ".csv", ".tsv", ".parquet", ".gz") or path.is_symlink()
    )
    if looks_like_path or not _DATASET_NAME.fullmatch(name):
        raise UserError(f"{name!r} does not exist; sentences come from {_ALLOWED}")
    dataset, _, configuration = name.partition(":")
    return Column(_load_dataset(dataset, configuration or None, split), f"{name}[{split}]", field)


def _open_folder(folder: Path, field: str, split: str) -> Source:
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return Column(_load_saved(folder, split), f"{folder.name}[{split}]", field)
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    paths = [entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file()]
    if paths:
        return Files(paths, field, tuple(entry.name for entry in entries if entry not in set(paths)))
    if any(folder.rglob("*.parquet")):
        return Column(_load_dataset(str(folder), None, split), f"{folder.name}[{split}]", field)
    raise UserError(f"{folder} holds no .txt or .jsonl file and no saved dataset")


def _load_saved(folder: Path, split: str):
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the dataset saved at {folder} cannot be read: {_first_line(error)}") from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        raise UserError(f"{folder} has no split {split!r}; its splits are {', '.join(loaded)}")
    return loaded[split]


def _load_dataset(name: str, configuration: Optional[str], split: str):
    import datasets

    try:
        return datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"there is no file or folder {name!r}, and the dataset of that name (split {split!r}) "
            f"cannot be loaded: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def iterate_sentences(
    source: str | os.PathLike,
    field: str = "text",
    split: str = "train",
    max_bytes_per_line: int = MAX_BYTES_PER_LINE,
    report: Optional[LineReport] = None,
) -> Iterator[str]:
    """Yields the sentences of ``source`` under the line rule of `fastadv.data.lines`, one at a time.

    Args:
        field: the JSON field or dataset column that holds the sentence.
        split: the split of a dataset.
        report: takes the counts; complete once the iterator is exhausted.

    Raises:
        UserError: at the call, when nothing named ``source`` can be read; at the end, when no sentence was
        found.
    """
    opened = open_source(source, field, split)
    return sentences_of(opened, source, field, LineReport() if report is None else report, max_bytes_per_line)


def sentences_of(
    opened: Source, name: str | os.PathLike, field: str, report: LineReport, max_bytes: int
) -> Iterator[str]:
    """The sentences of an opened source; UserError at the end when there was none."""
    yield from opened.sentences(report, max_bytes)
    if report.num_sentences:
        return
    if report.num_without_field and report.fields_seen:
        there = ", ".join(report.fields_seen)
        first = report.first["without_field"]
        raise UserError(f"no line of {name} has a string {field!r} (first: {first}); fields there: {there}")
    raise UserError(f"{name} gives no sentence: {report.summary()}")
