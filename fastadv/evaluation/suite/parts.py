"""What a part of an evaluation is, and those that measure sentence vectors: sts, transfer, geometry.

What keeps one set or one model from being measured becomes a number that is n/a; a `UserError` keeps the whole part
from it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar

import numpy as np

from fastadv.config.embedding_attack import AttackSettings
from fastadv.config.schema import EvaluationConfig
from fastadv.config.text_attack import USED_BY, TextAttackSettings
from fastadv.errors import UserError
from fastadv.evaluation.intervals import CONFIDENCE, NUM_RESAMPLES
from fastadv.evaluation.suite.models import SuiteModel
from fastadv.evaluation.suite.numbers import Measured, f1_draws, resample_seed, spearman_measured
from fastadv.evaluation.suite.schema import FEATURES, SIMILARITY, Quantity
from fastadv.evaluation.text.attacked_data import AttackedData
from fastadv.evaluation.vectors.vector_cache import VectorCache
from fastadv.files.hashes import sha256_of
from fastadv.files.json_file import write_json


@dataclass(frozen=True)
class PartData:
    """What a part is measured on."""

    content: Any
    path: str
    sha256: str
    num_rows: int
    words: str
    """for ``--dry_run``"""
    missing: Dict[str, str] = field(default_factory=dict)
    """set → why it is not there"""
    beside: Tuple[str, ...] = ()
    """hashes of what else has a say in the numbers"""
    notes: Dict[str, str] = field(default_factory=dict)
    """model → why it has not all of the part's quantities, as is right for its kind"""

    def described(self) -> dict:
        """For the protocol."""
        return {"path": self.path, "sha256": self.sha256, "num_rows": self.num_rows}


@dataclass
class Found:
    """What a part measured."""

    measured: List[Measured]
    files: List[str]
    """in the folder of the part"""
    protocol: dict
    """the part's settings and facts"""
    whys: Dict[str, str] = field(default_factory=dict)
    """model → why it has nothing"""
    warnings: List[str] = field(default_factory=list)
    findings: List[dict] = field(default_factory=list)
    """Findings on models beside their controls (`fastadv.evaluation.text_report.findings`)"""
    baseline: Optional[str] = None
    """the name of the model that the part's own files compare the others with, where they do"""


@dataclass(frozen=True)
class SuiteOptions:
    """What ``fastadv evaluate all`` was given, for the parts to take theirs from (`Part.from_options`)."""

    out: Path
    data: Optional[str] = None
    """a folder in SentEval layout"""
    parts: Optional[Tuple[str, ...]] = None
    """names of `fastadv.evaluation.suite.choice.PARTS`, or ``my_package.my_module:MyPart``; None: all of `PARTS`"""
    recipes: Optional[Tuple[str, ...]] = None
    """Recipes of the attacks on text; None: those of `fastadv.evaluation.suite.attacks.DEFAULT_RECIPES`"""
    adv_sts_recipe: str = "pwws"
    labelled: AttackedData = AttackedData("demo:imdb")
    max_pairs: Optional[int] = None
    has_control: bool = True
    attack: AttackSettings = AttackSettings()
    """on the embeddings of classifiers"""
    of_encoders: EvaluationConfig = field(default_factory=EvaluationConfig)
    """the attack on encoders without a head"""
    text_settings: Mapping[str, Any] = field(default_factory=dict)
    """settings of `TextAttackSettings` that all recipes share; a file goes to the recipes that read it"""
    seed: int = 0
    batch_size: int = 64
    cache_dir: Optional[str] = None

    @property
    def senteval(self) -> str:
        """The folder in SentEval layout. UserError where none is given."""
        if self.data is None:
            raise UserError("--data is not given; it takes a folder in SentEval layout")
        return self.data

    def settings_of(self, recipe: str) -> TextAttackSettings:
        """Of an attack on texts or pairs by ``recipe``."""
        shared = {"seed": self.seed, "batch_size": self.batch_size, **self.text_settings}
        read = {name: value for name, value in shared.items() if recipe in USED_BY.get(name, (recipe,))}
        return TextAttackSettings(recipe, **read)


