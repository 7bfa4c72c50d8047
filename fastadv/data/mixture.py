"""Several texts in one run. How often the sentences of each occur, `fastadv.data.batching.BatchOrder` says."""

import hashlib
from bisect import bisect_right
from itertools import accumulate, chain
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from fastadv.data.records import MappedColumn
from fastadv.data.text import TokenizedText


class WeightedSource(NamedTuple):
    """An entry of ``data.train``."""

    path: str
    weight: float = 1.0


def weighted_sources(train: Union[str, List[Dict[str, Any]]]) -> List[WeightedSource]:
    """``data.train``, one source or a list of {path, weight}, as a list."""
    return [WeightedSource(train)] if isinstance(train, str) else [WeightedSource(**entry) for entry in train]


def describe_sources(train: Union[str, List[Dict[str, Any]]]) -> str:
    """``data.train`` in a few words: ``a.txt``, or ``a.txt (weight 2), b.csv``."""
    parts = (path if weight == 1 else f"{path} (weight {weight:g})" for path, weight in weighted_sources(train))
    return ", ".join(parts)


class TrainingRows:
    """Tokenised texts end to end, or some rows of labelled ones, as `TokenizedText` has rows.

    Args:
        texts: one or more, of records with equally many sentences.
        rows: (n,) numbers of rows of all texts together, of which row i is the i-th; None: all.
    """

    def __init__(self, texts: Sequence[TokenizedText], rows: Optional[Sequence[int]] = None):
        self.texts, self._starts = list(texts), [0, *accumulate(map(len, texts))]
        self._rows = None if rows is None else np.asarray(rows, dtype=np.int64)

    def __len__(self) -> int:
        return self._starts[-1] if self._rows is None else len(self._rows)

    def __getitem__(self, index: int) -> Dict:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        place = index if self._rows is None else int(self._rows[index])
        which = bisect_right(self._starts, place) - 1
        row = self.texts[which][place - self._starts[which]]
        return {**row, "row": index} if "row" in row else row

    def token_pieces(self) -> Iterator[np.ndarray]:
        """The ``input_ids`` of all rows end to end, in int32 pieces (n,)."""
        if self._rows is None:
            return chain.from_iterable(text.token_pieces() for text in self.texts)
        return (self[i]["input_ids"] for i in range(len(self)))

    @property
    def lengths(self) -> Union[MappedColumn, np.ndarray]:
        """(len(self),) int32, tokens of each sentence; reads no token."""
        whole = MappedColumn([piece for text in self.texts for piece in text.lengths.pieces], np.int32)
        return whole if self._rows is None else whole[self._rows]

    @property
    def labels(self) -> np.ndarray:
        """(len(self),) int64, the class of each row, of labelled texts."""
        whole = np.concatenate([text.labels for text in self.texts])
        return whole if self._rows is None else whole[self._rows]

    @property
    def fingerprint(self) -> str:
        """Equal for equal rows of equal texts in an equal order."""
        whole = self.texts[0].fingerprint
        if len(self.texts) > 1:
            names = "\n".join(text.fingerprint for text in self.texts)
            whole = f"joined-{hashlib.blake2b(names.encode(), digest_size=16).hexdigest()}"
        return (
            whole
            if self._rows is None
            else f"{whole}-{hashlib.blake2b(self._rows.tobytes(), digest_size=8).hexdigest()}"
        )
