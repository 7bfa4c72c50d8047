"""The seven transfer sets of SentEval, each with the splits and the vectors that its protocol asks for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np

from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.senteval_sets import LAYOUTS, SentEvalSet
from fastadv.errors import UserError

Split = Tuple[np.ndarray, np.ndarray]
"""features (N, F) and class ids (N,)"""


_FOLDERS = {name: name for name in ("MR", "CR", "SUBJ", "MPQA")}
_FOLDERS |= {"SST-2": "SST/binary", "MRPC": "MRPC", "TREC": "TREC"}

TRANSFER_SETS = tuple(_FOLDERS)


@dataclass(frozen=True)
class TransferSet:
    """One set as text."""

    name: str
    class_names: Tuple[str, ...]
    texts: Dict[str, List[Tuple[str, ...]]]
    """split -> its rows: a text each, or the two of a pair"""
    labels: Dict[str, np.ndarray]
    """split -> class ids (N,)"""

    @property
    def distinct_texts(self) -> List[str]:
        """Every text once, in the order of the rows."""
        return list(dict.fromkeys(text for rows in self.texts.values() for row in rows for text in row))

    def with_vectors(self, vectors: np.ndarray) -> Dict[str, Split]:
        """split -> features and labels; ``vectors`` (num_distinct, D) are those of `distinct_texts`.

        The features of a text are its vector, raw; those of a pair (u, v) are [|u − v|, u · v] entry by entry (2D).
        In float64: the solver's steps are then exact to far below its tolerance.
        """
        row_of = {text: row for row, text in enumerate(self.distinct_texts)}
        splits = {}
        for split, rows in self.texts.items():
            sides = [np.asarray(vectors[[row_of[text] for text in side]], np.float64) for side in zip(*rows)]
            if len(sides) == 2:
                u, v = sides
                sides = [np.hstack([np.abs(u - v), u * v])]
            splits[split] = sides[0], self.labels[split]
        return splits


def check_set_names(names) -> Tuple[str, ...]:
    """UserError for a name that is no set, or given twice, or for no name at all. None: all seven."""
    if names is None:
        return TRANSFER_SETS
    names = tuple(names)
    unknown = [name for name in names if name not in TRANSFER_SETS]
    if unknown or not names:
        given = repr(unknown[0]) if unknown else "none"
        raise UserError(f"unknown transfer set: {given} given, the sets are {', '.join(TRANSFER_SETS)}")
    if len(set(names)) < len(names):
        raise UserError(f"a transfer set is given twice: {', '.join(names)}; expected each once")
    return names


def check_senteval_folder(folder: str | Path) -> Path:
    """UserError where ``folder`` is no folder."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; a folder in SentEval layout (MR/, CR/, ... in it) is needed")
    return folder


def read_transfer_set(folder: Path, name: str) -> TransferSet:
    """Reads one set from its place in SentEval's data folder (``MR/``, ..., ``SST/binary/``, ``MRPC/``).

    Raises:
        UserError: a file that is not there or holds no row, or the first row that is not right, by file and row.
    """
    task, texts, labels = name.replace("-", ""), {}, {}
    for split in LAYOUTS[task].files:
        source = SentEvalSet(folder / _FOLDERS[name], task, split)
        rows = list(source.rows(LineReport()))
        texts[split] = [row.texts for row in rows]
        labels[split] = np.array([source.given.index(row.label) for row in rows], dtype=np.int64)
    return TransferSet(name, source.given, texts, labels)
