"""Labelled text: tokenised once, with the class of each text or pair, into an Arrow file like `TokenizedText`'s.

Where it comes from, `fastadv.data.labelled.find` says; which class a label is,
`fastadv.data.labelled.labels`. The file holds labels as it found them, so that training, dev and test data, and runs
with other classes, share it.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Dict, Generator, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
import pyarrow as pa
from tqdm.auto import tqdm

from fastadv.data.labelled.find import LABEL, TEXT, new_found_labels, open_labelled
from fastadv.data.labelled.labels import FoundLabels, LabelledRow, LabelMap, agree_on_labels
from fastadv.data.records import record_batch, schema_of
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, LineReport
from fastadv.data.text import FORMAT_VERSION, TokenizedText, at_a_time, in_batches, progress_bar, take
from fastadv.errors import UserError

# Part of every cache key: raise it when labelled rows or their file change.
LABELLED_VERSION = 1


class _Row(NamedTuple):
    tokens: Sequence[int]
    is_special: Sequence[bool]
    types: Optional[Sequence[int]]
    """of a pair"""
    label: int
    """its place among the labels in the order they were found"""


def _schema(is_pair: bool) -> pa.Schema:
    schema = schema_of(1).append(pa.field("label", pa.int32()))
    return schema.append(pa.field("token_type_ids", pa.list_(pa.int8()))) if is_pair else schema


class LabelledText(TokenizedText):
    """Texts, or pairs of texts, with their classes, in a memory-mapped Arrow file; row i is `TokenizedText`'s, with

    * ``label`` int, the id of its class in ``label_map``,
    * ``row`` int, i,
    * ``token_type_ids`` (length,) int8, of pairs alone: which text of ``[CLS] a [SEP] b [SEP]`` a token is of, 0 or 1.

    Made by `build`; `with_labels` gives the same rows by another model's classes. Pickles as its path and classes.
    """

    def __init__(self, path: str | os.PathLike, source: str = "", label_map: Optional[LabelMap] = None):
        """
        Args:
            source: by which messages find the rows.
            label_map: the classes; None: by the rule of `fastadv.data.labelled.labels`, from these rows alone.

        Raises:
            ValueError, KeyError, TypeError or OSError: it is no such file.
            UserError: a label that is not in ``label_map``.
        """
        super().__init__(path)
        self.source = source
        self.found_labels = FoundLabels.from_json(self._metadata[b"labels"], source)
        if len(self):
            self.label_map = self.found_labels.label_map if label_map is None else label_map
            self._ids = self.label_map.ids_of(self.found_labels)
        self._label_views = [batch.column("label").to_numpy() for batch in self._batches]
        self._type_views: List[Optional[tuple]] = [None] * len(self._batches)

    def _num_fields_of(self, schema: pa.Schema) -> int:
        self.is_pair = schema.equals(_schema(is_pair=True))
        if not self.is_pair and not schema.equals(_schema(is_pair=False)):
            raise ValueError(f"this is no labelled text: its schema is {schema}")
        return 1

    def __getstate__(self):
        return {"path": self.path, "source": self.source, "label_map": self.label_map}

    def __setstate__(self, state):
        self.__init__(**state)

    def with_labels(self, label_map: LabelMap) -> "LabelledText":
        """The same rows by the classes of ``label_map``, as dev and test data are read by those of training.

        Raises:
            UserError: a row's label is none of them; its place, and the known labels.
        """
        return LabelledText(self.path, self.source, label_map)

    @property
    def fingerprint(self) -> str:
        """Equal for equal texts with equal classes, cut by equal tokenizers to equal lengths."""
        names = json.dumps(self.label_map.names).encode()
        return f"{super().fingerprint}-{hashlib.blake2b(names, digest_size=8).hexdigest()}"

    @property
    def labels(self) -> np.ndarray:
        """(len(self),) int64, the class of each row."""
        return np.array(self._ids, dtype=np.int64)[np.concatenate(self._label_views)]

    @property
    def class_counts(self) -> Dict[str, int]:
        """Rows of each class, in the order of the classes' ids."""
        return {name: self.found_labels.counts.get(name, 0) for name in self.label_map.names}

    def __getitem__(self, index: int) -> Dict:
        row = super().__getitem__(index)
        which, at = self._place_of(index)
        row["label"] = self._ids[int(self._label_views[which][at])]
        if self.is_pair:
            if self._type_views[which] is None:
                types = self._batches[which].column("token_type_ids")
                self._type_views[which] = types.offsets.to_numpy(), types.values.to_numpy()
            offsets, values = self._type_views[which]
            row["token_type_ids"] = values[int(offsets[at]) : int(offsets[at + 1])]
        return row

    @classmethod
    def build(
        cls,
        source: str | os.PathLike,
        encoder,
        label_field: str = LABEL,
        field: str = TEXT,
        pair_field: Optional[str] = None,
        split: str = "train",
        cache_dir: str | os.PathLike = "~/.cache/fastadv",
        max_sentences: Optional[int] = None,
        progress: bool = True,
    ) -> "LabelledText":
        """Tokenises ``source``, or maps the file an earlier run left in ``cache_dir``, as `TokenizedText.build` does.

        Args:
            source: what `fastadv.data.labelled.find.open_labelled` finds.
            encoder: gives ``tokenize``, ``tokenizer_fingerprint`` and ``max_length``, and for pairs ``tokenize_pairs``
                and ``num_token_types``.
            max_sentences: only the first so many rows.

        Raises:
            UserError: an unreadable or empty source, the first row that is not right, or a cache folder that cannot be
                written.
        """
        opened = open_labelled(source, label_field, field, pair_field, split)
        content, num_expected = opened.identity()
        inputs = [content, encoder.tokenizer_fingerprint, encoder.max_length, opened.text_columns, opened.label_column]
        is_pair = len(opened.text_columns) == 2
        if is_pair:
            inputs.append(encoder.num_token_types)
        versions = [FORMAT_VERSION, LABELLED_VERSION]
        key = json.dumps(["labelled", *versions, *inputs, opened.given, split, max_sentences, MAX_BYTES_PER_LINE])
        digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        path = Path(cache_dir).expanduser() / f"tokens-labelled-{digest}.arrow"
        text = cls._reused(path)
        if text is None:
            report, found = LineReport(), new_found_labels(opened, source)
            with progress_bar(num_expected, max_sentences, progress) as bar:
                rows = _tokenized_rows(opened.rows(report), encoder, max_sentences, found, opened.text_columns, bar)
                batches = in_batches(rows, lambda row: len(row.tokens), lambda held: _record_batch(held, is_pair))
                cls._write(path, batches, _schema(is_pair), report, lambda: {"labels": found.to_json()})
            text = cls._built(path, source)
        return cls(text.path, os.fspath(source))


