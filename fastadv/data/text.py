"""Training text: tokenised once into an Arrow file that is memory-mapped ever after.

What a line is, `fastadv.data.lines` says, and a row `fastadv.data.tables`; where they come from,
`fastadv.data.sources`; how they lie in the file, `fastadv.data.records`.
"""

import dataclasses
import hashlib
import json
import logging
import os
from bisect import bisect_right
from itertools import islice
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import pyarrow as pa
from tqdm.auto import tqdm

from fastadv.data.lines import MAX_BYTES_PER_LINE, LineReport
from fastadv.data.packing import PackedBatch
from fastadv.data.records import (
    PREFIXES,
    MappedColumn,
    Tokens,
    num_fields_of,
    record_batch,
    sentence_id,
    write_file,
)
from fastadv.data.sources import Record, iterate_sentences, named_fields, open_source, records_of
from fastadv.errors import UserError

__all__ = ["LineReport", "TokenizedText", "collate", "iterate_sentences", "sentence_id"]

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

    Positives and hard negatives are packed the same way, into the batch's fields of these names.
    """
    batch, *others = (
        PackedBatch.from_token_lists(
            [row[f"{prefix}input_ids"].tolist() for row in rows],
            [row[f"{prefix}is_special"].tolist() for row in rows],
            sentence_ids=[row[f"{prefix}sentence_id"] for row in rows],
            position_offset=position_offset,
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

    and for records of a sentence with its positive, and with a hard negative, the same under names that begin with
    ``positive_`` and ``negative_``.

    Pickles as its path: a loader process maps the file itself.
    """

    def __init__(self, path: str | os.PathLike):
        """Maps a file that `build` wrote; ValueError, KeyError, TypeError or OSError when it is none."""
        self.path = Path(path)
        reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
        self.num_fields = num_fields_of(reader.schema)
        # The last batch has no rows: it carries what is known only once all else is written.
        _, metadata = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        self.report = LineReport(**json.loads(metadata[b"report"]))
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches - 1)]
        self._starts = [0]
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)
        self._views: List[Optional[tuple]] = [None] * len(self._batches)

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
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        which = bisect_right(self._starts, index) - 1
        if self._views[which] is None:
            self._views[which] = tuple(
                self._view(self._batches[which], prefix) for prefix in PREFIXES[: self.num_fields]
            )
        row = index - self._starts[which]
        values: Dict = {}
        for prefix, (offsets, tokens, special, ids) in zip(PREFIXES, self._views[which]):
            start, end = int(offsets[row]), int(offsets[row + 1])
            values[f"{prefix}input_ids"] = tokens[start:end]
            # Booleans lie in memory as bits; only this row's are spread out.
            values[f"{prefix}is_special"] = special.slice(start, end - start).to_numpy(zero_copy_only=False)
            values[f"{prefix}sentence_id"] = int(ids[row])
            values[f"{prefix}length"] = end - start
        return values

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
        folder = Path(cache_dir).expanduser()
        path = folder / f"tokens-{key}.arrow"
        if path.exists():
            try:
                text = cls(path)
            except (ValueError, KeyError, TypeError, OSError) as error:
                logger.warning("%s is damaged (%s); tokenising again", path, str(error).splitlines()[0])
            else:
                logger.info("reusing the tokenised text %s: %s", path, text.report.summary())
                return text
        report = LineReport()
        records = records_of(opened, source, fields, report, MAX_BYTES_PER_LINE)
        if max_sentences is not None:
            num_expected = max_sentences if num_expected is None else min(num_expected, max_sentences)
        bar = tqdm(total=num_expected, desc="tokenising", unit=" sentences", disable=not progress, leave=False)
        with bar:
            rows = _tokenized_rows(records, encoder_tokenize, max_length, max_sentences, report, bar)
            try:
                write_file(path, _record_batches(rows, len(fields)), len(fields), report)
            except OSError as error:
                raise UserError(
                    f"the tokenised text cannot be written to {folder} (data.cache_dir): {error.strerror or error}"
                ) from error
        text = cls(path)
        if not len(text):
            path.unlink(missing_ok=True)
            raise UserError(f"{source} gives no sentence: {report.summary()}")
        logger.info("tokenised %s into %s: %s", source, path, report.summary())
        return text


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
        most = _SENTENCES_A_CALL if num_left is None else min(_SENTENCES_A_CALL, num_left)
        taken = _take(records, most)
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


def _tokenized(texts: Sequence[str], encoder_tokenize: Tokenize, max_length: int) -> Iterator[Tokens]:
    for tokens, special in zip(*encoder_tokenize(list(texts)), strict=True):
        if len(tokens) > max_length:
            raise ValueError(f"the tokenizer gave {len(tokens)} tokens, more than max_length {max_length}")
        yield tokens, special


def _take(records: Iterator[Record], most: int) -> List[Record]:
    """The next ``most`` records, or fewer where they are long."""
    taken, num_characters = [], 0
    for record in islice(records, most):
        taken.append(record)
        num_characters += sum(map(len, record))
        if num_characters >= _CHARACTERS_A_CALL:
            break
    return taken


def _record_batches(rows: Iterator[Tuple[Tokens, ...]], num_fields: int) -> Iterator[pa.RecordBatch]:
    held: List[Tuple[Tokens, ...]] = []
    num_tokens = 0
    for row in rows:
        held.append(row)
        num_tokens += sum(len(tokens) for tokens, _ in row)
        if len(held) == _ROWS_A_BATCH or num_tokens >= _TOKENS_A_BATCH:
            yield record_batch(held, num_fields)
            held, num_tokens = [], 0
    if held:
        yield record_batch(held, num_fields)
