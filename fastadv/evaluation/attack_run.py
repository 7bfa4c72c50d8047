"""An attack on saved classifiers with its files: ``attack.json``, ``attack.csv``, ``attack.png`` and finished parts.

Every finished part (a model's clean pass, each radius, its checks) is a file in ``parts/``, named by a hash of all that
has a say in it: weights, texts, settings, and the radii before it. So a stopped attack goes on, a longer list of radii
reuses what is there, and a changed setting finds nothing to mix with.
"""

import hashlib
import json
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from fastadv.atomic_file import written_aside
from fastadv.data.labelled_sources import LABEL, TEXT, LabelledTexts, open_labelled, read_labelled
from fastadv.data.labels import listed
from fastadv.errors import UserError
from fastadv.evaluation.attack_chart import attack_curves_png
from fastadv.evaluation.attack_checks import Check, check_attack
from fastadv.evaluation.attack_report import report, versions, write_csv
from fastadv.evaluation.attack_settings import ONE_STEP, AttackSettings
from fastadv.evaluation.classifier_attack import (
    DEFAULT_BATCH_SIZE,
    ClassifierUnderAttack,
    Part,
    attack_classifier,
    check_transfer,
    with_rows,
)
from fastadv.evaluation.model_names import short_names

# Part of every key: raise it when the same settings would give other numbers.
PARTS_VERSION = 1

FILES = ("attack.json", "attack.csv", "attack.png")
# Of `fastadv.evaluation.reconstruct_run`, which may share the folder.
RECONSTRUCT_FILES = ("reconstruct.json", "reconstruct.csv", "reconstruct.html")


@dataclass(frozen=True)
class AttackedData:
    """Which texts are attacked: a draw without replacement from a labelled source, in its order."""

    source: str
    split: str = "test"
    field: str = TEXT
    label_field: str = LABEL
    pair_field: Optional[str] = None
    max_texts: Optional[int] = 1000
    """None: all"""
    seed: int = 0
    labels: Optional[Tuple[str, ...]] = None
    """names of the classes whose texts are drawn from; None: all"""

    def check(self) -> None:
        """UserError where there is no such source or column; reads no text."""
        open_labelled(self.source, self.label_field, self.field, self.pair_field, self.split)

    def read(self) -> Tuple[LabelledTexts, np.ndarray]:
        """The texts, and the row of each in its source, counted from 0."""
        data = read_labelled(self.source, self.label_field, self.field, self.pair_field, self.split)
        allowed = self._allowed(data)
        count = len(allowed) if self.max_texts is None else min(self.max_texts, len(allowed))
        # Not the first ones: a file may be sorted by class.
        rows = np.sort(allowed[np.random.default_rng(self.seed).permutation(len(allowed))[:count]])
        return with_rows(data, rows.tolist()), rows

    def _allowed(self, data: LabelledTexts) -> np.ndarray:
        """Rows of the classes asked for. UserError where the data have no such class."""
        if self.labels is None:
            return np.arange(len(data))
        ids = data.label_map.label2id
        unknown = next((name for name in self.labels if name not in ids), None)
        if unknown is not None:
            raise UserError(f"--labels {unknown!r} is no class of {self.source}; expected some of {listed(list(ids))}")
        allowed = np.flatnonzero(np.isin(data.labels, [ids[name] for name in self.labels]))
        if not len(allowed):
            raise UserError(f"{self.source} has no text of --labels {listed(self.labels)}")
        return allowed


