"""Training text: tokenised once into an Arrow file that is memory-mapped ever after.

What a line is, `fastadv.data.sources.lines` says, and a row `fastadv.data.sources.tables`; where they come from,
`fastadv.data.sources.find`; how they lie in the file, `fastadv.data.records`.
"""

import dataclasses
import hashlib
import json
import logging
import os
from bisect import bisect_right
from itertools import islice
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

import numpy as np
import pyarrow as pa
from tqdm.auto import tqdm

from fastadv.data.packing import PackedBatch
from fastadv.data.records import (
    PREFIXES,
    MappedColumn,
    Tokens,
    num_fields_of,
    record_batch,
    schema_of,
    sentence_id,
    write_file,
)
from fastadv.data.sources.find import Record, iterate_sentences, named_fields, open_source, records_of
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, LineReport
from fastadv.errors import UserError

__all__ = ["LineReport", "TokenizedText", "collate", "iterate_sentences", "sentence_id"]

Row = TypeVar("Row")
Tokenize = Callable[[List[str]], Tuple[Sequence[Sequence[int]], Sequence[Sequence[bool]]]]

logger = logging.getLogger(__name__)

# Part of every cache key: raise it when the line rule or the layout of the file changes.
FORMAT_VERSION = 1
# A record batch is written as soon as it holds this many sentences or tokens, and text is tokenised in pieces
# of at most so many sentences or characters: memory does not grow with the corpus, nor with the length of its
# lines.
_ROWS_A_BATCH = 8192
_TOKENS_A_BATCH = 1 << 20
_SENTENCES_A_CALL = 1024
_CHARACTERS_A_CALL = 4 << 20


def collate(rows: Sequence[Dict], position_offset: int) -> PackedBatch:
    """Packs rows of a `TokenizedText`; ``position_offset`` is the encoder's first position id.

    Positives and hard negatives are packed the same way, into the batch's fields of these names. Rows of a
    `fastadv.data.labelled.text.LabelledText` bring their labels and their numbers (B,), int64, and those of pairs
    their token types.
    """
    of_sentence = {
        "labels": [row["label"] for row in rows] if "label" in rows[0] else None,
        "row_ids": [row["row"] for row in rows] if "row" in rows[0] else None,
        "token_type_lists": [row["token_type_ids"].tolist() for row in rows] if "token_type_ids" in rows[0] else None,
    }
    batch, *others = (
        PackedBatch.from_token_lists(
            [row[f"{prefix}input_ids"].tolist() for row in rows],
            [row[f"{prefix}is_special"].tolist() for row in rows],
            sentence_ids=[row[f"{prefix}sentence_id"] for row in rows],
            position_offset=position_offset,
            **({} if prefix else of_sentence),
        )
        for prefix in PREFIXES
        if f"{prefix}input_ids" in rows[0]
    )
    return dataclasses.replace(batch, **dict(zip(("positive", "hard_negative"), others)))


