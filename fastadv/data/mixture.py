"""Several texts in one run. How often the sentences of each occur, `fastadv.data.batching.BatchOrder` says."""

import hashlib
from bisect import bisect_right
from itertools import chain
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Union

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


class JoinedText:
    """Tokenised texts end to end: row i is the i-th of all their rows, as `TokenizedText` has it."""

    def __init__(self, texts: Sequence[TokenizedText]):
        """
        Args:
            texts: one or more, of records with equally many sentences.
        """
        self.texts = list(texts)
        self._starts = [0]
        for text in self.texts:
            self._starts.append(self._starts[-1] + len(text))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Dict:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        which = bisect_right(self._starts, index) - 1
        return {**self.texts[which][index - self._starts[which]], "row": index}

    def token_pieces(self) -> Iterator[np.ndarray]:
        """The ``input_ids`` of all rows end to end, in int32 pieces (n,)."""
        return chain.from_iterable(text.token_pieces() for text in self.texts)

    @property
    def lengths(self) -> MappedColumn:
        """(len(self),) int32, tokens of each sentence; reads no token."""
        return MappedColumn([piece for text in self.texts for piece in text.lengths.pieces], np.int32)

    @property
    def labels(self) -> np.ndarray:
        """(len(self),) int64, the class of each row, of labelled texts."""
        return np.concatenate([text.labels for text in self.texts])

    @property
    def fingerprint(self) -> str:
        """Equal for equal texts in an equal order."""
        names = "\n".join(text.fingerprint for text in self.texts)
        return f"joined-{hashlib.blake2b(names.encode(), digest_size=16).hexdigest()}"


class SelectedText:
    """Some rows of labelled text, in the order given; row i is the i-th of them.

    Args:
        rows: (n,) their numbers in ``text``.
    """

    def __init__(self, text, rows: Sequence[int]):
        self._text, self._rows = text, np.asarray(rows, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Dict:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        return {**self._text[int(self._rows[index])], "row": index}

    def token_pieces(self) -> Iterator[np.ndarray]:
        """The ``input_ids`` (n,) of each row."""
        return (self[i]["input_ids"] for i in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """(len(self),) int32, tokens of each sentence."""
        return np.asarray(self._text.lengths[self._rows])

    @property
    def labels(self) -> np.ndarray:
        """(len(self),) int64, the class of each row."""
        return self._text.labels[self._rows]

    @property
    def fingerprint(self) -> str:
        """Equal for equal rows of equal texts."""
        return f"{self._text.fingerprint}-{hashlib.blake2b(self._rows.tobytes(), digest_size=8).hexdigest()}"
