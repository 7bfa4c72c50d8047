"""``fastadv evaluate all``: every part that models and data allow, each on its own, into one folder.

A part that is done is a file in ``parts/``, named by a hash of all that has a say in it: the models' weights, the data,
the settings and the libraries. So a stopped evaluation goes on, and what has changed is measured again, never mixed.
Within a part, its own command goes on from its own rows.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from fastadv.config.commands import Encoding
from fastadv.errors import UserError
from fastadv.evaluation.model_names import plain_name
from fastadv.evaluation.suite.kept import load_part, save_part
from fastadv.evaluation.suite.models import SuiteModel, examine, find_models, systems_of
from fastadv.evaluation.suite.numbers import Measured, all_numbers
from fastadv.evaluation.suite.parts import Found, Part, PartData, those_that_can
from fastadv.evaluation.suite.report import write_evaluation
from fastadv.evaluation.suite.schema import FORMAT, System
from fastadv.evaluation.versions import versions
from fastadv.files.disk import check_folder
from fastadv.files.hashes import digest_of
from fastadv.files.json_file import json_ready

DONE, PARTIAL, NOT_RUN = "done", "partial", "n/a"

_LIBRARIES = ("scikit-learn", "scipy", "textattack", "sentence-transformers")


@dataclass(frozen=True)
class Suite:
    """What ``fastadv evaluate all`` runs.

    Args:
        models: ``[NAME=]DIR[,DIR...]`` each: a system and its seeds; the first is the one that others are compared
            with.
        parts: as `fastadv.evaluation.suite.choice.choose_parts` gives them.
        named: names of the parts that were asked for by name: those that cannot be run make the status 1.
        encoding: how all encoders are opened; by default each as its own files say.
        label_names: as `find_models` has them.

    Raises:
        UserError: models that are not there or are given twice, or an ``out`` that something else lies in.
    """

    models: Sequence[str]
    parts: Sequence[Part]
    out: Path
    seed: int = 0
    named: Tuple[str, ...] = ()
    encoding: Encoding = Encoding()
    label_names: Optional[Tuple[str, ...]] = None

    def __post_init__(self):
        _check_out(self.out)
        self.found_models()

    @property
    def systems(self) -> List[System]:
        """In the order given."""
        return systems_of(self.models)

    def found_models(self) -> List[SuiteModel]:
        """All models, without their weights."""
        return find_models(self.systems, self.encoding, self.label_names)

    def plan(self) -> Tuple[List[str], bool]:
        """A line a part: what it would measure, or why it cannot; and whether one that was named cannot."""
        models, lines, is_missing = self.found_models(), [], False
        for system in self.systems:
            kinds = [f"{model.model} ({model.kind})" for model in models if model.model in system.models]
            lines.append(f"{system.name}: {', '.join(kinds)}")
        lines += [f"{model.name}: n/a: {_line(model.why)}" for model in models if model.why is not None]
        usable = [model for model in models if model.why is None]
        for part in self.parts:
            try:
                data = part.read(usable)
                _, whys = those_that_can(part, usable, data)
            except UserError as error:
                lines.append(f"{part.name}: n/a: {_line(error)}")
                is_missing |= part.name in self.named
                continue
            missing = {**data.missing, **{model.name: whys.get(model.model) for model in usable}}
            missing = {name: why for name, why in missing.items() if why is not None}
            lines += [f"{part.name}: {data.words}", *(f"{part.name}, {n}: n/a: {_line(w)}" for n, w in missing.items())]
            notes = {model.name: data.notes.get(model.model) for model in usable if model.model not in whys}
            lines += [f"{part.name}, {name}: {note}" for name, note in notes.items() if note is not None]
            is_missing |= part.name in self.named and bool(missing)
        return lines, is_missing or len(usable) < len(models)

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
        known = {model.model: model for model in models}
        described = [known[model].described(system.name) for system in self.systems for model in system.models]
        record: Dict[str, Any] = {"models": described, "parts": {}, "warnings": broken}
        measured: List[Measured] = []
        whys = {(part.name, model.model): model.why for part in self.parts for model in models if model.why}
        notes: Dict[Tuple[str, str], str] = {}
        started, evaluation = time.monotonic(), {}
        for number, part in enumerate(self.parts, start=1):
            entry, found, of_kinds = self._part(part, models, progress)
            record["parts"][part.name] = entry
            measured += found.measured
            whys.update({(part.name, model): why for model, why in found.whys.items()})
            notes.update({(part.name, model): note for model, note in of_kinds.items()})
            record["warnings"] = [*record["warnings"], *(f"{part.name}: {line}" for line in found.warnings)]
            evaluation = self._evaluation(record, measured, whys, notes)
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
        is_not_whole = any(evaluation["parts"][name]["status"] != DONE for name in self.named)
        return is_not_whole or evaluation["num_broken_models"] > 0

    def _part(self, part: Part, models: Sequence[SuiteModel], progress: bool) -> Tuple[dict, Found, Dict[str, str]]:
        """Its entry in ``evaluation.json``, what it measured, and `PartData.notes`."""
        usable = [model for model in models if model.why is None]
        try:
            if not usable:
                raise UserError("no model works")
            data = part.read(usable)
            those_that_can(part, usable, data)
            folder = self.out / part.name
            path = self.out / "parts" / f"{plain_name(part.name)}-{self._digest(part, models, data)}.npz"
            kept = load_part(path, folder)
            if kept is None:
                started = time.monotonic()
                found = part.measure(data, usable, folder, progress)
                seconds = time.monotonic() - started
                save_part(path, found, seconds, folder)
            else:
                found, seconds = kept
        except UserError as error:
            entry = {"status": NOT_RUN, "why": _line(error), "files": [], "protocol": {}, "findings": []}
            return {**entry, "seed": part.seed, "seconds": 0.0}, Found([], [], {}), {}
        if found.baseline not in (None, models[0].name):
            found.warnings.append(
                f"{models[0].name}, the first model, has nothing here: the files in {part.name}/ and their controls "
                f"compare with {found.baseline} in its place"
            )
        has_value = [one.value is not None for one in found.measured]
        reasons = [f"{name}: {why}" for name, why in data.missing.items()]
        reasons += [f"{model}: {why}" for model, why in found.whys.items()]
        reasons += [f"{model.name}: {model.why}" for model in models if model.why is not None]
        reasons += [f"{one.quantity.set}: {one.why}" for one in found.measured if one.value is None and one.why]
        status = NOT_RUN if not any(has_value) else DONE if all(has_value) and not reasons else PARTIAL
        entry = {
            "status": status,
            "why": _line(reasons[0]) if reasons else None,
            "files": [f"{part.name}/{file}" for file in found.files],
            "protocol": json_ready({**found.protocol, "data": data.described()}),
            "findings": found.findings,
            "seed": part.seed,
            "seconds": round(seconds, 3),
        }
        return entry, found, data.notes

    def _digest(self, part: Part, models: Sequence[SuiteModel], data: PartData) -> str:
        of_models = [[model.model, model.name, model.key] for model in models]
        settings = json_ready(part.settings())
        return digest_of(
            [FORMAT, part.name, part.version, settings, data.sha256, data.beside, data.missing, of_models, _versions()]
        )

    def _evaluation(
        self,
        record: dict,
        measured: Sequence[Measured],
        whys: Dict[Tuple[str, str], str],
        notes: Dict[Tuple[str, str], str],
    ) -> dict:
        found = all_numbers(self.systems, measured, self.seed, {**notes, **whys})
        for row in found.numbers:
            of_part = record["parts"][row["part"]]["seed"]
            row["seed"] = self.seed if of_part is None else of_part
        return {
            "format": FORMAT,
            "systems": [{"name": system.name, "models": list(system.models)} for system in self.systems],
            "models": record["models"],
            "parts": record["parts"],
            "quantities": found.quantities,
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
    return versions(*_LIBRARIES)


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {str(out)!r} is a file; expected a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "parts").is_dir():
        raise UserError(f"--out {str(out)!r} holds something other than an evaluation; give a new or empty folder")
    check_folder(out, f"--out {str(out)!r}")


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
