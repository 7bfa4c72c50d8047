"""Pairs of sentences with a human similarity score: SentEval's own files, and a user's CSV, TSV or JSON lines.

Files are UTF-8; ``\\n`` and ``\\r\\n`` end a row and nothing else does. Whatever is wrong with a file is a
:class:`UserError` that names the file and the row, counted from 1.
"""

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from fastadv.errors import UserError

COLUMNS = ("sentence1", "sentence2", "score")

STS_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")

_STS_BENCHMARK_FILES = {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"}
_SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}


@dataclass
class ScoredPairs:
    """``first[i]`` and ``second[i]`` are as similar as ``scores[i]`` says; all three of one length."""

    first: List[str] = field(default_factory=list)
    second: List[str] = field(default_factory=list)
    scores: List[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.scores)

    def append(self, first: str, second: str, score: float) -> None:
        self.first.append(first)
        self.second.append(second)
        self.scores.append(score)


def read_sts_year(folder: str | Path, year: str) -> ScoredPairs:
    """A year of SemEval STS, its files one after the other ("all" setting); pairs without a score are left out.

    Args:
        folder: SentEval's data folder; the year lies in ``STS/<year>-en-test`` as ``STS.input.X.txt`` (two
            sentences, then columns that are ignored) and ``STS.gs.X.txt`` (a score or a blank line).
    """
    year_folder = Path(folder) / "STS" / f"{year}-en-test"
    inputs = sorted(year_folder.glob("STS.input.*.txt"))
    # SemEval 2013's SMT file is not free, so SentEval and every paper after it go without.
    inputs = [path for path in inputs if not (year == "STS13" and path.name == "STS.input.SMT.txt")]
    if not inputs:
        raise UserError(f"{year} is not there: no STS.input.*.txt in {year_folder} (SentEval layout expected)")
    pairs = ScoredPairs()
    for path in inputs:
        _append_sts_file(pairs, path, path.with_name(path.name.replace("STS.input.", "STS.gs.", 1)))
    if not pairs:
        raise UserError(f"{year_folder} holds no scored pair")
    return pairs


def read_sts_benchmark(folder: str | Path, split: str) -> ScoredPairs:
    """STS-B from ``STS/STSBenchmark``: tab-separated without quoting, score column 5, sentences 6 and 7 (from 1)."""
    path = Path(folder) / "STS" / "STSBenchmark" / _STS_BENCHMARK_FILES[split]
    pairs = ScoredPairs()
    for row, line in _rows(path, f"STS-B {split}"):
        cells = _cells(line, 7, path, row)
        pairs.append(cells[5], cells[6], _score(cells[4], path, row))
    return _not_empty(pairs, path)


def read_sick(folder: str | Path, split: str) -> ScoredPairs:
    """SICK-R from ``SICK``: a header, then tab-separated id, two sentences, relatedness 1-5, entailment label."""
    path = Path(folder) / "SICK" / _SICK_FILES[split]
    pairs = ScoredPairs()
    for row, line in _rows(path, f"SICK-R {split}"):
        cells = _cells(line, 4, path, row)
        if row > 1:
            pairs.append(cells[1], cells[2], _score(cells[3], path, row))
    return _not_empty(pairs, path)


def read_scored_pairs(path: str | Path) -> ScoredPairs:
    """A user's file of scored pairs, any scale of scores.

    Args:
        path: ``.csv`` (commas, double quotes around cells that need them) or ``.tsv`` (tabs, no quoting), both with a
            header that names ``sentence1``, ``sentence2`` and ``score`` in any order; or ``.jsonl`` with those fields.
    """
    path = Path(path)
    readers = {".csv": _read_csv, ".tsv": _read_tsv, ".jsonl": _read_jsonl}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"{path} is no file of scored pairs: its name must end in .csv, .tsv or .jsonl")
    return _not_empty(reader(path), path)