@dataclass(frozen=True)
class AttackRun:
    """What ``fastadv attack`` runs."""

    models: Sequence[str]
    """folders of classifiers; with several the first is the one the others are compared with"""
    data: AttackedData
    settings: AttackSettings
    out: str
    """a folder"""
    transfer_from: Optional[str] = None
    """a classifier whose perturbations are tried on every model too"""
    perturb_at: str = "embedding"
    max_length: Optional[int] = None
    batch_size: int = DEFAULT_BATCH_SIZE
    has_checks: bool = True
    names: List[str] = field(init=False)
    """what the models are called in tables"""

    def __post_init__(self):
        twice = next((model for model in self.models if list(self.models).count(model) > 1), None)
        if twice is not None:
            raise UserError(f"the model {twice!r} is given twice")
        object.__setattr__(self, "names", short_names(self.models))

    def check(self) -> None:
        """UserError for what can be found wrong without reading weights or texts."""
        from fastadv.encoder.source import find_model

        check_out(self.out)
        for model in (*self.models, *([self.transfer_from] if self.transfer_from else [])):
            find_model(model).check_max_length(self.max_length)
        self.data.check()

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
        from fastadv.encoder.classifier import Classifier

        self.check()
        data, rows = self.data.read()
        out = Path(self.out).expanduser()
        out.mkdir(parents=True, exist_ok=True)

        def load(model: str) -> Classifier:
            return Classifier.from_pretrained(model, max_length=self.max_length, perturb_at=self.perturb_at)

        other = None if self.transfer_from is None else load(self.transfer_from)
        other_print = None if other is None else fingerprint(other)
        data_hash = hash_of_texts(data)
        results: Dict[str, ClassifierUnderAttack] = {}
        label_maps, checks, facts = {}, {}, {}
        for name, model in zip(self.names, self.models):
            classifier = load(model)
            if other is not None:
                check_transfer(classifier, other)
            print_of_model = fingerprint(classifier)
            parts = FolderOfParts(out / "parts", [print_of_model, other_print, data_hash], self.settings)
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


class FolderOfParts:
    """Finished parts of one model's attack, as .npz files; see `fastadv.evaluation.classifier_attack.Parts`.

    Args:
        folder: shared by models and settings.
        inputs: what has a say beside the settings.
    """

    def __init__(self, folder: Path, inputs: Sequence[Optional[str]], settings: AttackSettings):
        self._folder, self._inputs, self._settings = folder, list(inputs), settings
        folder.mkdir(exist_ok=True)

    def path(self, which: int | str) -> Path:
        """Of radius ``which``, of the clean pass (-1), or of the checks."""
        settings = self._settings.as_dict()
        if which == -1:
            # The clean pass is that of the texts and the model alone.
            key = ["clean", self._inputs]
        else:
            # A radius attacks what those before it have left.
            end = len(settings["epsilons"]) if which == "checks" else which + 1
            settings["epsilons"] = settings["epsilons"][:end]
            key = ["checks" if which == "checks" else "radius", self._inputs, settings]
        return part_path(self._folder, key, "json" if which == "checks" else "npz")

    def load(self, number: int) -> Optional[Part]:
        try:
            with np.load(self.path(number), allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        # A damaged file is one that is not there: it is made anew.
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None

    def save(self, number: int, part: Part) -> None:
        with written_aside(self.path(number)) as aside, aside.open("wb") as file:
            np.savez(file, **part)


def part_path(folder: Path, key: list, ending: str) -> Path:
    """The file of the part that ``key``, plain values of all that has a say in it, makes."""
    digest = hashlib.blake2b(json.dumps([PARTS_VERSION, *key], sort_keys=True).encode(), digest_size=16).hexdigest()
    return folder / f"{digest}.{ending}"


def hash_of_weights(module: nn.Module) -> str:
    """Equal for modules of equal weights by name."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fingerprint(classifier) -> str:
    """Equal for classifiers that say the same of every text, at every point around it."""
    encoder, digest = classifier.encoder, hashlib.blake2b(hash_of_weights(classifier).encode(), digest_size=16)
    of_no_weight = ("_name_or_path", "transformers_version")
    config = {name: value for name, value in encoder.hf.config.to_dict().items() if name not in of_no_weight}
    facts = [encoder.tokenizer_fingerprint, encoder.max_length, encoder.perturb_at, list(classifier.label_map.names)]
    digest.update(json.dumps([facts, config], sort_keys=True, default=str).encode())
    return digest.hexdigest()


def hash_of_texts(data: LabelledTexts) -> str:
    """Of texts and labels in their order."""
    digest = hashlib.sha256()
    labels = [data.label_map.names[label] for label in data.labels]
    for row in zip(data.first, data.second or [None] * len(data), labels):
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def check_out(out: str) -> Path:
    """The folder to write to. UserError where it is a file, or holds something that no attack has written."""
    folder, known = Path(out).expanduser(), (*FILES, *RECONSTRUCT_FILES, "parts")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {out!r} is a file; expected a folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / n).exists() for n in known):
        raise UserError(f"--out {out!r} holds something other than an attack; give a new or empty folder")
    return folder
