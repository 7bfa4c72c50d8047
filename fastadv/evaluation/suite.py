"""``fastadv evaluate all``: every part that models and data allow, each on its own, into one folder.

A part that is done is a file in ``parts/``, named by a hash of all that has a say in it: the models' weights, the data,
the settings and the libraries. So a stopped evaluation goes on, and what has changed is measured again, never mixed.
Within a part, its own command goes on from its own rows.
"""

import json
import time
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from fastadv.atomic_file import written_aside
from fastadv.errors import UserError
from fastadv.evaluation.attack_report import versions
from fastadv.evaluation.suite_attacks import plain_name
from fastadv.evaluation.suite_models import SuiteModel, examine, find_models, systems_of
from fastadv.evaluation.suite_numbers import Measured, Quantity, System, all_numbers
from fastadv.evaluation.suite_parts import Found, Part, PartData
from fastadv.evaluation.suite_report import write_evaluation
from fastadv.evaluation.text_attack_report import json_ready
from fastadv.evaluation.vector_cache import digest_of

FORMAT = 1

DONE, PARTIAL, NOT_RUN = "done", "partial", "n/a"

_ARRAYS = ("rows", "ranked", "draws")
"""of `Measured`"""

_LIBRARIES = ("scikit-learn", "scipy", "textattack", "sentence-transformers")


@dataclass(frozen=True)
class Suite:
    """What ``fastadv evaluate all`` runs.

    Args:
        models: ``[NAME=]DIR[,DIR...]`` each: a system and its seeds; the first is the one that others are compared
            with.
        parts: `suite_parts` and `suite_attacks` have them.
        named: names of the parts that were asked for by name: those that cannot be run make the status 1.

    Raises:
        UserError: models that are not there or are given twice, or an ``out`` that something else lies in.
    """

    models: Sequence[str]
    parts: Sequence[Part]
    out: Path
    seed: int = 0
    pooling: Optional[str] = None
    max_length: Optional[int] = None
    named: Tuple[str, ...] = ()

    def __post_init__(self):
        _check_out(self.out)
        self.found_models()

    @property
    def systems(self) -> List[System]:
        """In the order given."""
        return systems_of(self.models)

    def found_models(self) -> List[SuiteModel]:
        """All models, without their weights."""
        return find_models(self.systems, self.pooling, self.max_length)

    def plan(self) -> Tuple[List[str], bool]:
        """A line a part: what it would measure, or why it cannot; and whether one that was named cannot."""
        models, lines, is_missing = self.found_models(), [], False
        for system in self.systems:
            kinds = {m.model: "classifier" if m.is_classifier else "encoder" for m in models}
            lines.append(f"{system.name}: {', '.join(f'{model} ({kinds[model]})' for model in system.models)}")
        for part in self.parts:
            try:
                data, why = part.read(models), part.applies(models)
            except UserError as error:
                data, why = None, str(error)
            if why is not None:
                lines.append(f"{part.name}: n/a: {' '.join(why.split())}")
            else:
                lines.append(f"{part.name}: {data.words}")
                lines += [f"{part.name}, {name}: n/a: {' '.join(why.split())}" for name, why in data.missing.items()]
            is_missing |= part.name in self.named and (why is not None or bool(data.missing))
        return lines, is_missing

    def run(self, progress: bool = False, say: Callable[[str], Any] = lambda line: None) -> dict:
        """Measures every part, and writes ``evaluation.json`` and its tables anew after each.

        Args:
            progress: show the bars of the parts.
            say: is given a line a part.

        Returns:
            what is in ``evaluation.json``.
        """
        (self.out / "parts").mkdir(parents=True, exist_ok=True)
        models = [examine(model) for model in self.found_models()]
        broken = [f"{model.name}: {model.why}" for model in models if model.why is not None]
        for line in broken:
            say(f"n/a: {line}")
        record: Dict[str, Any] = {"parts": {}, "warnings": broken}
        measured: List[Measured] = []
        whys = {(part.name, model.model): model.why for part in self.parts for model in models if model.why}
        started, evaluation = time.monotonic(), {}
        for number, part in enumerate(self.parts, start=1):
            entry, found = self._part(part, models, progress)
            record["parts"][part.name] = entry
            measured += found.measured
            whys.update({(part.name, model): why for model, why in found.whys.items()})
            record["warnings"] = [*record["warnings"], *(f"{part.name}: {line}" for line in found.warnings)]
            evaluation = self._evaluation(record, measured, whys)
            write_evaluation(self.out, evaluation)
            elapsed = time.monotonic() - started
            left = elapsed / number * (len(self.parts) - number)
            reason = "" if entry["why"] is None else f": {entry['why']}"
            say(
                f"[{number}/{len(self.parts)}] {part.name} {entry['status']}{reason} "
                f"({_time(elapsed)} so far, about {_time(left)} left)"
            )
        return evaluation

    def is_missing(self, evaluation: dict) -> bool:
        """Whether something that was named, a part or a model, has no number."""
        has_no_value = any(row["value"] is None and row["part"] in self.named for row in evaluation["numbers"])
        is_not_whole = any(evaluation["parts"][name]["status"] != DONE for name in self.named)
        return has_no_value or is_not_whole or evaluation["num_broken_models"] > 0

    def _part(self, part: Part, models: Sequence[SuiteModel], progress: bool) -> Tuple[dict, Found]:
        usable = [model for model in models if model.why is None]
        nothing = Found([], [], {})
        try:
            if not usable:
                raise UserError("no model works")
            data = part.read(usable)
            why = part.applies(usable)
            if why is not None:
                raise UserError(why)
            path = self.out / "parts" / f"{plain_name(part.name)}-{self._digest(part, models, data)}.npz"
            kept = _load(path)
            if kept is None:
                started = time.monotonic()
                found = part.measure(data, usable, self.out / part.name, progress)
                seconds = time.monotonic() - started
                _save(path, found, seconds)
            else:
                found, seconds = kept
        except UserError as error:
            why = " ".join(str(error).split())
            return {"status": NOT_RUN, "why": why, "files": [], "protocol": {}, "seconds": 0.0}, nothing
        has_value = [one.value is not None for one in found.measured]
        reasons = [f"{name}: {why}" for name, why in data.missing.items()]
        reasons += [f"{model}: {why}" for model, why in found.whys.items()]
        reasons += [f"{model.name}: {model.why}" for model in models if model.why is not None]
        reasons += [f"{one.quantity.set}: {one.why}" for one in found.measured if one.value is None and one.why]
        status = NOT_RUN if not any(has_value) else DONE if all(has_value) and not reasons else PARTIAL
        entry = {
            "status": status,
            "why": " ".join(reasons[0].split()) if reasons else None,
            "files": [f"{part.name}/{file}" for file in found.files],
            "protocol": json_ready({**found.protocol, "data": data.described()}),
            "seconds": round(seconds, 3),
        }
        return entry, found

    def _digest(self, part: Part, models: Sequence[SuiteModel], data: PartData) -> str:
        of_models = [[model.model, model.key] for model in models]
        settings = json_ready(part.settings())
        return digest_of([FORMAT, part.name, part.version, settings, data.sha256, data.missing, of_models, _versions()])

    def _evaluation(self, record: dict, measured: Sequence[Measured], whys: Dict[Tuple[str, str], str]) -> dict:
        found = all_numbers(self.systems, measured, self.seed, whys)
        return {
            "format": FORMAT,
            "systems": [{"name": system.name, "models": list(system.models)} for system in self.systems],
            "parts": record["parts"],
            "numbers": json_ready(found.numbers),
            "differences": json_ready(found.differences),
            "num_comparisons": len(found.differences),
            "num_broken_models": len({model for _, model in whys if self._is_broken(model, whys)}),
            "warnings": record["warnings"],
            "versions": _versions(),
            "seed": self.seed,
        }

    def _is_broken(self, model: str, whys: Dict[Tuple[str, str], str]) -> bool:
        return all((part.name, model) in whys for part in self.parts)


