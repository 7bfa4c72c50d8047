"""What an arm of the sentence study leaves: ``measured.json`` (numbers and facts) and ``measured.npz`` (a value a row).

They hold no text and are small, so that arms of several machines can be put together. Values of rows, and of statistics
over resamples, are kept as 16-bit steps between the lowest and the highest: an error of 1/131,000 of their range.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from fastadv.errors import UserError
from fastadv.evaluation.suite.numbers import Measured, Quantity, resample_seed, spearman_draws
from fastadv.evaluation.text_report.report import json_ready
from fastadv.files.atomic_file import written_aside

FORMAT = 1


def at_words(max_words: int) -> str:
    """The metric of success by changes of few words, beside that of any change, which comes near 100 %."""
    return f"attack success, ≤ {max_words} word{'s' * (max_words > 1)}"


AT_TWO_WORDS = at_words(2)

_STEPS = 65_000
_MISSING = 65_535
_ARRAYS = ("rows", "draws")


@dataclass(frozen=True)
class Record:
    """What one arm with one seed measured."""

    name: str
    seed: int
    measured: Dict[Quantity, Measured]
    facts: Dict[str, Any] = field(default_factory=dict)
    """``sizes``, ``settings``, ``steps``, ``train_cpu_s``, ``cpu_s_a_step``, ``measure_cpu_s`` by part, ``text`` by
    attack, ``missing`` (part → why), ``machine``"""

    @property
    def model(self) -> str:
        """What the measured values go by."""
        return model_name(self.name, self.seed)


def model_name(name: str, seed: int) -> str:
    return f"{name}#{seed}"


def without_pairs(measured: Measured, seed: int = 0) -> Measured:
    """The same with Spearman's values over resamples in place of the pairs: what differences need, in less room, and
    without the human scores."""
    if measured.ranked is None:
        return measured
    (draws,) = spearman_draws(measured.ranked[None], resample_seed(measured.quantity, seed))
    return replace(measured, ranked=None, draws=draws)


def write_record(folder: Path, record: Record) -> None:
    """Both files, ``measured.json`` last: where it is there, the arm is done."""
    entries, arrays = [], {}
    for number, (quantity, one) in enumerate(record.measured.items()):
        entry: Dict[str, Any] = {"quantity": list(quantity), "value": one.value, "low": one.low, "high": one.high}
        entry.update(num=one.num, why=one.why, is_binary=one.is_binary, over=list(one.over))
        for name in _ARRAYS:
            values = getattr(one, name)
            if values is not None:
                arrays[f"{name}-{number}"], entry[f"{name}_range"] = packed(values)
        entries.append(entry)
    folder.mkdir(parents=True, exist_ok=True)
    with written_aside(folder / "measured.npz") as aside, aside.open("wb") as file:
        np.savez_compressed(file, **arrays)
    values = {"format": FORMAT, "name": record.name, "seed": record.seed, "facts": record.facts, "measured": entries}
    with written_aside(folder / "measured.json") as aside:
        aside.write_text(json.dumps(json_ready(values), allow_nan=False) + "\n", encoding="utf-8")


def read_record(folder: Path) -> Optional[Record]:
    """What `write_record` left; None where it is not there.

    Raises:
        UserError: files that are damaged, or of another format.
    """
    if not (folder / "measured.json").exists():
        return None
    try:
        values = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise UserError(f"{folder} has format {values['format']}; expected {FORMAT}")
        model, measured = model_name(values["name"], values["seed"]), {}
        with np.load(folder / "measured.npz", allow_pickle=False) as arrays:
            for number, entry in enumerate(values["measured"]):
                kept = {
                    n: unpacked(arrays[f"{n}-{number}"], entry[f"{n}_range"]) for n in _ARRAYS if f"{n}_range" in entry
                }
                quantity = Quantity.of(entry["quantity"])
                plain = {n: entry[n] for n in ("value", "low", "high", "num", "why", "is_binary")}
                measured[quantity] = Measured(quantity, model, **plain, over=tuple(entry["over"]), **kept)
        return Record(values["name"], values["seed"], measured, values["facts"])
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{folder}: not what an arm leaves ({error}); remove the folder to run it again") from error


def packed(values: np.ndarray) -> tuple[np.ndarray, List[float]]:
    """uint16 of the same shape, and the range that they are steps of; NaN stays NaN."""
    values = np.asarray(values, dtype=np.float64)
    is_known = np.isfinite(values)
    low, high = (float(values[is_known].min()), float(values[is_known].max())) if is_known.any() else (0.0, 0.0)
    width = high - low if high > low else 1.0
    steps = np.rint((np.where(is_known, values, low) - low) / width * _STEPS)
    return np.where(is_known, steps, _MISSING).astype(np.uint16), [low, high]


def unpacked(steps: np.ndarray, of_range: Sequence[float]) -> np.ndarray:
    """float64; the ends of the range come back exactly."""
    low, high = of_range
    share = steps.astype(np.float64) / _STEPS
    return np.where(steps == _MISSING, np.nan, low * (1 - share) + high * share)


def read_records(out: Path) -> Dict[tuple[str, int], Record]:
    """(name, seed) → what the study's folder has of it.

    Raises:
        UserError: arms of different sizes, whose rows are not the same.
    """
    found: Dict[tuple[str, int], Record] = {}
    sizes: Mapping[str, Any] = {}
    for path in sorted(out.glob("*/measured.json")):
        record = read_record(path.parent)
        sizes = sizes or record.facts["sizes"]
        if record.facts["sizes"] != sizes:
            raise UserError(
                f"{path.parent} was measured with other sizes than its neighbours; keep them in two folders"
            )
        found[record.name, record.seed] = record
    return found
