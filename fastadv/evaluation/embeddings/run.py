"""An attack on saved classifiers with its files: ``attack.json``, ``attack.csv``, ``attack.png`` and finished parts.

A part is a model's clean pass, each radius, or its checks. A radius depends on those before it, so that a longer list
of radii finds what is there.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastadv.config.embedding_attack import ONE_STEP, EmbeddingAttackOptions
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.tokenize_texts import say_tokens
from fastadv.evaluation.embeddings.chart import attack_curves_png
from fastadv.evaluation.embeddings.checks import Check, check_attack
from fastadv.evaluation.embeddings.classifier_attack import ClassifierUnderAttack, attack_classifier, check_transfer
from fastadv.evaluation.embeddings.parts import attack_part, fingerprint, kept_arrays
from fastadv.evaluation.embeddings.report import report, write_rows
from fastadv.evaluation.model_run import ModelRun, kept_json, warn_below_chance
from fastadv.evaluation.text.attacked_data import hash_of_texts, on_data
from fastadv.evaluation.versions import versions
from fastadv.files.json_file import write_json


@dataclass(frozen=True)
class AttackOnClassifiers(EmbeddingAttackOptions, ModelRun):
    """What every attack on the embeddings of saved classifiers is told."""

    def check(self) -> None:
        """UserError for what can be found wrong without reading weights or texts."""
        self.check_classes(self.check_models(self.transfer_from))
        self.data.check()

    def load(self, model: str, data: LabelledTexts):
        """The classifier of a folder, as it is attacked, its classes called as the data call them."""
        from fastadv.encoder.classifier.text_classifier import Classifier

        options = {"perturb_at": self.perturb_at, "label_names": self.label_names.get(model), "device": self.device}
        classifier = Classifier.from_pretrained(model, max_length=self.max_length, **options)
        self.call_classes(classifier, model, data)
        return classifier


@dataclass(frozen=True)
class AttackRun(AttackOnClassifiers):
    """What ``fastadv attack`` runs."""

    def describe(self) -> str:
        """What would be done, in a line."""
        settings = self.settings
        runs = len(settings.step_sizes) * settings.num_restarts
        transfer = f", and the attack of {self.transfer_from} transferred" if self.transfer_from else ""
        return (
            f"would attack {', '.join(self.models)} on {self.data.words} by "
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
        out = self.opened_folder()
        other = None if self.transfer_from is None else self.load(self.transfer_from, data)
        other_fingerprint = None if other is None else fingerprint(other)
        data_hash = hash_of_texts(data)
        results: dict[str, ClassifierUnderAttack] = {}
        label_maps, checks, facts = {}, {}, {}
        for name, model in zip(self.names, self.models):
            classifier = self.load(model, data)
            say_tokens(classifier.encoder, f"{model} on {self.data.source}", data.first, data.second)
            if other is not None:
                check_transfer(classifier, other)
            own_fingerprint = fingerprint(classifier)
            inputs = [own_fingerprint, other_fingerprint, data_hash]
            path_of = partial(attack_part, out / "parts", inputs, self.settings)
            with on_data(model, self.data.source):
                results[name] = attack_classifier(
                    classifier,
                    data,
                    self.settings,
                    other,
                    self.batch_size,
                    progress=progress,
                    kept=lambda number, make, path_of=path_of: kept_arrays(path_of(number), make),
                )
            warn_below_chance(model, results[name].is_right_clean, len(classifier.label_map))
            if self.has_checks:
                checks[name] = self._checks(path_of("checks"), classifier, data, results[name], progress)
            label_maps[name] = classifier.label_map
            facts[name] = {
                "model": model,
                "fingerprint": own_fingerprint,
                "max_length": classifier.encoder.max_length,
                "prompt": classifier.encoder.prompt,
                "device": str(classifier.encoder.device),
                "labels": list(classifier.label_map.names),
            }
        numbers = report(results, label_maps, checks, seed=self.settings.seed)
        for entry in numbers["models"]:
            entry.update(facts[entry["name"]])
        written = {
            "kind": "attack",
            "versions": versions(),
            "protocol": {
                "loss": "cross-entropy of the true class",
                "ball": "a text's real tokens together, absolute radius",
                "dropout": "off",
                "fooled": "wrong at any point that any run meets, at this radius or a smaller one",
                "perturb_at": self.perturb_at,
                "transfer_from": self.transfer_from,
                "transfer_fingerprint": other_fingerprint,
            },
            "data": self.data.described(data),
            **numbers,
        }
        write_rows(out / "attack.csv", results, label_maps, rows.tolist())
        attack_curves_png(written, out / "attack.png")
        write_json(out / "attack.json", written)
        return written

    def _checks(self, path: Path, classifier, data, result: ClassifierUnderAttack, progress: bool) -> list[Check]:
        def make() -> list[dict]:
            checks = check_attack(classifier, data, result, batch_size=self.batch_size, progress=progress)
            return [vars(check) for check in checks]

        return [Check(**entry) for entry in kept_json(path, make)]
