"""Labelled text: tokenised once, with the class of each text or pair, into an Arrow file like `TokenizedText`'s.

Where it comes from, `fastadv.data.labelled.find` says; which class a label is,
`fastadv.data.labelled.labels`. The file holds labels as it found them, so that training, dev and test data, and runs
with other classes, share it.
"""

import hashlib
import json
import os
from operator import attrgetter
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Sequence

import numpy as np

from fastadv.data.labelled.find import LABEL, TEXT, new_found_labels, open_labelled
from fastadv.data.labelled.labels import FoundLabels, LabelledRow, LabelMap, agree_on_labels
from fastadv.data.records import schema_of
from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE
from fastadv.data.text import FORMAT_VERSION, TokenizedText, by_column, sentences_of, tokenised
from fastadv.errors import UserError

# Part of every cache key: raise it when labelled rows or their file change.
LABELLED_VERSION = 2


class LabelledText(TokenizedText):
    """Texts, or pairs of texts, with their classes, in a memory-mapped Arrow file; row i is `TokenizedText`'s, with

    * ``label`` int, the id of its class in ``label_map``,
    * ``row`` int, i,
    * ``token_type_ids`` (length,) int8, of pairs alone: which text of ``[CLS] a [SEP] b [SEP]`` a token is of, 0 or 1.

    ``text_columns`` are the names of the text's column, or of the two of pairs.

    Made by `build`; `with_labels` gives the same rows by another model's classes. Pickles as its path and classes.
    """

    _what = "labelled text"
    _schemas = [schema_of(1, True, is_pair) for is_pair in (False, True)]

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
        self.source, self.is_pair = source, "token_type_ids" in self._columns
        self.text_columns = tuple(json.loads(self._metadata[b"columns"]))
        self.found_labels = FoundLabels.from_json(self._metadata[b"labels"], source)
        if len(self):
            self.label_map = self.found_labels.label_map if label_map is None else label_map
            self._ids = self.label_map.ids_of(self.found_labels)

    def __getstate__(self):
        return {"path": self.path, "source": self.source, "label_map": self.label_map}

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
        return np.array(self._ids, dtype=np.int64)[np.asarray(self._column("label", np.int32))]

    @property
    def class_counts(self) -> Dict[str, int]:
        """Rows of each class, in the order of the classes' ids."""
        return {name: self.found_labels.counts.get(name, 0) for name in self.label_map.names}

    def __getitem__(self, index: int) -> Dict:
        row = super().__getitem__(index)
        return {**row, "label": self._ids[row["label"]]}

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
        quoting: str = "auto",
        skip_labels: Sequence[str] = (),
    ) -> "LabelledText":
        """Tokenises ``source``, or maps the file an earlier run left in ``cache_dir``, as `TokenizedText.build` does.

        Args:
            source: what `fastadv.data.labelled.find.open_labelled` finds.
            encoder: gives ``tokenize``, ``tokenizer_fingerprint`` and ``max_length``, and for pairs ``tokenize_pairs``
                and ``num_token_types``.
            max_sentences: only the first so many rows.
            quoting, skip_labels: as `fastadv.data.labelled.find.open_labelled` has them.

        Raises:
            UserError: an unreadable or empty source, the first row that is not right, or a cache folder that cannot be
                written.
        """
        opened = open_labelled(source, label_field, field, pair_field, split, quoting, skip_labels)
        content, num_expected = opened.identity()
        is_pair = len(opened.text_columns) == 2
        inputs = [content, encoder.tokenizer_fingerprint, encoder.max_length, opened.text_columns, opened.label_column]
        inputs += [encoder.num_token_types] * is_pair
        versions = [FORMAT_VERSION, LABELLED_VERSION]
        key = ["labelled", *versions, *inputs, opened.given, split, max_sentences, MAX_BYTES_PER_LINE]
        report, found = LineReport(), new_found_labels(opened, source)

        def tokenise(*columns: List[str]) -> Iterable:
            if not is_pair:
                return by_column(encoder.tokenize, *columns)
            return ((sentence,) for sentence in sentences_of(encoder.tokenize_pairs, *columns))

        def refuse(row: LabelledRow) -> None:
            column = opened.text_columns[0]
            raise UserError(f"{found.locate(row.where)}, column {column}: the tokenizer finds no word in it")

        rows = tokenised(
            opened.rows(report),
            attrgetter("texts"),
            tokenise,
            encoder.max_length,
            max_sentences,
            refuse,
            num_expected,
            progress,
        )
        numbered = ((found.add(row.label, row.file, row.where), sentences) for row, sentences in rows)
        schema, labels = (
            schema_of(1, True, is_pair),
            lambda: {"labels": found.to_json(), "columns": json.dumps(opened.text_columns)},
        )
        text = cls._built(Path(cache_dir), "tokens-labelled", key, source, schema, numbered, report, labels)
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
