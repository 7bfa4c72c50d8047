"""Attacks on text of saved classifiers with their files: a row a text, going on from what is there, and a report.

Rows are kept in ``parts/``, a file for each model and setting, named by a hash of all that has an effect on them:
weights, bias, recipe, limits, seed, and what lies in the files that the recipe reads. Within it a text is known by its
row, its words and its class. So a stopped attack goes on, more texts find those that are done, and another setting
finds nothing to mix with. Texts that ended in an error are tried again.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np

from fastadv.config.text_attack import TextAttackOptions
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.tokenize_texts import say_tokens
from fastadv.data.variants.text_pairs import Texts, write_pairs
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import labels_of
from fastadv.evaluation.embeddings.parts import fingerprint, part_path
from fastadv.evaluation.model_names import plain_name
from fastadv.evaluation.model_run import ModelRun, warn_below_chance
from fastadv.evaluation.text.attack import LabelledText, check_settings, key_of
from fastadv.evaluation.text.attacked_data import on_data
from fastadv.evaluation.text.control import AttackedModel, control_runs
from fastadv.evaluation.text.kept_rows import RowKey, complete_rows
from fastadv.evaluation.text.rows import SUCCEEDED, TextAttackRow, write_rows
from fastadv.evaluation.text.workers import AttackJob, attack_here, attack_in_processes
from fastadv.evaluation.text_report.report import REPORT_FILES, write_report
from fastadv.evaluation.vectors.accuracy import check_finite
from fastadv.evaluation.versions import versions
from fastadv.files.json_file import read_json, write_json

# Part of every key: raise it when the same settings would give other rows.
ROWS_VERSION = 1

LOG = "attack.log"


@dataclass(frozen=True)
class TextAttackRun(TextAttackOptions, ModelRun):
    """What ``fastadv attack --recipe`` runs; of several models the first is the baseline of the others."""

    def __post_init__(self):
        super().__post_init__()
        if self.pairs is not None and len(self.models) > 1:
            raise UserError("--write-pairs takes the pairs of one model; expected --model once")

    def check(self) -> None:
        """UserError for what can be found wrong without reading weights or texts."""
        if self.pairs is not None:
            check_pairs(self.pairs)
        sources = self.check_models()
        self.check_classes(sources)
        check_settings(self.settings, [str(source.location) for source in sources])
        self.data.check()

    def describe(self) -> str:
        """What would be done, in a line."""
        settings = self.settings
        limits = [
            "" if settings.max_queries is None else f"{settings.max_queries:,} queries",
            "" if settings.max_seconds is None else f"{settings.max_seconds:g} s",
        ]
        limited = " and ".join(limit for limit in limits if limit) or "no limit"
        processes = f"{self.num_processes} process{'es' * (self.num_processes > 1)}"
        pairs = "" if self.pairs is None else f", and its pairs to {self.pairs}"
        return (
            f"would attack {', '.join(self.models)} on {self.data.words} by "
            f"{settings.recipe}, goal {settings.goal}, {limited} a text, in {processes}; into {self.out}{pairs}"
        )

    @property
    def files(self) -> list[str]:
        """What `run` writes into the folder."""
        return [*REPORT_FILES, "rows.csv" if len(self.models) == 1 else "rows-*.csv", LOG]

    def run(self, progress: bool = False) -> dict:
        """Attacks all models, each model after the first also beside its control, and writes the files.

        Returns:
            what is in ``text-attack.json``, and ``num_pairs`` where pairs are written.

        Raises:
            UserError: what `check` finds, a model without a trained head, labels that it does not know, or another run
                that writes to the same folder.
        """
        self.check()
        data, rows = self.data.read()
        out = self.opened_folder()
        runs = [
            AttackedModel(name, *self.attack(model, name, data, rows, progress=progress))
            for name, model in zip(self.names, self.models)
        ]
        if len(self.models) > 1:
            model_of = dict(zip(self.names, self.models))

            def attack(name: str, control: Any) -> list[TextAttackRow]:
                bias = tuple(control.bias.tolist())
                return self.attack(self.models[0], name, data, rows, bias, progress)[0]

            runs += control_runs(self.names, lambda name: self._loaded(self._job(model_of[name]), data), data, attack)
        for run, path in zip(runs, rows_files(out, [run.name for run in runs])):
            write_rows(path, run.rows)
        results = write_report(out, runs)
        if self.pairs is not None:
            results["num_pairs"] = write_found(self.pairs, runs[0].rows)
        return results

    def attack(
        self,
        model: str,
        name: str,
        data: LabelledTexts,
        rows: np.ndarray,
        bias: tuple[float, ...] | None = None,
        progress: bool = False,
    ) -> tuple[list[TextAttackRow], dict[str, Any]]:
        """One model's rows in the order of the data, and what is told of it.

        Args:
            name: in the progress bar.
            rows: (N,) the place of each text in its source, from 0.
            bias: (C,) added to the model's logits.
        """
        job = self._job(model, bias)
        classifier = self._loaded(job, data)
        job = replace(job, label_names=classifier.label_map.names, roles=data.roles)
        names, own_fingerprint = classifier.label_map.names, fingerprint(classifier)
        parts = [data.first] if data.second is None else [data.first, data.second]
        if bias is None:
            say_tokens(classifier.encoder, f"{model} on {self.data.source}", data.first, data.second)
        with on_data(model, self.data.source):
            labels = labels_of(classifier, data)
        texts = [
            LabelledText(int(row), tuple(of_text), int(label)) for row, label, *of_text in zip(rows, labels, *parts)
        ]
        keys = [RowKey(text.row, *(*text.texts, None)[:2], names[text.label]) for text in texts]
        key = ["text attack", ROWS_VERSION, own_fingerprint, bias, key_of(self.settings)]
        key += [] if data.second is None else [data.roles]
        path = part_path(self.folder / "parts", key, "csv")
        # What the recipe said of itself when the rows at ``path`` were begun; nothing before.
        facts_path = path.with_suffix(".json")
        try:
            recipe = dict(read_json(facts_path))
        except (OSError, ValueError, TypeError):
            recipe = {}

        def attack(places: list[int]) -> Iterator[TextAttackRow]:
            waiting = [texts[place] for place in places]
            if not waiting:
                return
            first, *second = zip(*(text.texts for text in waiting))
            logits = classifier.classify_texts(first, *second, batch_size=self.settings.batch_size)
            check_finite(logits, model)
            if self.num_processes > 1:
                made = attack_in_processes(job, waiting, names, min(self.num_processes, len(waiting)), recipe)
            else:
                made = attack_here(job, waiting, classifier, recipe)
            with closing(made):
                for row in made:
                    if not facts_path.exists():
                        write_json(facts_path, recipe, indent=None)
                    yield row

        made = complete_rows(path, keys, attack, name, progress)
        if bias is None:
            warn_below_chance(model, [row.predicted == row.label for row in made], len(names))
        facts = {
            "model": model,
            "fingerprint": own_fingerprint,
            "max_length": classifier.encoder.max_length,
            "prompt": classifier.encoder.prompt,
            "device": str(classifier.encoder.device),
            "labels": list(names),
            "bias": None if bias is None else list(bias),
            "protocol": {
                "settings": vars(self.settings),
                "recipe": recipe,
                "versions": versions(),
                "data": self.data.described(data),
                "roles": None if data.second is None else list(data.roles),
            },
        }
        return made, facts

    def _job(self, model: str, bias: tuple[float, ...] | None = None) -> AttackJob:
        names, log = self.label_names.get(model), self.folder / LOG
        limits = self.max_length, bias, self.num_threads
        return AttackJob(model, self.settings, log, *limits, names, device=self.device)

    def _loaded(self, job: AttackJob, data: LabelledTexts):
        """The job's classifier, its classes called as the data call them."""
        classifier = job.load()
        self.call_classes(classifier, job.model, data)
        return classifier


