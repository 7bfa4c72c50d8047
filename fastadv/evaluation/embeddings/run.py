"""An attack on saved classifiers with its files: ``attack.json``, ``attack.csv``, ``attack.png`` and finished parts.

Every finished part (a model's clean pass, each radius, its checks) is a file in ``parts/``, named by a hash of all that
has a say in it: weights, texts, settings, and the radii before it. So a stopped attack goes on, a longer list of radii
reuses what is there, and a changed setting finds nothing to mix with.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np

from fastadv.data.labelled.find import LabelledTexts
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.chart import attack_curves_png
from fastadv.evaluation.embeddings.checks import Check, check_attack
from fastadv.evaluation.embeddings.classifier_attack import (
    DEFAULT_BATCH_SIZE,
    ClassifierUnderAttack,
    attack_classifier,
    check_transfer,
)
from fastadv.evaluation.embeddings.parts import FolderOfParts, check_out, fingerprint
from fastadv.evaluation.embeddings.report import report, versions, write_csv
from fastadv.evaluation.embeddings.settings import ONE_STEP, AttackSettings
from fastadv.evaluation.model_names import names_of
from fastadv.evaluation.text.attacked_data import AttackedData, hash_of_texts, on_data
from fastadv.files.atomic_file import written_aside


@dataclass(frozen=True)
class AttackOnClassifiers:
    """What every attack on the embeddings of saved classifiers is told."""

    models: Sequence[str]
    """folders of classifiers; with several the first is the one the others are compared with"""
    data: AttackedData
    settings: AttackSettings
    out: str
    """a folder"""
    transfer_from: Optional[str] = None
    """a classifier whose perturbations are tried on every model"""
    perturb_at: str = "embedding"
    max_length: Optional[int] = None
    batch_size: int = DEFAULT_BATCH_SIZE
    names: Optional[Sequence[str]] = None
    """what the models are called in tables; None: `short_names`"""

    def __post_init__(self):
        twice = next((model for model in self.models if list(self.models).count(model) > 1), None)
        if twice is not None:
            raise UserError(f"the model {twice!r} is given twice")
        object.__setattr__(self, "names", names_of(self.models, self.names))

    def check(self) -> None:
        """UserError for what can be found wrong without reading weights or texts."""
        from fastadv.encoder.weights.source import find_model

        check_out(self.out)
        for model in (*self.models, *([self.transfer_from] if self.transfer_from else [])):
            find_model(model).check_max_length(self.max_length)
        self.data.check()

    def load(self, model: str):
        """The classifier of a folder, as it is attacked."""
        from fastadv.encoder.classifier.text_classifier import Classifier

        return Classifier.from_pretrained(model, max_length=self.max_length, perturb_at=self.perturb_at)


@dataclass(frozen=True)
class AttackRun(AttackOnClassifiers):
    """What ``fastadv attack`` runs."""

    has_checks: bool = True

    def describe(self) -> str:
        """What would be done, in a line."""
        settings, data = self.settings, self.data
        some = "all" if data.max_texts is None else f"at most {data.max_texts:,}"
        runs = len(settings.step_sizes) * settings.num_restarts
        transfer = f", and the attack of {self.transfer_from} transferred" if self.transfer_from else ""
        return (
            f"would attack {', '.join(self.models)} on {some} texts of {data.source} ({data.split}) by "
            f"{settings.method}: {settings.norm} radii {', '.join(f'{e:g}' for e in settings.epsilons)}, "
            f"{settings.num_steps} step{'s' * (settings.method not in ONE_STEP)}, {runs} "
            f"run{'s' * (runs > 1)} a radius{transfer}; into {self.out}"
        )

    def run(self, progress: bool = False) -> dict:
        """Attacks all models and writes the files; returns what is in ``attack.json``.

        Raises:
            UserError: what `check` finds, a model without a trained head, labels that it does not know, or a model to
                transfer from that does not fit.
        """
        self.check()
        data, rows = self.data.read()
        out = Path(self.out).expanduser()
        out.mkdir(parents=True, exist_ok=True)
        other = None if self.transfer_from is None else self.load(self.transfer_from)
        other_print = None if other is None else fingerprint(other)
        data_hash = hash_of_texts(data)
        results: Dict[str, ClassifierUnderAttack] = {}
        label_maps, checks, facts = {}, {}, {}
        for name, model in zip(self.names, self.models):
            classifier = self.load(model)
            if other is not None:
                check_transfer(classifier, other)
            print_of_model = fingerprint(classifier)
            parts = FolderOfParts(out / "parts", [print_of_model, other_print, data_hash], self.settings)
            with on_data(model, self.data.source):
                results[name] = attack_classifier(
                    classifier, data, self.settings, other, self.batch_size, progress=progress, parts=parts
                )
            if self.has_checks:
                checks[name] = self._checks(classifier, data, results[name], parts, progress)
            label_maps[name] = classifier.label_map
            facts[name] = {
                "model": model,
                "fingerprint": print_of_model,
                "max_length": classifier.encoder.max_length,
                "labels": list(classifier.label_map.names),
            }
        numbers = report(results, label_maps, checks, seed=self.settings.seed)
        for entry in numbers["models"]:
            entry.update(facts[entry["name"]])
        written = {**self._protocol(data, data_hash, other_print), **numbers}
        self._write(out, written, results, label_maps, rows)
        return written

    def _checks(self, classifier, data, result, parts: "FolderOfParts", progress: bool) -> List[Check]:
        path = parts.path("checks")
        try:
            return [Check(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            pass
        checks = check_attack(classifier, data, result, batch_size=self.batch_size, progress=progress)
        with written_aside(path) as aside:
            aside.write_text(json.dumps([vars(check) for check in checks]) + "\n", encoding="utf-8")
        return checks

    def _protocol(self, data: LabelledTexts, data_hash: str, other_print: Optional[str]) -> dict:
        return {
            "kind": "attack",
            "versions": versions(),
            "protocol": {
                "loss": "cross-entropy of the true class",
                "ball": "a text's real tokens together, absolute radius",
                "dropout": "off",
                "fooled": "wrong at any point that any run meets, at this radius or a smaller one",
                "perturb_at": self.perturb_at,
                "transfer_from": self.transfer_from,
                "transfer_fingerprint": other_print,
            },
            "data": {**vars(self.data), "num_texts": len(data), "hash": data_hash},
        }

    def _write(self, out: Path, written: dict, results, label_maps, rows: np.ndarray) -> None:
        with written_aside(out / "attack.csv") as aside:
            write_csv(aside, results, label_maps, rows.tolist())
        with written_aside(out / "attack.png") as aside:
            attack_curves_png(written, aside)
        with written_aside(out / "attack.json") as aside:
            aside.write_text(json.dumps(written, indent=1, allow_nan=False) + "\n", encoding="utf-8")
