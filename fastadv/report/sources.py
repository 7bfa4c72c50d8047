"""What a folder holds for the report: a run, an evaluation, attacks, a geometry, or several of them."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from fastadv.errors import UserError
from fastadv.evaluation.text.rows import read_rows
from fastadv.files.json_file import read_json
from fastadv.report.records import (
    EmbeddingAttack,
    Evaluation,
    Geometry,
    TextAttack,
    read_embedding_attack,
    read_evaluation,
    read_geometry,
    read_text_attack,
)
from fastadv.report.run_record import RunRecord, num_unread_lines, read_run

FILES = ("metrics.jsonl", "results.json", "evaluation.json", "attack.json", "text-attack.json", "geometry.json")
"""any of them makes a folder one that can be reported on"""

_RUN_FILES = ("config.yaml", "metrics.jsonl", "results.json")
_NO_FILE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
_LARGEST_FILE = 256 * 2**20
"""bytes; what these commands write is a thousandth of it"""


@dataclass
class Source:
    """One folder of the report, under the name that tells it from the others."""

    folder: Path
    name: str
    run: Optional[RunRecord] = None
    evaluation: Optional[Evaluation] = None
    embedding_attacks: Dict[str, EmbeddingAttack] = field(default_factory=dict)
    """by where in the folder: "" is the folder itself"""
    text_attacks: Dict[str, TextAttack] = field(default_factory=dict)
    geometries: Dict[str, Geometry] = field(default_factory=dict)
    files: List[Path] = field(default_factory=list)
    """what was read"""
    notes: List[str] = field(default_factory=list)
    """what could not be read, and why"""


def find_files(folder: str | Path) -> List[Path]:
    """The files of ``folder`` that a report reads: its own, and those of an evaluation's parts.

    Raises:
        UserError: no such folder, or none of these files.
    """
    path = Path(folder).expanduser()
    try:
        if not path.is_dir():
            raise UserError(f"{str(folder)!r} is no folder; expected a run's, an evaluation's or an attack's")
        found = [path / name for name in ("config.yaml", *FILES) if (path / name).is_file()]
        if path / "evaluation.json" in found:
            parts = sorted(one for one in [*path.glob("*/*.json"), *path.glob("*/*/*.json")] if one.name in FILES[3:])
            found += parts
    except (OSError, ValueError) as error:
        raise UserError(f"{str(folder)!r}: {error}") from error
    if not any(one.name in FILES for one in found):
        raise UserError(f"{str(folder)!r} holds nothing to report on; expected at least one of {', '.join(FILES)}")
    return found


def read_sources(folders: Sequence[str | Path]) -> List[Source]:
    """Every folder, in the order given; what is damaged is a note of its source.

    Raises:
        UserError: a folder given twice, one of which nothing can be read, or what `find_files` finds.
    """
    resolved = [str(Path(folder).expanduser().resolve()) for folder in folders]
    for i, folder in enumerate(resolved):
        if folder in resolved[:i]:
            raise UserError(f"the folder {str(folders[i])!r} is given twice; expected each once")
    return [read_source(folder, name) for folder, name in zip(folders, _names(resolved))]


def _names(folders: Sequence[str]) -> List[str]:
    """The last part of each path, with as many before it as tell it from the others'."""
    parts = [Path(folder).parts for folder in folders]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(own[-length:]) for own, length in zip(parts, lengths)]
        grown = [n + (names.count(name) > 1 and n < len(own)) for name, n, own in zip(names, lengths, parts)]
        if grown == lengths:
            return names
        lengths = grown


def read_source(folder: str | Path, name: str) -> Source:
    """One folder under ``name``."""
    path = Path(folder).expanduser()
    files = find_files(path)
    source = Source(path, name, files=files)
    _read_run(source)
    for file in files:
        if file.name not in _RUN_FILES and file.name != "config.yaml":
            _read_json(source, file)
    known = (source.run, source.evaluation, source.embedding_attacks, source.text_attacks, source.geometries)
    if not any(known):
        why = f": {source.notes[0]}" if source.notes else ""
        raise UserError(f"{str(folder)!r} holds nothing that can be read{why}")
    return source


def _read_run(source: Source) -> None:
    present = [file.name for file in source.files if file.parent == source.folder and file.name in _RUN_FILES]
    if not present or present == ["config.yaml"]:
        return
    run = read_run(source.folder)
    if run.config_text and not run.config:
        source.notes.append("config.yaml could not be read as YAML with names and values")
    if "results.json" in present and run.results is None:
        source.notes.append("results.json is not what a run leaves")
    unread = num_unread_lines(source.folder / "metrics.jsonl")
    if unread:
        source.notes.append(f"metrics.jsonl: {unread:,} line{'s' * (unread > 1)} could not be read")
    # A run that has just begun has logged nothing: it is one all the same.
    has_begun = "metrics.jsonl" in present and not unread
    if has_begun or run.series or run.results or run.config:
        source.run = run


def _read_json(source: Source, file: Path) -> None:
    where = os.path.relpath(file, source.folder)
    place = os.path.dirname(where)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"larger than {_LARGEST_FILE // 2**20} MiB")
        found = read_json(file)
        if file.name == "evaluation.json":
            source.evaluation = read_evaluation(found)
        elif file.name == "attack.json":
            source.embedding_attacks[place] = read_embedding_attack(found)
        elif file.name == "text-attack.json":
            source.text_attacks[place] = _with_rows(read_text_attack(found), file.parent, source)
        elif file.name == "geometry.json":
            source.geometries[place] = read_geometry(found)
    except _NO_FILE as error:
        source.notes.append(f"{where} could not be read: {_words(error)}")


def _with_rows(attack: TextAttack, folder: Path, source: Source) -> TextAttack:
    """The rows that are there; those that are not are a note."""
    from fastadv.evaluation.text.run import rows_files

    rows = {}
    for name, file in zip((model.name for model in attack.models), rows_files(folder, [m.name for m in attack.models])):
        if not file.is_file():
            source.notes.append(f"{os.path.relpath(file, source.folder)} is not there: no texts of {name} are shown")
            continue
        try:
            rows[name] = read_rows(file)
        except (UserError, OSError, ValueError) as error:
            source.notes.append(_words(error))
    return replace(attack, rows=rows)


def _words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    return " ".join(str(error).split())[:300] or type(error).__name__