class Part(ABC):
    """One kind of evaluation: it reads its data (`read`) and measures models on them (`measure`).

    A part of your own is a subclass that ``--parts my_package.my_module:MyPart`` names.
    """

    name: str
    """Name of the part, of its folder and of its numbers."""
    version: int = 1
    """raised where equal settings would give other numbers"""
    seed: Optional[int] = None
    """Seed of what the part draws; None where it draws nothing."""

    @classmethod
    def from_options(cls, options: SuiteOptions) -> "Sequence[Part]":
        """The part, or the several that one name stands for. UserError where its settings are not whole."""
        return [cls()]

    @abstractmethod
    def read(self, models: Sequence[SuiteModel]) -> PartData:
        """UserError: what keeps the part from being run at all."""

    def why_not(self, model: SuiteModel, models: Sequence[SuiteModel], data: PartData) -> Optional[str]:
        """What keeps one of ``models`` from being measured, as far as it shows without weights; None where nothing."""
        return None

    def settings(self) -> dict:
        """Plain values that have a say in the numbers, beside models and data."""
        return {}

    @abstractmethod
    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        """Of models that work; files go into ``out``, which may not be there yet."""


class AttackPart(Part):
    """One that draws by the seed of its attack."""

    settings_of_attack: Any

    @property
    def seed(self) -> int:
        return self.settings_of_attack.seed


@dataclass(frozen=True)
class MissingPart(Part):
    """One whose settings are not whole."""

    name: str
    why: str

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        raise UserError(self.why)

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        raise UserError(self.why)


def those_that_can(part: Part, models: Sequence[SuiteModel], data: PartData) -> Tuple[List[SuiteModel], Dict[str, str]]:
    """The models that ``part`` can be measured of, and of the others model → why not.

    Raises:
        UserError: it can be measured of none.
    """
    whys = {model.model: part.why_not(model, models, data) for model in models}
    usable = [model for model in models if whys[model.model] is None]
    if not usable:
        raise UserError("; ".join(dict.fromkeys(whys.values())) or "no model works")
    return usable, {model: why for model, why in whys.items() if why is not None}


Key = TypeVar("Key")


def attempted(keys: Iterable[Key], make: Callable[[Key], Any]) -> Tuple[Dict[Key, Any], Dict[Key, str]]:
    """What ``make`` makes of each key, and of those where it raises a `UserError` what is wrong."""
    made, whys = {}, {}
    for key in keys:
        try:
            made[key] = make(key)
        except UserError as error:
            whys[key] = str(error)
    return made, whys


def check_each(
    models: Sequence[SuiteModel], check: Callable[[SuiteModel], Any], whys: Dict[str, str]
) -> List[SuiteModel]:
    """The models that ``check`` finds nothing wrong with; what it finds of the others goes into ``whys``.

    Raises:
        UserError: it finds something wrong with all of them.
    """
    usable, wrong = attempted(models, check)
    whys.update({model.model: why for model, why in wrong.items()})
    if models and not usable:
        raise UserError("; ".join(dict.fromkeys(wrong.values())))
    return list(usable)


