"""Pairs of sentences with a human similarity score: SentEval's own files, and a user's table or JSON lines.

Files are read under the rules of `fastadv.data`, but nothing is skipped: whatever is wrong with a file is a
:class:`UserError` that names the file, the row and, where there is one, the column.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, List, Tuple

from fastadv.data.sources.compressed import kind_of
from fastadv.data.sources.find import is_named_readable, placed_records
from fastadv.data.sources.first_fault import FirstFault
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, iterate_lines
from fastadv.errors import UserError

COLUMNS = ("sentence1", "sentence2", "score")

STS_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")

_STS_BENCHMARK_FILES = {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"}
_SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}

_TYPES = "sentence1 and sentence2 are text, score a number"


class NotThere(UserError):
    """A set of which the folder has no file."""


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
        raise NotThere(f"{year} is not there: no STS.input.*.txt in {year_folder} (SentEval layout expected)")
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
    for line, place in _rows(path, f"STS-B {split}"):
        cells = _cells(line, 7, place)
        pairs.append(cells[5], cells[6], _score(cells[4], place))
    return _not_empty(pairs, path)


def read_sick(folder: str | Path, split: str) -> ScoredPairs:
    """SICK-R from ``SICK``: a header, then tab-separated id, two sentences, relatedness 1-5, entailment label."""
    path = Path(folder) / "SICK" / _SICK_FILES[split]
    pairs = ScoredPairs()
    for row, (line, place) in enumerate(_rows(path, f"SICK-R {split}"), start=1):
        cells = _cells(line, 4, place)
        if row > 1:
            pairs.append(cells[1], cells[2], _score(cells[3], place))
    return _not_empty(pairs, path)


def read_scored_pairs(path: str | Path, quoting: str = "auto") -> ScoredPairs:
    """A user's file of scored pairs, any scale of scores.

    Args:
        path: ``.csv``, ``.tsv`` or ``.jsonl``, plain or ``.gz``, or ``.parquet``, with columns (or fields)
            ``sentence1``, ``sentence2`` and ``score`` in any order and beside any others. Empty lines are passed over.
        quoting: of a table, see `fastadv.data.sources.tables.is_quoted`.
    """
    path, pairs = Path(path), ScoredPairs()
    if not is_named_readable(path) or kind_of(path) == ".txt":
        raise UserError(
            f"{path} is no file of scored pairs: expected the name of a .csv, .tsv or .jsonl file, plain or .gz, "
            "or of a .parquet file"
        )
    report = FirstFault(path, _TYPES)
    records = placed_records(path, COLUMNS, report, MAX_BYTES_PER_LINE, ("score",), quoting)
    for (first, second, score), where in records:
        report.num_sentences += 1
        pairs.append(first, second, _score(score, f"{path.with_name(where)}, column score"))
    report.say("read", str(path))
    return _not_empty(pairs, path)


def _append_sts_file(pairs: ScoredPairs, input_path: Path, score_path: Path) -> None:
    scores = list(_rows(score_path, f"the scores of {input_path.name}"))
    lines = list(_rows(input_path, input_path.name))
    if len(scores) != len(lines):
        raise UserError(f"{input_path} has {len(lines)} rows, but {score_path} has {len(scores)}: they must agree")
    for (line, place), (score, score_place) in zip(lines, scores):
        if score.strip():
            cells = _cells(line, 2, place)
            pairs.append(cells[0], cells[1], _score(score, score_place))


def _rows(path: Path, what: str) -> Iterator[Tuple[str, str]]:
    """Every line, blank ones too, with its place."""
    if not path.is_file():
        raise NotThere(f"{what} is not there: no file {path}")
    lines = iterate_lines(path, FirstFault(path, _TYPES), keeps_blank=True)
    return ((line, str(path.with_name(where))) for line, where in lines)


def _cells(line: str, at_least: int, place: str) -> List[str]:
    cells = line.split("\t")
    if len(cells) < at_least:
        raise UserError(f"{place}: {len(cells)} tab-separated columns, at least {at_least} are needed")
    return cells


def _score(text: str, place: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{place}: the score must be a finite number, got {text!r}")
    return score


def _not_empty(pairs: ScoredPairs, path: Path) -> ScoredPairs:
    if not pairs:
        raise UserError(f"{path} holds no scored pair")
    return pairs
