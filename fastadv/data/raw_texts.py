"""Training texts as they are, beside their tokens: for whoever edits or replaces words.

They lie in an Arrow file that is memory-mapped, and travel to loader processes as its path.
"""

import logging
import os
from bisect import bisect_right
from itertools import islice
from pathlib import Path
from typing import Iterable, Iterator, Sequence

import pyarrow as pa

from fastadv.config.schema import DataConfig
from fastadv.data.labelled.find import read_labelled
from fastadv.data.sources.find import named_fields, open_source, records_of
from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE
from fastadv.data.text import Tokenize, TokenizedText
from fastadv.data.variants.text_pairs import Texts
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

logger = logging.getLogger(__name__)

_ROWS_A_BATCH = 8192
# Half a surrogate pair may stand in a text.
_ENCODING = ("utf-8", "surrogatepass")


class RawTexts(Sequence[Texts]):
    """The texts of training rows, those of several files end to end. Pickles as its paths.

    Args:
        paths: files that `write` wrote.
    """

    def __init__(self, paths: Sequence[Path]):
        self._paths = list(paths)
        readers = [pa.ipc.open_file(pa.memory_map(str(path))) for path in self._paths]
        self._batches = [reader.get_batch(i) for reader in readers for i in range(reader.num_record_batches)]
        self._starts = [0]
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)

    def __reduce__(self):
        return RawTexts, (self._paths,)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Texts:
        if not 0 <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        which = bisect_right(self._starts, index) - 1
        row = index - self._starts[which]
        return tuple(column[row].as_py().decode(*_ENCODING) for column in self._batches[which].columns)

    @staticmethod
    def write(path: Path, rows: Iterable[Texts]) -> int:
        """Writes the texts of rows, all of one text or all of two; whole or not at all. Gives how many they are."""
        rows, num_rows, writer = iter(rows), 0, None
        with written_aside(path) as aside, pa.OSFile(str(aside), "wb") as sink:
            while held := list(islice(rows, _ROWS_A_BATCH)):
                columns = [pa.array([text.encode(*_ENCODING) for text in column]) for column in zip(*held)]
                batch = pa.record_batch(columns, names=["first", "second"][: len(columns)])
                writer = writer or pa.ipc.new_file(sink, batch.schema)
                writer.write_batch(batch)
                num_rows += len(held)
            if writer is not None:
                writer.close()
        return num_rows


def raw_texts(
    sources: Sequence[str], tokenised: Sequence[TokenizedText], data: DataConfig, tokenize: Tokenize
) -> RawTexts:
    """The texts of all rows of ``tokenised``, which were made of ``sources``; read again once and kept beside them.

    Args:
        tokenize: the tokenizer that cut them, which says what sentence has no token of its own.

    Raises:
        UserError: a source that cannot be read again, has changed since, or texts that cannot be written.
    """
    paths = []
    for source, text in zip(sources, tokenised, strict=True):
        path = text.path.with_name(f"texts-{text.path.stem.removeprefix('tokens-')}.arrow")
        if not _is_whole(path, len(text)):
            try:
                num_rows = RawTexts.write(path, _texts_of(source, text, data, tokenize))
            except OSError as error:
                raise UserError(
                    f"the training texts cannot be written to {path.parent} (data.cache_dir): {error.strerror or error}"
                ) from error
            if num_rows != len(text):
                path.unlink()
                raise UserError(f"{os.fspath(source)} has changed: {num_rows:,} texts, {len(text):,} were tokenised")
        paths.append(path)
    return RawTexts(paths)


def _is_whole(path: Path, num_rows: int) -> bool:
    """Whether ``path`` is a file of `RawTexts.write` with so many rows; a damaged one is written again."""
    if not path.exists():
        return False
    try:
        return len(RawTexts([path])) == num_rows
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        logger.warning("%s is damaged (%s); reading the texts again", path, str(error).splitlines()[0])
        return False


def _texts_of(source: str, text: TokenizedText, data: DataConfig, tokenize: Tokenize) -> Iterator[Texts]:
    if data.label_field is not None:
        found = read_labelled(source, data.label_field, data.field, data.pair_field, data.split, **data.reading)
        columns = (found.first,) if found.second is None else (found.first, found.second)
        rows: Iterator[Texts] = iter(zip(*columns))
    else:
        opened = open_source(source, data.field, data.split, data.positive_field, data.negative_field, data.quoting)
        fields = named_fields(data.field, data.positive_field, data.negative_field)
        records = records_of(opened, source, fields, LineReport(), MAX_BYTES_PER_LINE)
        if text.report.num_without_tokens:
            records = (record for record in records if not any(all(flags) for flags in tokenize(list(record))[1]))
        rows = (record[:1] for record in records)
    return islice(rows, data.max_sentences)