def read_sets(names: Iterable[str], read: Callable[[str], Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """The sets of ``names`` that can be read, and why the others cannot. UserError where none can."""
    sets, missing = attempted(names, read)
    if not sets:
        raise UserError(next(iter(missing.values())))
    return sets, missing


@dataclass(frozen=True)
class StsPart(Part):
    """``fastadv evaluate sts``."""

    name = "sts"
    data: str
    batch_size: int = 64
    cache_dir: Optional[str] = None

    @classmethod
    def from_options(cls, options: SuiteOptions) -> Sequence[Part]:
        return [cls(options.senteval, options.batch_size, options.cache_dir)]

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        from fastadv.evaluation.vectors.sts import STS_SETS, read_sts_sets

        pairs, missing = read_sets(STS_SETS, lambda name: read_sts_sets(self.data, [name])[name])
        digest = sha256_of([[name, of_set.first, of_set.second, of_set.scores] for name, of_set in pairs.items()])
        words = ", ".join(f"{name} {len(of_set)}" for name, of_set in pairs.items())
        return PartData(pairs, self.data, digest, sum(map(len, pairs.values())), f"pairs: {words}", missing)

    def settings(self) -> dict:
        return {"score": "Spearman x 100 of cosine and human score, test splits, all pairs of a year in one list"}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        from fastadv.evaluation.vectors.sts import STS_SETS, sts_cosines

        def cosines_of(model: SuiteModel) -> dict:
            encoder = model.load()
            cache = None if self.cache_dir is None else VectorCache(self.cache_dir, encoder)
            return sts_cosines(encoder, data.content, self.batch_size, cache, progress, "STS")

        measured, scores = [], {}
        by_model, wrong = attempted(models, cosines_of)
        for model, cosines in by_model.items():
            found = []
            for name in STS_SETS:
                quantity = Quantity(self.name, name, "spearman", task=SIMILARITY)
                if name in data.missing:
                    found.append(Measured(quantity, model.model, None, why=data.missing[name]))
                    continue
                found.append(spearman_measured(quantity, model.model, cosines[name], data.content[name].scores))
            found.append(_mean(Quantity(self.name, "mean", "spearman", task=SIMILARITY), model.model, found))
            measured += found
            scores[model.model] = {one.quantity.set: one.value for one in found}
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "sts.json", scores)
        return Found(measured, ["sts.json"], self.settings(), {model.model: why for model, why in wrong.items()})


@dataclass(frozen=True)
class TransferPart(Part):
    """``fastadv evaluate transfer``."""

    name = "transfer"
    data: str
    seed: int = 1111
    batch_size: int = 64
    cache_dir: Optional[str] = None

    @classmethod
    def from_options(cls, options: SuiteOptions) -> Sequence[Part]:
        return [cls(options.senteval, batch_size=options.batch_size, cache_dir=options.cache_dir)]

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        from fastadv.evaluation.vectors.transfer_sets import TRANSFER_SETS, check_senteval_folder, read_transfer_set

        folder = check_senteval_folder(self.data)
        sets, missing = read_sets(TRANSFER_SETS, lambda name: read_transfer_set(folder, name))
        labels = {name: {s: v.tolist() for s, v in of_set.labels.items()} for name, of_set in sets.items()}
        digest = sha256_of([[name, of_set.texts, labels[name]] for name, of_set in sets.items()])
        counts = {name: sum(len(values) for values in of_set.labels.values()) for name, of_set in sets.items()}
        words = ", ".join(f"{name} {count}" for name, count in counts.items())
        return PartData(sets, self.data, digest, sum(counts.values()), f"rows: {words}", missing)

    def settings(self) -> dict:
        return {"score": "accuracy x 100 of logistic regression on frozen vectors", "seed_of_folds": self.seed}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        from fastadv.evaluation.vectors.transfer import AVERAGED, is_equivalent, transfer_record, transfer_results

        options = {"seed": self.seed, "batch_size": self.batch_size, "cache_dir": self.cache_dir, "progress": progress}
        measured, records, warnings = [], {}, []
        by_model, wrong = attempted(
            models, lambda model: transfer_results(model.load(), self.data, sets=list(data.content), **options)
        )
        for model, results in by_model.items():
            records[model.model] = transfer_record(results, {"model": model.model, "seed": self.seed})
            warnings += [f"{model.name}: {warning}" for result in results.values() for warning in result.warnings]
            accuracies = []
            for name in (*AVERAGED, "TREC"):
                quantity = Quantity(self.name, name, "accuracy")
                result = results.get(name)
                if result is None or result.why is not None:
                    why = data.missing[name] if result is None else result.why
                    accuracies.append(Measured(quantity, model.model, None, why=why))
                    continue
                rows = 100.0 * np.array(list(result.outcomes), dtype=np.float64)
                value = (result.accuracy, result.low, result.high, result.num_rows)
                accuracies.append(Measured(quantity, model.model, *value, rows=rows, is_binary=True))
                if result.f1 is not None:
                    of_f1 = quantity._replace(metric="F1")
                    draws = f1_draws(rows > 0, is_equivalent(data.content[name]), resample_seed(of_f1, self.seed))
                    measured.append(Measured(of_f1, model.model, result.f1, num=len(rows), draws=draws))
            measured += accuracies
            averaged = [one for one in accuracies if one.quantity.set in AVERAGED]
            measured.append(_mean(Quantity(self.name, "mean", "accuracy"), model.model, averaged))
            measured.append(_mean(Quantity(self.name, "mean with TREC", "accuracy"), model.model, accuracies))
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "transfer.json", records)
        whys = {model.model: why for model, why in wrong.items()}
        return Found(measured, ["transfer.json"], self.settings(), whys, warnings)


