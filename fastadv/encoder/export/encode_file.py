"""Texts in, vectors out: the work behind ``fastadv encode``."""

import itertools
import time
from contextlib import closing
from pathlib import Path
from typing import Dict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib.format import write_array_header_1_0

from fastadv.data.sources.find import iterate_sentences
from fastadv.data.sources.line_report import LineReport
from fastadv.data.tokenize_texts import counting_tokens
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside
from fastadv.files.disk import check_folder
from fastadv.files.progress import Bar

SUFFIXES = (".npy", ".parquet")

# Texts held at once.
_WINDOW = 8192


def check_output(output_path: str | Path) -> Path:
    """The path vectors go to. UserError where its suffix names no format, or no file can be made there."""
    path = Path(output_path).expanduser()
    if path.suffix not in SUFFIXES:
        raise UserError(f"output {str(output_path)!r} does not end in {' or '.join(SUFFIXES)}")
    if path.is_dir():
        raise UserError(f"output {str(output_path)!r} is a folder")
    check_folder(path.absolute().parent, f"output {str(output_path)!r}")
    return path


def encode_file(
    encoder,
    input_path: str | Path,
    output_path: str | Path,
    field: str = "text",
    batch_size: int = 64,
    split: str = "train",
    progress: bool = False,
    quoting: str = "auto",
) -> Dict:
    """Encodes every sentence of ``input_path`` (``fastadv.data.sources.find``), in order, into ``output_path``.

    ``.npy`` holds (num_sentences, D) float32; ``.parquet`` the columns ``text`` and ``vector``. Blank lines
    give no row, so row numbers count sentences, not lines. The file is written aside and renamed when it is
    whole; memory does not grow with the input.

    Args:
        quoting: of tables, see `fastadv.data.sources.tables.is_quoted`.

    Returns:
        num_sentences, hidden_size (of a vector), output, lines (what became of every line, in words), doubts (reasons
        to look at the input again, a line each) and sentences_per_s.

    Raises:
        UserError: an unknown format, an input that gives no sentence, or a model whose vectors are not finite.
    """
    target = check_output(output_path)
    report = LineReport()
    sentences = iterate_sentences(input_path, field=field, split=split, report=report, quoting=quoting)
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    num_sentences = 0
    rows_type = _NpyRows if target.suffix == ".npy" else _ParquetRows
    with counting_tokens(report), written_aside(target) as aside, Bar(unit="text", disable=not progress) as bar:
        with closing(rows_type(aside, encoder.vector_size)) as rows:
            while window := list(itertools.islice(sentences, _WINDOW)):
                vectors = encoder.encode_texts(window, batch_size=batch_size, on_batch=bar.update)
                _check_finite(vectors, window, num_sentences)
                rows.write(window, vectors)
                num_sentences += len(window)
    return {
        "num_sentences": num_sentences,
        "hidden_size": encoder.vector_size,
        "output": str(target),
        "lines": report.summary(),
        "doubts": report.doubts(),
        "sentences_per_s": num_sentences / max(time.perf_counter() - started, 1e-9),
    }


def _check_finite(vectors: np.ndarray, texts: list[str], num_before: int) -> None:
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        at = int(is_finite.argmin())
        raise UserError(
            f"the model's vector of sentence {num_before + at + 1}, {texts[at][:60]!r}, is not finite: "
            "one of its weights is not, or its states leave the range of their type"
        )


class _NpyRows:
    """A .npy file whose number of rows is known only at its end. Its header has room for any, and is written twice."""

    def __init__(self, path: Path, vector_size: int):
        self.file, self.num_rows, self.vector_size = open(path, "wb"), 0, vector_size
        self._write_header()

    def _write_header(self) -> None:
        shape = (self.num_rows, self.vector_size)
        write_array_header_1_0(self.file, {"descr": "<f4", "fortran_order": False, "shape": shape})

    def write(self, texts: list[str], vectors: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        self.num_rows += len(vectors)

    def close(self) -> None:
        self.file.seek(0)
        self._write_header()
        self.file.close()


class _ParquetRows:
    """A .parquet file with one row group a window."""

    def __init__(self, path: Path, vector_size: int):
        columns = [("text", pa.string()), ("vector", pa.list_(pa.float32(), vector_size))]
        self.writer = pq.ParquetWriter(path, pa.schema(columns))

    def write(self, texts: list[str], vectors: np.ndarray) -> None:
        rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        self.writer.write_table(pa.Table.from_arrays([pa.array(texts), rows], schema=self.writer.schema))

    def close(self) -> None:
        self.writer.close()