class TokenizedText:
    """Sentences as token ids in a memory-mapped Arrow file; row i is a dict of

    * ``input_ids`` (length,) int32, special tokens included, truncated,
    * ``is_special`` (length,) bool,
    * ``sentence_id`` int, see `sentence_id`,
    * ``length`` int,
    * ``row`` int, i,

    and for records of a sentence with its positive, and with a hard negative, the same under names that begin with
    ``positive_`` and ``negative_``.

    Pickles as its path: a loader process maps the file itself.
    """

    def __init__(self, path: str | os.PathLike):
        """Maps a file that `build` wrote; ValueError, KeyError, TypeError or OSError when it is none."""
        self.path = Path(path)
        reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
        self.num_fields = self._num_fields_of(reader.schema)
        # The last batch has no rows: it carries what is known only once all else is written.
        _, metadata = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        self.report = LineReport(**json.loads(metadata[b"report"]))
        self._metadata = metadata
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches - 1)]
        self._starts = [0]
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)
        self._views: List[Optional[tuple]] = [None] * len(self._batches)

    def _num_fields_of(self, schema: pa.Schema) -> int:
        """How many sentences a record has; ValueError where ``schema`` is not that of this class's files."""
        return num_fields_of(schema)

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.__init__(state["path"])

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def fingerprint(self) -> str:
        """Equal for equal records cut by equal tokenizers to equal lengths."""
        return self.path.stem

    @property
    def lengths(self) -> MappedColumn:
        """(len(self),) int32, tokens of each sentence; reads no token."""
        return self._column("length", np.int32)

    @property
    def sentence_ids(self) -> MappedColumn:
        """(len(self),) int64."""
        return self._column("sentence_id", np.int64)

    def token_pieces(self) -> Iterator[np.ndarray]:
        """The ``input_ids`` of all rows end to end, in int32 pieces (n,) that stay where the file is mapped."""
        for batch in self._batches:
            yield batch.column("input_ids").flatten().to_numpy()

    def _column(self, name: str, dtype) -> MappedColumn:
        return MappedColumn([batch.column(name).to_numpy() for batch in self._batches], dtype)

    def __getitem__(self, index: int) -> Dict:
        which, row = self._place_of(index)
        if self._views[which] is None:
            self._views[which] = tuple(
                self._view(self._batches[which], prefix) for prefix in PREFIXES[: self.num_fields]
            )
        values: Dict = {}
        for prefix, (offsets, tokens, special, ids) in zip(PREFIXES, self._views[which]):
            start, end = int(offsets[row]), int(offsets[row + 1])
            values[f"{prefix}input_ids"] = tokens[start:end]
            # Booleans lie in memory as bits; only this row's are spread out.
            values[f"{prefix}is_special"] = special.slice(start, end - start).to_numpy(zero_copy_only=False)
            values[f"{prefix}sentence_id"] = int(ids[row])
            values[f"{prefix}length"] = end - start
        values["row"] = index
        return values

    def _place_of(self, index: int) -> Tuple[int, int]:
        """The record batch that has a row, and the row's number in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        which = bisect_right(self._starts, index) - 1
        return which, index - self._starts[which]

    @staticmethod
    def _view(batch: pa.RecordBatch, prefix: str) -> tuple:
        ids = batch.column(f"{prefix}input_ids")
        return (
            ids.offsets.to_numpy(),
            ids.values.to_numpy(),
            batch.column(f"{prefix}is_special").values,
            batch.column(f"{prefix}sentence_id").to_numpy(),
        )

    @classmethod
    def build(
        cls,
        source: str | os.PathLike,
        encoder_tokenize: Tokenize,
        tokenizer_fingerprint: str,
        max_length: int,
        field: str = "text",
        split: str = "train",
        cache_dir: str | os.PathLike = "~/.cache/fastadv",
        max_sentences: Optional[int] = None,
        progress: bool = True,
        positive_field: Optional[str] = None,
        negative_field: Optional[str] = None,
    ) -> "TokenizedText":
        """Tokenises ``source``, or maps the file an earlier run left in ``cache_dir``.

        The file's name is a hash of the source's content, ``tokenizer_fingerprint``, ``max_length``,
        the fields, ``split``, ``max_sentences`` and the format's version. It is written aside and renamed when
        complete, so a build that is killed, or two at once, leave a whole file or none.

        Args:
            encoder_tokenize: texts -> (token ids, is-special flags) of each, truncated to ``max_length``.
            tokenizer_fingerprint: changes whenever ``encoder_tokenize`` would give other tokens.
            max_sentences: only the first so many sentences (records) that have tokens.
            positive_field, negative_field: the fields of the sentence's positive and of its hard negative.

        Raises:
            UserError: an unreadable or empty source, or a cache folder that cannot be written.
        """
        opened = open_source(source, field, split, positive_field, negative_field)
        fields = named_fields(field, positive_field, negative_field)
        content, num_expected = opened.identity()
        inputs = [content, tokenizer_fingerprint, max_length, field, split, max_sentences, MAX_BYTES_PER_LINE]
        key = hashlib.blake2b(json.dumps([FORMAT_VERSION, *inputs, *fields[1:]]).encode(), digest_size=16).hexdigest()
        path = Path(cache_dir).expanduser() / f"tokens-{key}.arrow"
        text = cls._reused(path)
        if text is not None:
            return text
        report = LineReport()
        records = records_of(opened, source, fields, report, MAX_BYTES_PER_LINE)
        with progress_bar(num_expected, max_sentences, progress) as bar:
            rows = _tokenized_rows(records, encoder_tokenize, max_length, max_sentences, report, bar)
            schema, num_fields = schema_of(len(fields)), len(fields)
            batches = in_batches(rows, _num_tokens, lambda held: record_batch(held, num_fields))
            cls._write(path, batches, schema, report)
        return cls._built(path, source)

    @classmethod
    def _reused(cls, path: Path) -> Optional["TokenizedText"]:
        """The file that an earlier build left, or None where there is none, or only a damaged one."""
        if not path.exists():
            return None
        try:
            text = cls(path)
        except (ValueError, KeyError, TypeError, OSError) as error:
            logger.warning("%s is damaged (%s); tokenising again", path, str(error).splitlines()[0])
            return None
        logger.info("reusing the tokenised text %s: %s", path, text.report.summary())
        return text

    @staticmethod
    def _write(path: Path, *contents) -> None:
        """`fastadv.data.records.write_file`, whose errors are the user's: the cache is where the config says."""
        try:
            write_file(path, *contents)
        except OSError as error:
            raise UserError(
                f"the tokenised text cannot be written to {path.parent} (data.cache_dir): {error.strerror or error}"
            ) from error

    @classmethod
    def _built(cls, path: Path, source: str | os.PathLike) -> "TokenizedText":
        text = cls(path)
        if not len(text):
            path.unlink(missing_ok=True)
            raise UserError(f"{source} gives no sentence: {text.report.summary()}")
        logger.info("tokenised %s into %s: %s", source, path, text.report.summary())
        return text