def rows_files(out: Path, names: Sequence[str]) -> list[Path]:
    """Where the rows of each model are written: ``rows.csv`` of one, ``rows-NAME.csv`` of several."""
    if len(names) == 1:
        return [out / "rows.csv"]
    plain = [plain_name(name) for name in names]
    numbered = [f"{name}-{i}" if plain.count(name) > 1 else name for i, name in enumerate(plain)]
    return [out / f"rows-{name}.csv" for name in numbered]


def write_found(path: str | Path, rows: Sequence[TextAttackRow]) -> int:
    """Writes the texts that an attack succeeded on with what fooled the model, for ``data.pairs``.

    Returns:
        how many there are.
    """
    pairs: dict[Texts, Texts] = {}
    labels: dict[Texts, str] = {}
    for row in rows:
        if row.outcome == SUCCEEDED:
            # Of a text that is there twice the first counts, as where it is read.
            pairs.setdefault(row.texts, row.texts_adversarial)
            labels.setdefault(row.texts, row.label)
    write_pairs(path, pairs, labels)
    return len(pairs)


def check_pairs(path: str) -> None:
    """UserError where the pairs cannot be written."""
    file = Path(path).expanduser()
    if file.suffix != ".csv" or file.is_dir():
        raise UserError(f"--write-pairs {path!r}: expected a file that ends in .csv")
    if not file.parent.is_dir():
        raise UserError(f"--write-pairs {path!r}: expected a file in a folder that exists")
