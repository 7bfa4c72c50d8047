"""Training text: tokenised once into an Arrow file that is memory-mapped ever after.

What a line is, `fastadv.data.lines` says; where sentences come from, `fastadv.data.sources`.
"""

import dataclasses
import hashlib
import json
import logging
import os
import time
import uuid
from bisect import bisect_right
from itertools import chain, islice
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import pyarrow as pa
from tqdm.auto import tqdm

from fastadv.data.lines import MAX_BYTES_PER_LINE, LineReport
from fastadv.data.packing import PackedBatch
from fastadv.data.sources import iterate_sentences, open_source, sentences_of
from fastadv.errors import UserError

__all__ = ["LineReport", "TokenizedText", "collate", "iterate_sentences", "sentence_id"]

Tokenize = Callable[[List[str]], Tuple[Sequence[Sequence[int]], Sequence[Sequence[bool]]]]

logger = logging.getLogger(__name__)

# Part of every cache key: raise it when the line rule or the layout of the file changes.
FORMAT_VERSION = 1
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("is_special", pa.list_(pa.bool_())),
        ("sentence_id", pa.int64()),
        ("length", pa.int32()),
    ]
)
# A record batch is written as soon as it holds this many sentences or tokens, and text is tokenised in pieces
# of at most so many sentences or characters: memory does not grow with the corpus, nor with the length of its
# lines.
_ROWS_A_BATCH = 8192
_TOKENS_A_BATCH = 1 << 20
_SENTENCES_A_CALL = 1024
_CHARACTERS_A_CALL = 4 << 20
_STALE_AFTER_S = 24 * 3600


def sentence_id(token_ids: Sequence[int]) -> int:
    """A signed 64-bit hash of a sentence's token ids, the same on every machine: equal tokens, equal id.

    Among a million different sentences two ids collide with a probability of 3e-8.
    """
    digest = hashlib.blake2b(np.asarray(token_ids, dtype="<i4").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def collate(rows: Sequence[Dict], position_offset: int) -> PackedBatch:
    """Packs rows of a `TokenizedText`; ``position_offset`` is the encoder's first position id."""
    return PackedBatch.from_token_lists(
        [row["input_ids"].tolist() for row in rows],
        [row["is_special"].tolist() for row in rows],
        sentence_ids=[row["sentence_id"] for row in rows],
        position_offset=position_offset,
    )


class TokenizedText:
    """Sentences as token ids in a memory-mapped Arrow file; row i is a dict of

    * ``input_ids`` (length,) int32, special tokens included, truncated,
    * ``is_special`` (length,) bool,
    * ``sentence_id`` int, see `sentence_id`,
    * ``length`` int.

    Pickles as its path: a loader process maps the file itself.
    """

    def __init__(self, path: str | os.PathLike):
        """Maps a file that `build` wrote; ValueError, KeyError, TypeError or OSError when it is none."""
        self.path = Path(path)
        reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
        if not reader.schema.equals(SCHEMA):
            raise ValueError(f"{self.path} is no tokenised text: its schema is {reader.schema}")
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
    def lengths(self) -> np.ndarray:
        """(len(self),) int32, tokens of each sentence; reads no token."""
        return self._column("length", np.int32)

    @property
    def sentence_ids(self) -> np.ndarray:
        """(len(self),) int64."""
        return self._column("sentence_id", np.int64)

    def _column(self, name: str, dtype) -> np.ndarray:
        parts = [batch.column(name).to_numpy() for batch in self._batches]
        return np.concatenate(parts) if parts else np.empty(0, dtype)

    def __getitem__(self, index: int) -> Dict:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        which = bisect_right(self._starts, index) - 1
        if self._views[which] is None:
            batch = self._batches[which]
            ids = batch.column("input_ids")
            self._views[which] = (
                ids.offsets.to_numpy(),
                ids.values.to_numpy(),
                batch.column("is_special").values,
                batch.column("sentence_id").to_numpy(),
            )
        offsets, tokens, special, ids = self._views[which]
        row = index - self._starts[which]
        start, end = int(offsets[row]), int(offsets[row + 1])
        return {
            "input_ids": tokens[start:end],
            # Booleans lie in memory as bits; only this row's are spread out.
            "is_special": special.slice(start, end - start).to_numpy(zero_copy_only=False),
            "sentence_id": int(ids[row]),
            "length": end - start,
        }

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
    ) -> "TokenizedText":
        """Tokenises ``source``, or maps the file an earlier run left in ``cache_dir``.

        The file's name is a hash of the source's content, ``tokenizer_fingerprint``, ``max_length``,
        ``field``, ``split``, ``max_sentences`` and the format's version. It is written aside and renamed when
        complete, so a build that is killed, or two at once, leave a whole file or none.

        Args:
            encoder_tokenize: texts -> (token ids, is-special flags) of each, truncated to ``max_length``.
            tokenizer_fingerprint: changes whenever ``encoder_tokenize`` would give other tokens.
            max_sentences: only the first so many sentences that have tokens.

        Raises:
            UserError: an unreadable or empty source, or a cache folder that cannot be written.
        """
        opened = open_source(source, field, split)
        content, num_expected = opened.identity()
        inputs = [content, tokenizer_fingerprint, max_length, field, split, max_sentences, MAX_BYTES_PER_LINE]
        key = hashlib.blake2b(json.dumps([FORMAT_VERSION, *inputs]).encode(), digest_size=16).hexdigest()
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
        sentences = sentences_of(opened, source, field, report, MAX_BYTES_PER_LINE)
        if max_sentences is not None:
            num_expected = max_sentences if num_expected is None else min(num_expected, max_sentences)
        bar = tqdm(total=num_expected, desc="tokenising", unit=" sentences", disable=not progress, leave=False)
        with bar:
            rows = _tokenized_rows(sentences, encoder_tokenize, max_length, max_sentences, report, bar)
            try:
                _write(path, rows, report)
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
    sentences: Iterator[str],
    encoder_tokenize: Tokenize,
    max_length: int,
    max_sentences: Optional[int],
    report: LineReport,
    bar: tqdm,
) -> Iterator[Tuple[Sequence[int], Sequence[bool]]]:
    """Yields (token ids, is-special flags) of each sentence that has a token of its own."""
    num_left = max_sentences
    while num_left is None or num_left > 0:
        most = _SENTENCES_A_CALL if num_left is None else min(_SENTENCES_A_CALL, num_left)
        texts = _take(sentences, most)
        if not texts:
            return
        token_lists, special_lists = encoder_tokenize(texts)
        for tokens, special in zip(token_lists, special_lists, strict=True):
            if len(tokens) > max_length:
                raise ValueError(f"the tokenizer gave {len(tokens)} tokens, more than max_length {max_length}")
            if all(special):
                report.num_without_tokens += 1
                continue
            if num_left is not None:
                num_left -= 1
            yield tokens, special
        bar.update(len(texts))