def progress_bar(num_expected: Optional[int], max_sentences: Optional[int], progress: bool) -> tqdm:
    """The bar of a build; ``num_expected`` as `fastadv.data.sources.find.RecordSource.identity` gives it."""
    if max_sentences is not None:
        num_expected = max_sentences if num_expected is None else min(num_expected, max_sentences)
    return tqdm(total=num_expected, desc="tokenising", unit=" sentences", disable=not progress, leave=False)


def _tokenized_rows(
    records: Iterator[Record],
    encoder_tokenize: Tokenize,
    max_length: int,
    max_sentences: Optional[int],
    report: LineReport,
    bar: tqdm,
) -> Iterator[Tuple[Tokens, ...]]:
    """Yields the tokens of each record whose sentences all have a token of their own."""
    num_left = max_sentences
    while num_left is None or num_left > 0:
        taken = take(records, at_a_time(num_left), _num_characters)
        if not taken:
            return
        for row in zip(*(_tokenized(texts, encoder_tokenize, max_length) for texts in zip(*taken)), strict=True):
            if any(all(special) for _, special in row):
                report.num_without_tokens += 1
                continue
            if num_left is not None:
                num_left -= 1
            yield row
        bar.update(len(taken))


def at_a_time(num_left: Optional[int]) -> int:
    """Texts of a call of the tokenizer, of which ``num_left`` are still wanted; None: all there are."""
    return _SENTENCES_A_CALL if num_left is None else min(_SENTENCES_A_CALL, num_left)


def _tokenized(texts: Sequence[str], encoder_tokenize: Tokenize, max_length: int) -> Iterator[Tokens]:
    for tokens, special in zip(*encoder_tokenize(list(texts)), strict=True):
        if len(tokens) > max_length:
            raise ValueError(f"the tokenizer gave {len(tokens)} tokens, more than max_length {max_length}")
        yield tokens, special


def take(rows: Iterator[Row], most: int, num_characters_of: Callable[[Row], int]) -> List[Row]:
    """The next ``most`` rows, or fewer where they are long."""
    taken, num_characters = [], 0
    for row in islice(rows, most):
        taken.append(row)
        num_characters += num_characters_of(row)
        if num_characters >= _CHARACTERS_A_CALL:
            break
    return taken


def in_batches(
    rows: Iterator[Row], num_tokens_of: Callable[[Row], int], make: Callable[[List[Row]], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows as the record batches that ``make`` makes of a few thousand of them."""
    held: List[Row] = []
    num_tokens = 0
    for row in rows:
        held.append(row)
        num_tokens += num_tokens_of(row)
        if len(held) == _ROWS_A_BATCH or num_tokens >= _TOKENS_A_BATCH:
            yield make(held)
            held, num_tokens = [], 0
    if held:
        yield make(held)


def _num_characters(record: Record) -> int:
    return sum(map(len, record))


def _num_tokens(row: Tuple[Tokens, ...]) -> int:
    return sum(len(tokens) for tokens, _ in row)
