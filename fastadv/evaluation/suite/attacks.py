"""The parts of an evaluation that attack: embeddings, texts. See `fastadv.evaluation.suite.parts`.

Numbers of single rows are read from the files that the attacks leave, so that whoever has the files has the numbers.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from fastadv.config.embedding_attack import AttackSettings
from fastadv.config.schema import EvaluationConfig
from fastadv.data.labelled.find import TEXT, LabelledTexts
from fastadv.data.labelled.labels import MARKS, SKIPPING, LabelMap
from fastadv.data.sources.find import iterate_sentences
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.parts import FILES, kept_arrays, part_path
from fastadv.evaluation.embeddings.run import AttackRun
from fastadv.evaluation.model_names import plain_name
from fastadv.evaluation.suite.models import SuiteModel, at_shortest
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.parts import (
    AttackPart,
    Found,
    MissingPart,
    Part,
    PartData,
    SuiteOptions,
    attempted,
    check_each,
    those_that_can,
)
from fastadv.evaluation.suite.rows import (
    fooling_radii,
    found_by_attack,
    of_measurement,
    of_text_rows,
    set_name,
    share_measured,
)
from fastadv.evaluation.suite.schema import ABSOLUTE, Quantity
from fastadv.evaluation.text.attack import TextAttackSettings, check_settings, key_of
from fastadv.evaluation.text.attacked_data import AttackedData, hash_of_texts
from fastadv.evaluation.text.rows import TextAttackRow
from fastadv.evaluation.text.run import TextAttackRun
from fastadv.evaluation.vectors.accuracy import check_finite
from fastadv.evaluation.versions import version_of
from fastadv.files.hashes import sha256_of
from fastadv.files.json_file import write_json

DEFAULT_RECIPES = ("pwws", "deepwordbug")
"""of the attacks on texts"""


class _Attacked(NamedTuple):
    """What encoders and classifiers are attacked on differs, and so does what keeps them from it."""

    labelled: Optional[LabelledTexts]
    whys: Dict[bool, str]
    """is a classifier → why none can be attacked"""


@dataclass(frozen=True)
class EmbeddingPart(AttackPart):
    """Of classifiers ``fastadv attack``; of encoders without a head the table of
    `fastadv.evaluation.before_after.before_after`."""

    name = "embeddings"
    labelled: AttackedData
    settings_of_attack: AttackSettings
    of_encoders: EvaluationConfig
    batch_size: int = 32

    @classmethod
    def from_options(cls, options: SuiteOptions) -> Sequence[Part]:
        return [cls(options.labelled, options.attack, options.of_encoders, options.batch_size)]

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        readers = {True: self._texts, False: self._sentences}
        kinds = {model.is_classifier for model in models}
        read, whys = attempted([kind for kind in readers if kind in kinds], lambda kind: readers[kind]())
        content = _Attacked(read[True].content if True in read else None, whys)
        paths, words = ", ".join(one.path for one in read.values()), "; ".join(one.words for one in read.values())
        digest, num_rows = sha256_of([one.sha256 for one in read.values()]), sum(one.num_rows for one in read.values())
        return PartData(content, paths, digest, num_rows, words, notes=_notes_of_kinds(models))

    def _texts(self) -> PartData:
        data, source = self.labelled.read()[0], self.labelled.source
        words = f"{len(data)} texts of {source} under {self.settings_of_attack.method}"
        return PartData(data, source, hash_of_texts(data), len(data), words)

    def _sentences(self) -> PartData:
        cfg = self.of_encoders
        digest = sha256_of(_held_out_sentences(cfg, self.labelled.quoting))
        words = f"{cfg.num_sentences} sentences of {cfg.held_out} under PGD"
        return PartData(None, cfg.held_out, digest, cfg.num_sentences, words)

    def why_not(self, model: SuiteModel, models: Sequence[SuiteModel], data: PartData) -> Optional[str]:
        if not model.is_classifier or data.content.labelled is None:
            return data.content.whys.get(model.is_classifier)
        return _unknown_label(model, data.content.labelled, self.labelled.source)

    def settings(self) -> dict:
        return {"classifiers": self.settings_of_attack.as_dict(), "encoders": vars(self.of_encoders)}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        usable, whys = those_that_can(self, models, data)
        found = Found([], [], self.settings(), whys)
        kinds = [[model for model in usable if model.is_classifier == is_one] for is_one in (True, False)]
        for of_kind, attack in zip(kinds, (self._classifiers, self._encoders)):
            if not of_kind:
                continue
            try:
                attack(of_kind, data.content, out, progress, found)
            except UserError as error:
                whys.update({model.model: str(error) for model in of_kind if model.model not in whys})
        return found

    def _classifiers(self, models: List[SuiteModel], data: _Attacked, out: Path, progress: bool, found: Found) -> None:
        def check(model: SuiteModel) -> None:
            _check_logits(model, model.load_classifier(), data.labelled, self.labelled.source, self.batch_size)

        models = at_shortest(check_each(models, check, found.whys))
        run = AttackRun(
            models=[model.model for model in models],
            data=self.labelled,
            settings=self.settings_of_attack,
            out=str(out),
            max_length=models[0].max_length,
            batch_size=self.batch_size,
            names=[model.name for model in models],
            label_names={model.model: model.labels for model in models},
            device=models[0].device,
        )
        results = run.run(progress)
        found.files += FILES
        fooled = fooling_radii(out / "attack.csv")
        clean = Quantity(self.name, set_name(self.labelled.source), "accuracy", None, "%")
        for entry in results["models"]:
            found.warnings += [f"{entry['name']}: {warning}" for warning in entry["warnings"]]
            radii = fooled[entry["name"]]
            found.measured.append(share_measured(clean, entry["model"], 100.0 * (radii > 0.0)))
            for epsilon in (row["epsilon"] for row in entry["epsilons"]):
                attacked = clean.under_attack(epsilon=epsilon, radius_unit=ABSOLUTE)
                # Radii as the file writes them.
                rows = 100.0 * (radii > float(f"{epsilon:g}"))
                found.measured.append(share_measured(attacked, entry["model"], rows))

    def _encoders(self, models: List[SuiteModel], data: _Attacked, out: Path, progress: bool, found: Found) -> None:
        from fastadv.evaluation.before_after.before_after import masking_warnings, measure
        from fastadv.evaluation.before_after.held_out import load_held_out

        held_out, values = None, {}
        (out / "parts").mkdir(parents=True, exist_ok=True)
        for model in at_shortest(models):
            try:
                encoder = model.load()
                # One draw for all, distinct for the tokenizer of the first that can be measured.
                drawn = held_out or load_held_out(self.of_encoders, encoder, quoting=self.labelled.quoting)
                key = ["encoder", self.version, model.key, vars(self.of_encoders), sha256_of(vars(drawn))]
                measured = partial(measure, encoder, self.of_encoders, drawn, self.batch_size, progress)
                of_model = kept_arrays(part_path(out / "parts", key, "npz"), measured)
            except UserError as error:
                found.whys[model.model] = f"{model.name} on {self.of_encoders.held_out}: {error}"
                continue
            held_out, values[model.model] = drawn, of_model
            found.warnings += masking_warnings(model.name, of_model, self.of_encoders)
        for model, of_model in values.items():
            found.measured += list(of_measurement(self.name, set_name(self.of_encoders.held_out), model, of_model))
        shown = {m: {q: float(v.mean()) for q, v in of.items() if q != "vectors"} for m, of in values.items()}
        write_json(out / "encoders.json", {"settings": vars(self.of_encoders), "models": shown})
        found.files.append("encoders.json")


class _Texts(NamedTuple):
    """Texts to attack, and those that a probe is fitted on."""

    data: LabelledTexts
    train: Optional[LabelledTexts] = None
    why_no_probe: Optional[str] = None


@dataclass(frozen=True)
class TextPart(AttackPart):
    """``fastadv attack --recipe``; an encoder without a head is attacked with a probe on top (`probe_victim`)."""

    labelled: AttackedData
    settings_of_attack: TextAttackSettings
    name: str
    victims: str
    """a folder for encoders with a probe"""
    batch_size: int = 64

    @classmethod
    def from_options(cls, options: SuiteOptions) -> Sequence[Part]:
        parts: List[Part] = []
        for recipe in options.recipes or DEFAULT_RECIPES:
            name, victims = f"text-{recipe}", str(options.out / "victims")
            try:
                parts.append(cls(options.labelled, options.settings_of(recipe), name, victims, options.batch_size))
            except UserError as error:
                parts.append(MissingPart(name, str(error)))
        return parts

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        check_settings(self.settings_of_attack)
        data, source = self.labelled.read()[0], self.labelled.source
        train = why = None
        if any(_can_have_probe(model) for model in models):
            try:
                train = self._train(data)
            except UserError as error:
                why = str(error)
        words = f"{len(data)} texts of {source}, by {self.settings_of_attack.recipe}"
        beside = () if train is None else (hash_of_texts(train),)
        return PartData(_Texts(data, train, why), source, hash_of_texts(data), len(data), words, beside=beside)

    def _train(self, attacked: LabelledTexts) -> LabelledTexts:
        from fastadv.data.labelled.find import read_labelled
        from fastadv.evaluation.victims.probe import draw_train

        given = self.labelled
        whole = read_labelled(given.source, given.label_field, given.field, given.pair_field, "train", **given.reading)
        mark = next((name for name in whole.label_map.names if name in MARKS), None)
        if mark is not None:
            raise UserError(f"{given.source} (train) has the label {mark!r}, no class in most data; {SKIPPING}")
        return draw_train(whole, attacked.first, seed=given.seed)

    def why_not(self, model: SuiteModel, models: Sequence[SuiteModel], data: PartData) -> Optional[str]:
        why = self._own_why_not(model, data)
        if why is not None:
            return why
        first = next(one for one in models if self._own_why_not(one, data) is None)
        classes, wanted = (_classes(one, data.content) for one in (model, first))
        if set(classes) == set(wanted):
            return None
        return (
            f"{model.name} has the classes {', '.join(classes)} and {first.name}, which it would be compared with, "
            f"{', '.join(wanted)}; a control needs the same"
        )

    def _own_why_not(self, model: SuiteModel, data: PartData) -> Optional[str]:
        if model.is_classifier:
            return _unknown_label(model, data.content.data, self.labelled.source)
        if not _can_have_probe(model):
            return f"{model.name} pools by {model.pooling}, and a linear probe reads mean-pooled vectors"
        return data.content.why_no_probe

    def settings(self) -> dict:
        return {"attack": key_of(self.settings_of_attack), "probe": "logistic regression, for models without a head"}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        victims: Dict[str, str] = {}

        def check(model: SuiteModel) -> None:
            folder = model.model if model.is_classifier else self._with_probe(model, data.content)
            check_settings(self.settings_of_attack, [folder])
            classifier = model.load_classifier(folder)
            _check_logits(model, classifier, data.content.data, self.labelled.source, self.batch_size)
            victims[model.model] = folder

        usable, whys = those_that_can(self, models, data)
        usable = at_shortest(check_each(usable, check, whys))
        run = TextAttackRun(
            models=[victims[model.model] for model in usable],
            data=self.labelled,
            settings=self.settings_of_attack,
            out=str(out),
            max_length=usable[0].max_length,
            names=[model.name for model in usable],
            label_names={victims[model.model]: model.labels for model in usable if model.is_classifier},
            device=usable[0].device,
        )
        protocol = {**self.settings(), "sha256_of_probe_texts": data.beside}

        def measured(model: SuiteModel, rows: Sequence[TextAttackRow]) -> List[Measured]:
            return of_text_rows(self.name, set_name(self.labelled.source), model.model, rows)

        return found_by_attack(run, usable, progress, measured, protocol, whys)

    def _with_probe(self, model: SuiteModel, data: _Texts) -> str:
        """A folder of the encoder with a probe, made where it is not there."""
        from fastadv.evaluation.vectors.vector_cache import digest_of
        from fastadv.evaluation.victims.probe import write_victim

        # Another release may fit another probe.
        digest = digest_of([self.version, model.key, hash_of_texts(data.train), version_of("scikit-learn")])[:12]
        folder = Path(self.victims) / f"{plain_name(model.name)}-{digest}"
        if not folder.is_dir():
            write_victim(model.load(), data.train, folder, self.batch_size)
        return str(folder)


def _notes_of_kinds(models: Sequence[SuiteModel]) -> Dict[str, str]:
    """Model → why it has not the quantities of the other kind, where both are there."""
    if len({model.is_classifier for model in models}) < 2:
        return {}
    of_kind = {
        True: "a classifier: attacked by its accuracy",
        False: "an encoder without a head: attacked by retrieval and a probe of sentiment",
    }
    return {model.model: of_kind[model.is_classifier] for model in models}


def _held_out_sentences(cfg: EvaluationConfig, quoting: str) -> List[str]:
    """UserError where they, or the texts of the probe, are fewer than asked for."""
    from fastadv.evaluation.before_after.held_out import check_probe_sentences

    check_probe_sentences(cfg)
    sentences = list(iterate_sentences(cfg.held_out, field=TEXT, split=cfg.held_out_split, quoting=quoting))
    num_distinct = len(set(sentences))
    if num_distinct < cfg.num_sentences:
        raise UserError(
            f"{cfg.held_out} has {num_distinct} sentences that differ, and {cfg.num_sentences} are asked for"
        )
    return sentences


def _check_logits(model: SuiteModel, classifier, data: LabelledTexts, source: str, batch_size: int) -> None:
    logits = classifier.classify_texts(data.first, pairs=data.second, batch_size=batch_size)
    check_finite(logits, f"{model.name} on {source}")


def _unknown_label(model: SuiteModel, data: LabelledTexts, source: str) -> Optional[str]:
    try:
        data.classes_of(LabelMap(model.labels))
    except UserError as error:
        return f"{model.name} on {source}: {error}"
    return None


def _can_have_probe(model: SuiteModel) -> bool:
    return not model.is_classifier and model.pooling == "mean"


def _classes(model: SuiteModel, data: _Texts) -> Tuple[str, ...]:
    """Of the classifier that is attacked."""
    if model.is_classifier:
        return data.data.classes_of(LabelMap(model.labels)).names
    return data.train.label_map.names