@dataclass(frozen=True)
class GeometryPart(Part):
    """``fastadv evaluate geometry``."""

    name = "geometry"
    data: str
    num_sentences: int = 3000
    seed: int = 0
    batch_size: int = 64

    @classmethod
    def from_options(cls, options: SuiteOptions) -> Sequence[Part]:
        return [cls(options.senteval, seed=options.seed, batch_size=options.batch_size)]

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        from fastadv.evaluation.vectors.geometry_of_models import describe_geometry_data, find_geometry_data

        data = find_geometry_data(self.data)
        words = describe_geometry_data(data, self.num_sentences)
        return PartData(data, self.data, sha256_of([data.sentences, data.positives]), len(data.sentences), words)

    def settings(self) -> dict:
        return {"num_sentences": self.num_sentences, "seed": self.seed, "confidence": CONFIDENCE}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        from fastadv.evaluation.vectors.geometry_of_models import measure_geometry, write_geometry

        drawn: Dict[str, Any] = {}
        path_of, whys = {model.name: model.model for model in models}, {}
        record = measure_geometry(
            {model.name: model.load for model in models},
            data.content,
            num_sentences=self.num_sentences,
            seed=self.seed,
            batch_size=self.batch_size,
            progress=progress,
            on_draws=drawn.__setitem__,
            on_failure=lambda name, error: whys.__setitem__(path_of[name], str(error)),
        )
        write_geometry(record, out)
        measured = []
        for row in record["models"]:
            for key, better in _GEOMETRY.items():
                quantity = Quantity(self.name, record["data"], key, None, "", better, FEATURES)
                found, num = row["quantities"].get(key), record["num_sentences"]
                num = record["num_positives"] if key == "alignment" else num
                if found is None or not np.isfinite(found["value"]):
                    why = "not known: the model has no dropout" if found is None else "the vectors span nothing"
                    measured.append(Measured(quantity, path_of[row["model"]], None, why=why))
                    continue
                draws = drawn[row["model"]][key][1]
                if len(draws) < NUM_RESAMPLES:
                    # Every resample of a rank lies below the sample's (`normal_interval`): their spread is what counts.
                    draws = found["value"] + draws - draws.mean()
                interval = (found["value"], found["low"], found["high"])
                measured.append(Measured(quantity, path_of[row["model"]], *interval, num, draws=draws))
        files = ["geometry.json", "geometry.csv", "geometry.png"]
        return Found(measured, files, self.settings(), whys, list(record["warnings"]))


_GEOMETRY: Dict[str, Optional[str]] = {
    "alignment": "lower",
    "uniformity": "lower",
    "mean_cosine": None,
    "effective_rank": None,
    "top_share": None,
}
"""quantity → which way is better"""


def _mean(quantity: Quantity, model: str, over: Sequence[Measured]) -> Measured:
    """The mean of some sets; n/a where one of them is."""
    missing = [one.quantity.set for one in over if one.value is None]
    if missing:
        return Measured(quantity, model, None, why=f"{', '.join(missing)} n/a")
    value, num = float(np.mean([one.value for one in over])), sum(one.num for one in over)
    return Measured(quantity, model, value, num=num, over=tuple(one.quantity.set for one in over))