def _versions() -> Dict[str, Optional[str]]:
    from fastadv.evaluation.text_attack_report import version_of

    return {**versions(), **{name: version_of(name) for name in _LIBRARIES}}


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {str(out)!r} is a file; expected a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "parts").is_dir():
        raise UserError(f"--out {str(out)!r} holds something other than an evaluation; give a new or empty folder")


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _save(path: Path, found: Found, seconds: float) -> None:
    """Numbers as JSON and arrays beside it, in one file without pickle."""
    arrays, entries = {}, []
    for number, one in enumerate(found.measured):
        entry = {f.name: getattr(one, f.name) for f in fields(one) if f.name not in _ARRAYS}
        entries.append({**entry, "quantity": list(one.quantity), "over": list(one.over)})
        for name in _ARRAYS:
            if getattr(one, name) is not None:
                arrays[f"{name}-{number}"] = getattr(one, name)
    record = {name: getattr(found, name) for name in ("files", "protocol", "whys", "warnings")}
    text = json.dumps({**record, "measured": entries, "seconds": seconds}, default=json_ready)
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez(file, record=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)


def _load(path: Path) -> Optional[Tuple[Found, float]]:
    """What `_save` kept; None where it is not there, or damaged: then it is measured again."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            record = json.loads(arrays["record"].tobytes())
            measured = []
            for number, entry in enumerate(record.pop("measured")):
                of_one = {n: arrays[f"{n}-{number}"] for n in _ARRAYS if f"{n}-{number}" in arrays.files}
                entry["quantity"], entry["over"] = Quantity(*entry["quantity"]), tuple(entry["over"])
                measured.append(Measured(**entry, **of_one))
        return Found(measured, record["files"], record["protocol"], record["whys"], record["warnings"]), record[
            "seconds"
        ]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
