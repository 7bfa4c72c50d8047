"""How tokenised records lie in an Arrow file: the columns, a record batch of them, and the file that holds it all."""

import dataclasses
import hashlib
import json
import os
import time
import uuid
from itertools import accumulate, chain
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import pyarrow as pa

from fastadv.data.sources.line_report import LineReport

PREFIXES = ("", "positive_", "negative_")
"""of the column names of a record's sentences: its own, its positive's, its hard negative's"""

Row = Tuple[Optional[int], Sequence[Sequence[Sequence]]]
"""the number of a row's label (None: no labels), and of each of its sentences the token ids, which of them are special,
of a pair of texts their types, and its id (`fastadv.data.tokenize_texts.sentence_ids`)"""

_STALE_AFTER_S = 24 * 3600


def schema_of(num_fields: int, is_labelled: bool = False, is_pair: bool = False) -> pa.Schema:
    """The columns of records of 1 (a sentence), 2 (with a positive) or 3 sentences (with a hard negative too).

    Args:
        is_labelled: with the class of each row.
        is_pair: the sentence is a pair of texts, with the type of each token.
    """
    columns = []
    for prefix in PREFIXES[:num_fields]:
        columns += [
            (f"{prefix}input_ids", pa.list_(pa.int32())),
            (f"{prefix}is_special", pa.list_(pa.bool_())),
            (f"{prefix}sentence_id", pa.int64()),
            (f"{prefix}length", pa.int32()),
        ]
    columns += [("label", pa.int32())] * is_labelled + [("token_type_ids", pa.list_(pa.int8()))] * is_pair
    return pa.schema(columns)


def sentence_id(token_ids: Sequence[int]) -> int:
    """A signed 64-bit hash of a sentence's token ids, the same on every machine: equal tokens, equal id.

    Among a million different sentences two ids collide with a probability of 3e-8.
    """
    digest = hashlib.blake2b(np.asarray(token_ids, dtype="<i4").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def record_batch(rows: List[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a `schema_of` as a record batch."""
    columns: List = []
    for of_field in zip(*(sentences for _, sentences in rows)):
        tokens, special, *types, ids = zip(*of_field)
        columns += [_lists(tokens, np.int32), _lists(special, np.bool_)]
        columns += [list(ids), [len(of_sentence) for of_sentence in tokens]]
    if "label" in schema.names:
        columns.append([label for label, _ in rows])
    if "token_type_ids" in schema.names:
        columns.append(_lists(types[0], np.int8))
    return pa.record_batch(columns, schema=schema)


def _lists(lists: Sequence[Sequence], dtype: type) -> pa.ListArray:
    offsets = np.array([0, *accumulate(map(len, lists))], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.fromiter(chain.from_iterable(lists), dtype, offsets[-1])))


def write_file(
    path: Path,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    report: LineReport,
    more: Callable[[], Dict[str, str]] = dict,
) -> None:
    """Writes the file aside and puts it in its place in one step, complete or not at all.

    Args:
        report: complete once ``batches`` is exhausted; kept with the last batch, which has no rows.
        more: called once ``batches`` is exhausted: what else is kept there, by key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path.parent)
    aside = path.with_name(f".{path.stem}-{uuid.uuid4().hex}.partial")
    try:
        with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
            metadata = {"report": json.dumps(dataclasses.asdict(report)), **more()}
            writer.write_batch(pa.RecordBatch.from_pylist([], schema), custom_metadata=metadata)
        # The name must not reach the disk before the bytes do.
        with open(aside, "rb") as written:
            os.fsync(written.fileno())
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


class MappedColumn:
    """A column of numbers that stays where it lies, in the pieces of mapped files; (N,), taken by arrays of indices."""

    def __init__(self, pieces: Sequence[np.ndarray], dtype: type):
        self._pieces, self.dtype = list(pieces), np.dtype(dtype)
        self._starts = np.cumsum([0, *(len(piece) for piece in self._pieces)])

    @property
    def pieces(self) -> List[np.ndarray]:
        return self._pieces

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """The numbers at ``indices``, an array of integers from 0 to below N."""
        which = np.searchsorted(self._starts, indices, side="right") - 1
        rows = (indices - self._starts[which]).tolist()
        pieces = self._pieces
        return np.fromiter((pieces[i][row] for i, row in zip(which.tolist(), rows)), self.dtype, len(rows))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        joined = np.concatenate(self._pieces) if self._pieces else np.empty(0, self.dtype)
        return joined if dtype is None else joined.astype(dtype)

    def tolist(self) -> List[int]:
        return np.asarray(self).tolist()