def agree(texts: Sequence[LabelledText], names: Optional[Sequence[str]] = None) -> List[LabelledText]:
    """Texts that train one model, by the same classes.

    Args:
        names: see `fastadv.data.labelled.labels.agree_on_labels`.

    Raises:
        UserError: what that raises, or texts and pairs of texts together.
    """
    other = next((text for text in texts if text.is_pair != texts[0].is_pair), None)
    if other is not None:
        kinds = ("texts", "pairs of texts")
        raise UserError(
            f"{texts[0].source} has {kinds[texts[0].is_pair]} and {other.source} {kinds[other.is_pair]}; "
            "expected the same of both"
        )
    label_map = agree_on_labels([text.found_labels for text in texts], names)
    return [text.with_labels(label_map) for text in texts]


def _tokenized_rows(
    rows: Generator[LabelledRow, None, None],
    encoder,
    max_sentences: Optional[int],
    found: FoundLabels,
    columns: Sequence[str],
    bar: tqdm,
) -> Iterator[_Row]:
    num_left = max_sentences
    while num_left is None or num_left > 0:
        taken = take(rows, at_a_time(num_left), lambda row: sum(map(len, row.texts)))
        if not taken:
            return
        texts = [list(of_column) for of_column in zip(*(row.texts for row in taken))]
        if len(texts) == 1:
            tokenized = (*encoder.tokenize(texts[0]), [None] * len(taken))
        else:
            tokenized = encoder.tokenize_pairs(*texts)
        for row, tokens, special, types in zip(taken, *tokenized, strict=True):
            if len(tokens) > encoder.max_length:
                raise ValueError(f"the tokenizer gave {len(tokens)} tokens, more than max_length {encoder.max_length}")
            if all(special):
                raise UserError(f"{found.locate(row.where)}, column {columns[0]}: the tokenizer finds no word in it")
            yield _Row(tokens, special, types, found.add(row.label, row.file, row.where))
        num_left = None if num_left is None else num_left - len(taken)
        bar.update(len(taken))
    # Rows that are left unread end here, so that the report of those read is complete.
    rows.close()


def _record_batch(rows: List[_Row], is_pair: bool) -> pa.RecordBatch:
    plain = record_batch([((row.tokens, row.is_special),) for row in rows], 1)
    columns = [*plain.columns, np.array([row.label for row in rows], dtype=np.int32)]
    if is_pair:
        types = np.fromiter((kind for row in rows for kind in row.types), np.int8, sum(len(row.types) for row in rows))
        columns.append(pa.ListArray.from_arrays(plain.column("input_ids").offsets, types))
    return pa.record_batch(columns, schema=_schema(is_pair))
