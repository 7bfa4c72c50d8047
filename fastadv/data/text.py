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
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Callable, Dict, Generator, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

import numpy as np
import pyarrow as pa

from fastadv.data.packing import PackedBatch
from fastadv.data.records import PREFIXES, MappedColumn, Row, record_batch, schema_of, sentence_id, write_file
from fastadv.data.sources.find import Record, iterate_sentences, named_fields, open_source, records_of
from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE
from fastadv.data.tokenize_texts import counting_tokens, sentence_ids
from fastadv.errors import UserError
from fastadv.files.progress import Bar

__all__ = ["LineReport", "TokenizedText", "collate", "iterate_sentences", "sentence_id"]

T = TypeVar("T")
Tokenize = Callable[[List[str]], Tuple[Sequence[Sequence[int]], Sequence[Sequence[bool]]]]

logger = logging.getLogger(__name__)

# Part of every cache key: raise it when the line rule or the layout of the file changes.
FORMAT_VERSION = 3
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

    _what = "tokenised text"
    _schemas = [schema_of(num_fields) for num_fields in range(1, len(PREFIXES) + 1)]

    def __init__(self, path: str | os.PathLike):
        """Maps a file that `build` wrote; ValueError, KeyError, TypeError or OSError when it is none."""
        self.path = Path(path)
        reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
        if not any(reader.schema.equals(schema) for schema in self._schemas):
            raise ValueError(f"this is no {self._what}: its schema is {reader.schema}")
        self._columns = reader.schema.names
        # The last batch has no rows: it carries what is known only once all else is written.
        _, self._metadata = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        self.report = LineReport(**json.loads(self._metadata[b"report"]))
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches - 1)]
        self._starts = [0, *accumulate(batch.num_rows for batch in self._batches)]
        self._views: List[Optional[list]] = [None] * len(self._batches)

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.__init__(**state)

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
        at = index - self._starts[which]
        if self._views[which] is None:
            self._views[which] = [_view(column) for column in self._batches[which].columns]
        row: Dict = {"row": index}
        for name, (offsets, values) in zip(self._columns, self._views[which]):
            if offsets is None:
                row[name] = int(values[at])
                continue
            row[name] = values[int(offsets[at]) : int(offsets[at + 1])]
            if isinstance(values, pa.Array):
                # Booleans lie in memory as bits; only this row's are spread out.
                row[name] = row[name].to_numpy(zero_copy_only=False)
        return row

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
        quoting: str = "auto",
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
            quoting: of tables, see `fastadv.data.sources.tables.is_quoted`.

        Raises:
            UserError: an unreadable or empty source, or a cache folder that cannot be written.
        """
        opened = open_source(source, field, split, positive_field, negative_field, quoting)
        fields = named_fields(field, positive_field, negative_field)
        content, num_expected = opened.identity()
        inputs = [content, tokenizer_fingerprint, max_length, field, split, max_sentences, MAX_BYTES_PER_LINE]
        report = LineReport()

        def count(record: Record) -> None:
            report.num_without_tokens += 1

        rows = tokenised(
            records_of(opened, source, fields, report, MAX_BYTES_PER_LINE),
            lambda record: record,
            partial(by_column, encoder_tokenize),
            max_length,
            max_sentences,
            count,
            num_expected,
            progress,
        )
        unlabelled = ((None, sentences) for _, sentences in rows)
        key = [FORMAT_VERSION, *inputs, *fields[1:]]
        return cls._built(Path(cache_dir), "tokens", key, source, schema_of(len(fields)), unlabelled, report)

    @classmethod
    def _built(
        cls,
        cache_dir: Path,
        prefix: str,
        key: List,
        source: str | os.PathLike,
        schema: pa.Schema,
        rows: Iterator[Row],
        report: LineReport,
        more: Callable[[], Dict[str, str]] = dict,
    ) -> "TokenizedText":
        """The file of a key in ``cache_dir``: the one that an earlier build left, else ``rows`` written to it.

        Args:
            report: complete once ``rows`` is exhausted.
            more: see `fastadv.data.records.write_file`.
        """
        digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
        path = cache_dir.expanduser() / f"{prefix}-{digest}.arrow"
        if path.exists():
            try:
                text = cls(path)
            except (ValueError, KeyError, TypeError, OSError) as error:
                logger.warning("%s is damaged (%s); tokenising again", path, str(error).splitlines()[0])
            else:
                text.report.say("reusing the tokenised text of", os.fspath(source), f" in {path}")
                return text
        try:
            with counting_tokens(report):
                write_file(path, _in_batches(rows, schema), schema, report, more)
        except OSError as error:
            raise UserError(
                f"the tokenised text cannot be written to {path.parent} (data.cache_dir): {error.strerror or error}"
            ) from error
        text = cls(path)
        if not len(text):
            path.unlink(missing_ok=True)
            raise UserError(f"{source} gives no sentence: {text.report.summary()}")
        text.report.say("tokenised", os.fspath(source), f" into {path}")
        return text


def _view(column: pa.Array) -> tuple:
    """(offsets, values) of a column of lists, (None, values) of one of numbers, where they lie."""
    if not pa.types.is_list(column.type):
        return None, column.to_numpy()
    values = column.values
    return column.offsets.to_numpy(), values if pa.types.is_boolean(values.type) else values.to_numpy()


def by_column(encoder_tokenize: Tokenize, *columns: List[str]) -> Iterator[tuple]:
    """The sentences of each row, every column of texts tokenised by itself."""
    return zip(*(sentences_of(encoder_tokenize, texts) for texts in columns), strict=True)


def sentences_of(encoder_tokenize: Callable[..., Sequence[List]], *columns: List[str]) -> List[tuple]:
    """Each text, or each row of ``columns`` as one, as a `Row` has its sentences."""
    of_text = encoder_tokenize(*columns)
    return list(zip(*of_text, sentence_ids(encoder_tokenize, of_text[0], *columns), strict=True))


def tokenised(
    rows: Generator[T, None, None],
    texts_of: Callable[[T], Sequence[str]],
    tokenise: Callable[..., Iterable[Sequence[Sequence[Sequence]]]],
    max_length: int,
    max_rows: Optional[int],
    on_wordless: Callable[[T], None],
    num_expected: Optional[int],
    progress: bool,
) -> Iterator[Tuple[T, Sequence[Sequence[Sequence]]]]:
    """Yields each row whose sentences all have a token of their own, and its sentences as tokens.

    Args:
        tokenise: columns of texts -> the sentences of each row, as `fastadv.data.records.Row` has them.
        max_rows: only the first so many that are yielded.
        on_wordless: called with a row that is left out, or ends it all by an error.
        num_expected: at least as many rows as there are, for the bar; None: not known.
    """
    limits = [number for number in (num_expected, max_rows) if number is not None]
    num_left = max_rows
    with Bar(
        total=min(limits, default=None), desc="tokenising", unit=" sentences", disable=not progress, leave=False
    ) as bar:
        while num_left is None or num_left > 0:
            taken, num_characters = [], 0
            for row in islice(rows, min(_SENTENCES_A_CALL, num_left or _SENTENCES_A_CALL)):
                taken.append(row)
                num_characters += sum(map(len, texts_of(row)))
                if num_characters >= _CHARACTERS_A_CALL:
                    break
            if not taken:
                return
            for row, sentences in zip(taken, tokenise(*map(list, zip(*map(texts_of, taken)))), strict=True):
                longest = max(len(tokens) for tokens, *_ in sentences)
                if longest > max_length:
                    raise ValueError(f"the tokenizer gave {longest} tokens, more than max_length {max_length}")
                if any(all(special) for _, special, *_ in sentences):
                    on_wordless(row)
                    continue
                num_left = None if num_left is None else num_left - 1
                yield row, sentences
            bar.update(len(taken))
    # Rows that are left unread end here, so that the report of those read is complete.
    rows.close()


def _in_batches(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    held: List[Row] = []
    num_tokens = 0
    for row in rows:
        held.append(row)
        num_tokens += sum(len(tokens) for tokens, *_ in row[1])
        if len(held) == _ROWS_A_BATCH or num_tokens >= _TOKENS_A_BATCH:
            yield record_batch(held, schema)
            held, num_tokens = [], 0
    if held:
        yield record_batch(held, schema)