def _take(sentences: Iterator[str], most: int) -> List[str]:
    """The next ``most`` sentences, or fewer where they are long."""
    texts, num_characters = [], 0
    for text in islice(sentences, most):
        texts.append(text)
        num_characters += len(text)
        if num_characters >= _CHARACTERS_A_CALL:
            break
    return texts


def _write(path: Path, rows: Iterator[Tuple[Sequence[int], Sequence[bool]]], report: LineReport) -> None:
    """Writes the file aside and puts it in its place in one step, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path.parent)
    aside = path.with_name(f".{path.stem}-{uuid.uuid4().hex}.partial")
    try:
        with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in _record_batches(rows):
                writer.write_batch(batch)
            metadata = {"report": json.dumps(dataclasses.asdict(report))}
            writer.write_batch(_record_batch([], []), custom_metadata=metadata)
        # The name must not reach the disk before the bytes do.
        descriptor = os.open(aside, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _remove_stale(folder: Path) -> None:
    """Removes what builds killed more than a day ago have left."""
    for partial in folder.glob(".tokens-*.partial"):
        try:
            if time.time() - partial.stat().st_mtime > _STALE_AFTER_S:
                partial.unlink()
        except OSError:
            # Another build removed it first, or it belongs to somebody else.
            continue


def _record_batches(rows: Iterator[Tuple[Sequence[int], Sequence[bool]]]) -> Iterator[pa.RecordBatch]:
    token_lists, special_lists, num_tokens = [], [], 0
    for tokens, special in rows:
        token_lists.append(tokens)
        special_lists.append(special)
        num_tokens += len(tokens)
        if len(token_lists) == _ROWS_A_BATCH or num_tokens >= _TOKENS_A_BATCH:
            yield _record_batch(token_lists, special_lists)
            token_lists, special_lists, num_tokens = [], [], 0
    if token_lists:
        yield _record_batch(token_lists, special_lists)


def _record_batch(token_lists: List[Sequence[int]], special_lists: List[Sequence[bool]]) -> pa.RecordBatch:
    lengths = np.array([len(tokens) for tokens in token_lists], dtype=np.int32)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    tokens = np.fromiter(chain.from_iterable(token_lists), np.int32, total)
    special = np.fromiter(chain.from_iterable(special_lists), np.bool_, total)
    return pa.record_batch(
        [
            pa.ListArray.from_arrays(offsets, tokens),
            pa.ListArray.from_arrays(offsets, pa.array(special)),
            np.array([sentence_id(tokens) for tokens in token_lists], dtype=np.int64),
            lengths,
        ],
        schema=SCHEMA,
    )