def _append_sts_file(pairs: ScoredPairs, input_path: Path, score_path: Path) -> None:
    scores = list(_rows(score_path, f"the scores of {input_path.name}"))
    lines = list(_rows(input_path, input_path.name))
    if len(scores) != len(lines):
        raise UserError(f"{input_path} has {len(lines)} rows, but {score_path} has {len(scores)}: they must agree")
    for (row, line), (_, score) in zip(lines, scores):
        if score.strip():
            cells = _cells(line, 2, input_path, row)
            pairs.append(cells[0], cells[1], _score(score, score_path, row))


def _read_tsv(path: Path) -> ScoredPairs:
    return _from_table(path, ((row, line.split("\t")) for row, line in _rows(path, "the file of scored pairs")))


def _read_csv(path: Path) -> ScoredPairs:
    return _from_table(path, _csv_cells(path))


def _csv_cells(path: Path) -> Iterator[Tuple[int, List[str]]]:
    # A quoted cell may hold line ends, so the reader is fed the whole text with them.
    lines = (line for line in _text(path, "the file of scored pairs").split("\n"))
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}, row {reader.line_num}: not readable as CSV ({error})") from None


def _from_table(path: Path, rows: Iterator[Tuple[int, List[str]]]) -> ScoredPairs:
    """The first row names the columns; rows of blanks are skipped; every other row has as many cells as the header."""
    pairs, header = ScoredPairs(), None
    for row, cells in rows:
        if header is None:
            header = [cell.strip() for cell in cells]
            if any(header.count(name) != 1 for name in COLUMNS):
                raise UserError(f"{path}, row 1: the header must name {', '.join(COLUMNS)} once each, got {header}")
            first, second, score = (header.index(name) for name in COLUMNS)
        elif any(cell.strip() for cell in cells):
            if len(cells) != len(header):
                raise UserError(f"{path}, row {row}: {len(cells)} cells, but the header has {len(header)}")
            pairs.append(cells[first], cells[second], _score(cells[score], path, row))
    return pairs


def _read_jsonl(path: Path) -> ScoredPairs:
    pairs = ScoredPairs()
    for row, line in _rows(path, "the file of scored pairs"):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise UserError(f"{path}, row {row}: not a JSON object") from None
        missing = [name for name in COLUMNS if name not in record] if isinstance(record, dict) else list(COLUMNS)
        if missing:
            raise UserError(f"{path}, row {row}: no field {missing[0]!r}; each row needs {', '.join(COLUMNS)}")
        first, second, score = (record[name] for name in COLUMNS)
        if not isinstance(first, str) or not isinstance(second, str):
            raise UserError(f"{path}, row {row}: sentence1 and sentence2 must be text")
        pairs.append(first, second, _score(score, path, row))
    return pairs


def _text(path: Path, what: str) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{what} is not there: cannot read {path} ({error.strerror})") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, row {row}: bytes that are not UTF-8") from None


def _rows(path: Path, what: str) -> Iterator[Tuple[int, str]]:
    lines = _text(path, what).split("\n")
    if lines[-1] == "":
        lines.pop()
    return ((row, line.removesuffix("\r")) for row, line in enumerate(lines, start=1))


def _cells(line: str, at_least: int, path: Path, row: int) -> List[str]:
    cells = line.split("\t")
    if len(cells) < at_least:
        raise UserError(f"{path}, row {row}: {len(cells)} tab-separated columns, at least {at_least} are needed")
    return cells


def _score(value: object, path: Path, row: int) -> float:
    score: Optional[float] = None
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            score = float(value)
        except (ValueError, OverflowError):
            pass
    if score is None or not math.isfinite(score):
        raise UserError(f"{path}, row {row}: the score must be a finite number, got {value!r}")
    return score


def _not_empty(pairs: ScoredPairs, path: Path) -> ScoredPairs:
    if not pairs:
        raise UserError(f"{path} holds no scored pair")
    return pairs
