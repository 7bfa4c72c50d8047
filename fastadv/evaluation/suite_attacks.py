"""The parts of an evaluation that attack: pairs of sentences (AdvSTS), embeddings, texts. See ``suite_parts.py``.

Numbers of single rows are read from the files that the attacks leave, so that whoever has the files has the numbers.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from fastadv.config import EvaluationConfig
from fastadv.data.labelled_sources import TEXT
from fastadv.data.sources import iterate_sentences
from fastadv.errors import UserError
from fastadv.evaluation.attack_parts import part_path
from fastadv.evaluation.attack_run import AttackRun
from fastadv.evaluation.attack_settings import AttackSettings
from fastadv.evaluation.attacked_data import AttackedData, hash_of_texts
from fastadv.evaluation.suite_models import SuiteModel
from fastadv.evaluation.suite_numbers import Measured, Quantity, spearman_measured
from fastadv.evaluation.suite_parts import Found, PartData, sha256_of, write_json
from fastadv.evaluation.text_attack import TextAttackSettings
from fastadv.evaluation.text_attack_rates import rates
from fastadv.evaluation.text_attack_rows import ERROR, SUCCEEDED, TextAttackRow, read_rows
from fastadv.evaluation.text_attack_run import TextAttackRun, rows_files


@dataclass(frozen=True)
class AdvStsPart:
    """``fastadv evaluate adv-sts``."""

    data: str
    settings_of_attack: TextAttackSettings
    max_pairs: Optional[int] = None
    has_control: bool = True
    name: str = "adv-sts"
    version: int = 1

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        from fastadv.evaluation.adv_sts import RECIPES, AdvStsData

        if self.settings_of_attack.recipe not in RECIPES:
            raise UserError(f"adversarial STS takes one of {', '.join(RECIPES)}")
        self.settings_of_attack.check()
        data = AdvStsData.read(self.data, max_pairs=self.max_pairs, seed=self.settings_of_attack.seed)
        pairs = data.pairs
        digest = sha256_of([data.rows, pairs.first, pairs.second, pairs.scores])
        words = f"{len(pairs)} pairs of {data.source}, by {self.settings_of_attack.recipe}"
        return PartData(data, self.data, digest, len(pairs), words)

    def applies(self, models: Sequence[SuiteModel]) -> Optional[str]:
        return None

    def settings(self) -> dict:
        return {"attack": self.settings_of_attack.as_key(), "has_control": self.has_control, "side": "both"}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        from fastadv.evaluation.adv_sts import AdvStsRun

        first = models[0]
        if any(model.pooling != first.pooling for model in models):
            raise UserError(f"the models pool in different ways ({_poolings(models)}); name one with --pooling")
        run = AdvStsRun(
            models=[model.model for model in models],
            data=data.content,
            settings=self.settings_of_attack,
            out=str(out),
            pooling=first.pooling,
            max_length=min(model.max_length for model in models),
            has_control=self.has_control,
        )
        results = run.run(progress)
        paths = rows_files(out, [entry["name"] for entry in results["models"]])
        measured = []
        for model, path in zip(models, paths):
            rows, quantity = read_rows(path), Quantity(self.name, data.content.source, "fooled", None, "%", "lower")
            measured.append(_share(quantity, model.model, _outcomes(rows, SUCCEEDED), rates(rows)["success"]["any"]))
            known = [row for row in rows if row.outcome != ERROR]
            for metric, field in (("spearman", "score"), ("spearman under attack", "score_adversarial")):
                of_metric = quantity._replace(metric=metric, unit="x 100", better="higher")
                if not known:
                    measured.append(Measured(of_metric, model.model, None, why="every pair ended in an error"))
                    continue
                scores = [getattr(row, field) for row in known], [float(row.label) for row in known]
                measured.append(spearman_measured(of_metric, model.model, *scores))
        files = ["text-attack.json", "text-attack.html", *(path.name for path in paths)]
        return Found(measured, files, {**self.settings(), "controls": results["findings"]})


@dataclass(frozen=True)
class EmbeddingPart:
    """Of classifiers ``fastadv attack``; of encoders without a head the table of `fastadv.evaluation.before_after`."""

    labelled: AttackedData
    settings_of_attack: AttackSettings
    of_encoders: EvaluationConfig
    batch_size: int = 32
    name: str = "embeddings"
    version: int = 1

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        # What encoders and classifiers are attacked on differs.
        words, paths, hashes, num_rows = [], [], [], 0
        if any(model.is_classifier for model in models):
            data = self.labelled.read()[0]
            words.append(f"{len(data)} texts of {self.labelled.source} under {self.settings_of_attack.method}")
            paths.append(self.labelled.source)
            hashes.append(hash_of_texts(data))
            num_rows += len(data)
        if not all(model.is_classifier for model in models):
            cfg = self.of_encoders
            sentences = list(iterate_sentences(cfg.held_out, field=TEXT, split=cfg.held_out_split))
            words.append(f"{cfg.num_sentences} sentences of {cfg.held_out} under PGD")
            paths.append(cfg.held_out)
            hashes.append(sha256_of(sentences))
            num_rows += cfg.num_sentences
        return PartData(None, ", ".join(paths), sha256_of(hashes), num_rows, "; ".join(words))

    def applies(self, models: Sequence[SuiteModel]) -> Optional[str]:
        return None

    def settings(self) -> dict:
        return {"classifiers": self.settings_of_attack.as_dict(), "encoders": vars(self.of_encoders)}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        found = Found([], [], self.settings())
        kinds = [[model for model in models if model.is_classifier == is_one] for is_one in (True, False)]
        for of_kind, attack in zip(kinds, (self._classifiers, self._encoders)):
            if not of_kind:
                continue
            try:
                attack(of_kind, out, progress, found)
            except UserError as error:
                found.whys.update({model.model: str(error) for model in of_kind})
        return found

    def _classifiers(self, models: Sequence[SuiteModel], out: Path, progress: bool, found: Found) -> None:
        run = AttackRun(
            models=[model.model for model in models],
            data=self.labelled,
            settings=self.settings_of_attack,
            out=str(out),
            max_length=min(model.max_length for model in models),
            batch_size=self.batch_size,
        )
        results = run.run(progress)
        found.files += ["attack.json", "attack.csv", "attack.png"]
        fooled = _fooling_radii(out / "attack.csv")
        base = Quantity(self.name, set_name(self.labelled.source), "accuracy", None, "%")
        for entry in results["models"]:
            found.warnings += [f"{entry['name']}: {warning}" for warning in entry["warnings"]]
            radii = fooled[entry["name"]]
            shares = {None: (radii > 0, entry["accuracy"])}
            for row in entry["epsilons"]:
                # As the file writes it.
                shares[row["epsilon"]] = radii > float(f"{row['epsilon']:g}"), row["accuracy"]
            for epsilon, (is_right, share) in shares.items():
                rows = 100.0 * is_right
                found.measured.append(_share(base._replace(epsilon=epsilon), entry["model"], rows, share))

    def _encoders(self, models: Sequence[SuiteModel], out: Path, progress: bool, found: Found) -> None:
        from fastadv.evaluation.before_after import load_measurement, masking_warnings, measure, save_measurement
        from fastadv.evaluation.held_out import load_held_out

        held_out, values = None, {}
        (out / "parts").mkdir(parents=True, exist_ok=True)
        for model in models:
            encoder = model.load()
            # One draw for all, distinct for the first model's tokenizer.
            held_out = held_out or load_held_out(self.of_encoders, encoder)
            drawn = sha256_of(vars(held_out))
            path = part_path(out / "parts", ["encoder", self.version, model.key, vars(self.of_encoders), drawn], "npz")
            if path.exists():
                values[model.model] = load_measurement(path)
            else:
                values[model.model] = measure(encoder, self.of_encoders, held_out, self.batch_size, progress)
                save_measurement(values[model.model], path)
            found.warnings += masking_warnings(model.name, values[model.model], self.of_encoders)
        for model, of_model in values.items():
            found.measured += list(_of_measurement(self.name, set_name(self.of_encoders.held_out), model, of_model))
        shown = {m: {q: float(v.mean()) for q, v in of.items() if q != "vectors"} for m, of in values.items()}
        write_json(out / "encoders.json", {"settings": vars(self.of_encoders), "models": shown})
        found.files.append("encoders.json")


@dataclass(frozen=True)
class TextPart:
    """``fastadv attack --recipe``; an encoder without a head is attacked with a probe on top (`probe_victim`)."""

    labelled: AttackedData
    settings_of_attack: TextAttackSettings
    name: str
    victims: str
    """a folder for encoders with a probe"""
    batch_size: int = 64
    version: int = 1

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        self.settings_of_attack.check()
        data, rows = self.labelled.read()
        words = f"{len(data)} texts of {self.labelled.source}, by {self.settings_of_attack.recipe}"
        return PartData((data, rows), self.labelled.source, hash_of_texts(data), len(data), words)

    def applies(self, models: Sequence[SuiteModel]) -> Optional[str]:
        if any(model.is_classifier or model.pooling == "mean" for model in models):
            return None
        return "no model is a classifier, or pools by the mean, which a linear probe reads"

    def settings(self) -> dict:
        return {"attack": self.settings_of_attack.as_key(), "probe": "logistic regression, for models without a head"}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        whys: Dict[str, str] = {}
        victims: List[Tuple[SuiteModel, str]] = []
        for model in models:
            try:
                victims.append((model, model.model if model.is_classifier else self._with_probe(model, data)))
            except UserError as error:
                whys[model.model] = str(error)
        if not victims:
            raise UserError(next(iter(whys.values())))
        run = TextAttackRun(
            models=[victim for _, victim in victims],
            data=self.labelled,
            settings=self.settings_of_attack,
            out=str(out),
            max_length=min(model.max_length for model, _ in victims),
        )
        results = run.run(progress)
        paths = rows_files(out, [entry["name"] for entry in results["models"]])
        measured = []
        for (model, _), path in zip(victims, paths):
            measured += _of_text_rows(self.name, set_name(self.labelled.source), model.model, read_rows(path))
        files = ["text-attack.json", "text-attack.html", *(path.name for path in paths)]
        return Found(measured, files, {**self.settings(), "controls": results["findings"]}, whys)

    def _with_probe(self, model: SuiteModel, data: PartData) -> str:
        """A folder of the encoder with a probe, made where it is not there."""
        from fastadv.data.labelled_sources import read_labelled
        from fastadv.evaluation.probe_victim import draw_train, write_victim
        from fastadv.evaluation.vector_cache import digest_of

        source, (attacked, _) = self.labelled, data.content
        whole = read_labelled(source.source, source.label_field, source.field, source.pair_field, "train")
        train = draw_train(whole, attacked.first, seed=source.seed)
        digest = digest_of([self.version, model.key, hash_of_texts(train)])[:12]
        folder = Path(self.victims) / f"{plain_name(model.name)}-{digest}"
        if not folder.is_dir():
            write_victim(model.load(), train, folder, self.batch_size)
        return str(folder)


def _share(quantity: Quantity, model: str, rows: np.ndarray, share: dict) -> Measured:
    """A share of rows (N,) of 0, 100, or NaN for those that do not count."""
    num = int(np.isfinite(rows).sum())
    if share["value"] is None:
        return Measured(quantity, model, None, num=num, why="no text counts")
    value, low, high = (100 * share[name] for name in ("value", "low", "high"))
    return Measured(quantity, model, value, low, high, num, rows=rows, is_binary=True)


def _outcomes(rows: Sequence[TextAttackRow], outcome: str) -> np.ndarray:
    """(N,) 100 where an attacked text has this outcome, 0 where it has another, NaN where it was not attacked."""
    return np.array([100.0 * (row.outcome == outcome) if row.is_attacked else np.nan for row in rows])


def _of_text_rows(part: str, source: str, model: str, rows: Sequence[TextAttackRow]) -> List[Measured]:
    found, base = rates(rows), Quantity(part, source, "accuracy", None, "%")
    clean = np.array([np.nan if row.outcome == ERROR else 100.0 * row.is_attacked for row in rows])
    after = np.array([np.nan if row.outcome == ERROR else 100.0 * (row.outcome == "failed") for row in rows])
    success = base._replace(metric="attack success", better="lower")
    measured = [
        _share(base, model, clean, found["accuracy"]),
        _share(base._replace(metric="accuracy under attack"), model, after, found["robust_accuracy"]),
        _share(success, model, _outcomes(rows, SUCCEEDED), found["success"]["any"]),
    ]
    queries = base._replace(metric="queries", unit="", better="higher")
    asked = np.array([float(row.num_queries) if row.is_attacked else np.nan for row in rows])
    if found["queries"]["value"] is None:
        return [*measured, Measured(queries, model, None, why="no text was attacked")]
    value = [found["queries"][name] for name in ("value", "low", "high")]
    return [*measured, Measured(queries, model, *value, num=int(np.isfinite(asked).sum()), rows=asked)]


def _fooling_radii(path: Path) -> Dict[str, np.ndarray]:
    """model → (N,) the smallest radius at which each text is fooled: 0 where it is wrong clean, inf where at none."""
    radii: Dict[str, List[float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            radii.setdefault(row["model"], []).append(float(row["fooling_epsilon"] or "inf"))
    return {name: np.array(values) for name, values in radii.items()}


def _of_measurement(part: str, source: str, model: str, values: Dict[str, np.ndarray]):
    """What `before_after.measure` found; radii are multiples of RMS(X)."""
    labels = {
        "retrieval": ("retrieval@1", "%", 100, True),
        "centred_cosine": ("centred cosine", "", 1, False),
        "probe": ("probe accuracy", "%", 100, True),
        "probe_misspelt": ("probe accuracy, misspelt", "%", 100, True),
    }
    for key, of_key in values.items():
        name, _, radius = key.partition("@")
        if name not in labels:
            continue
        metric, unit, factor, is_binary = labels[name]
        epsilon = float(radius) if radius and float(radius) else None
        quantity = Quantity(part, source if not name.startswith("probe") else "demo sentiment", metric, epsilon, unit)
        rows = factor * np.asarray(of_key, dtype=np.float64)
        if not np.isfinite(rows).all():
            yield Measured(quantity, model, None, why="vectors under attack are not finite")
            continue
        yield Measured(quantity, model, float(rows.mean()), num=len(rows), rows=rows, is_binary=is_binary)


def set_name(source: str) -> str:
    """What labelled texts or sentences are called: a file by its name, a data set by its own."""
    return Path(source).name if Path(source).expanduser().exists() else source


def plain_name(name: str) -> str:
    """As a file name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)


def _poolings(models: Sequence[SuiteModel]) -> str:
    return ", ".join(f"{model.name}: {model.pooling}" for model in models)
