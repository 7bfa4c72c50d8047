"""Texts in, vectors out: the work behind ``fastadv encode``."""

import itertools
import os
import time
from pathlib import Path
from typing import Dict, List

import numpy as np

from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

SUFFIXES = (".npy", ".parquet")

# Texts held at once.
_WINDOW = 8192

_NPY_HEADER_BYTES = 128


def check_output(output_path: str | Path) -> Path:
    """The path vectors go to. UserError where its suffix names no format, or no file can be made there."""
    path = Path(output_path).expanduser()
    if path.suffix not in SUFFIXES:
        raise UserError(f"output {str(output_path)!r} does not end in {' or '.join(SUFFIXES)}")
    if path.is_dir():
        raise UserError(f"output {str(output_path)!r} is a folder")
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise UserError(f"output {str(output_path)!r}: {nearest} is no folder that can be written to")
    return path


def encode_file(
    encoder,
    input_path: str | Path,
    output_path: str | Path,
    field: str = "text",
    batch_size: int = 64,
    split: str = "train",
    progress: bool = False,
) -> Dict:
    """Encodes every sentence of ``input_path`` (``fastadv.data.sources.find``), in order, into ``output_path``.

    ``.npy`` holds (num_sentences, D) float32; ``.parquet`` the columns ``text`` and ``vector``. Blank lines
    give no row, so row numbers count sentences, not lines. The file is written aside and renamed when it is
    whole; memory does not grow with the input.

    Returns:
        num_sentences, hidden_size, output, lines (what became of every line, in words) and sentences_per_s.

    Raises:
        UserError: an unknown format, or an input that gives no sentence.
    """
    from tqdm import tqdm

    from fastadv.data.sources.find import iterate_sentences
    from fastadv.data.sources.lines import LineReport

    target = check_output(output_path)
    report = LineReport()
    sentences = iterate_sentences(input_path, field=field, split=split, report=report)
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    num_sentences = 0
    rows_type = _NpyRows if target.suffix == ".npy" else _ParquetRows
    with written_aside(target) as aside, tqdm(unit="text", disable=not progress) as bar:
        with rows_type(aside, encoder.hidden_size) as rows:
            while window := list(itertools.islice(sentences, _WINDOW)):
                rows.write(window, encoder.encode_texts(window, batch_size=batch_size, on_batch=bar.update))
                num_sentences += len(window)
    return {
        "num_sentences": num_sentences,
        "hidden_size": encoder.hidden_size,
        "output": str(target),
        "lines": report.summary(),
        "sentences_per_s": num_sentences / max(time.perf_counter() - started, 1e-9),
    }


class _NpyRows:
    """A .npy file whose number of rows is known only at its end: a header of fixed size is written last."""

    def __init__(self, path: Path, hidden_size: int):
        self.file = open(path, "wb")
        self.hidden_size, self.num_rows = hidden_size, 0
        self.file.write(bytes(_NPY_HEADER_BYTES))

    def write(self, texts: List[str], vectors: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        self.num_rows += len(vectors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Format 1.0: magic, version, length of the text (little-endian), the text padded to end in a newline.
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self.num_rows}, {self.hidden_size}), }}"
        length = _NPY_HEADER_BYTES - 10
        self.file.seek(0)
        magic = b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little")
        self.file.write(magic + text.ljust(length - 1).encode() + b"\n")
        self.file.close()


class _ParquetRows:
    """A .parquet file with one row group a window."""

    def __init__(self, path: Path, hidden_size: int):
        import pyarrow
        import pyarrow.parquet

        self.pyarrow = pyarrow
        self.schema = pyarrow.schema(
            [("text", pyarrow.string()), ("vector", pyarrow.list_(pyarrow.float32(), hidden_size))]
        )
        self.writer = pyarrow.parquet.ParquetWriter(path, self.schema)

    def write(self, texts: List[str], vectors: np.ndarray) -> None:
        flat = self.pyarrow.array(vectors.reshape(-1))
        rows = self.pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        columns = [self.pyarrow.array(texts), rows]
        self.writer.write_table(self.pyarrow.Table.from_arrays(columns, schema=self.schema))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.writer.close()
