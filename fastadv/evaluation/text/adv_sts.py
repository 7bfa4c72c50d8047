"""Adversarial STS: by how many pairs an attack moves a model's similarity a whole point away from the human score.

Every pair is attacked (`similarity_victim.py` says what fools a model). A model whose cosines hardly differ cannot be
moved a point, whatever becomes of a text. So each model after the first has a control beside it: the first model, its
cosines brought to the mean and the spread that the other's have on the same pairs, under the same attack. A gain counts
only beyond that.

Rows are kept in ``parts/``, named by a hash of all that has a say in them, so that a stopped run goes on.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from fastadv.config.commands import Encoding, encoding_words
from fastadv.config.text_attack import ADV_STS_RECIPES, SIDES, AdvStsOptions, TextAttackSettings
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.parts import part_path
from fastadv.evaluation.model_run import ModelRun
from fastadv.evaluation.text.attack import LabelledText, attack_text, build_attacker, check_settings, key_of
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text.kept_rows import RowKey, complete_rows
from fastadv.evaluation.text.rows import ERROR, SUCCEEDED, TextAttackRow, write_rows
from fastadv.evaluation.text.run import LOG, rows_files
from fastadv.evaluation.text.workers import facts_of, output_to
from fastadv.evaluation.vectors.scored_pairs import ScoredPairs, read_scored_pairs, read_sick, read_sts_benchmark
from fastadv.evaluation.vectors.sts import spearman_of, sts_cosines
from fastadv.evaluation.vectors.vector_cache import digest_of, model_fingerprint
from fastadv.evaluation.victims.similarity import Scale, SimilarityVictim

# Part of every key: raise it when the same settings would give other rows.
ROWS_VERSION = 1

SETS = {"STS-B": (read_sts_benchmark, 0.0, 5.0), "SICK-R": (read_sick, 1.0, 5.0)}
"""name → reader of SentEval's folder, and the scale of its human scores"""


@dataclass(frozen=True)
class AdvStsData:
    """Scored pairs, or a draw of them."""

    pairs: ScoredPairs
    rows: List[int]
    """the place of each pair in its source, from 0"""
    scale: Scale
    source: str

    @classmethod
    def read(
        cls,
        data: str,
        name: str = "STS-B",
        split: str = "test",
        scale: Optional[Tuple[float, float]] = None,
        max_pairs: Optional[int] = None,
        seed: int = 0,
    ) -> "AdvStsData":
        """Pairs of SentEval's folder, or of a file (`fastadv.evaluation.vectors.scored_pairs.read_scored_pairs`).

        Args:
            name: which of `SETS`, of a folder.
            scale: of a file's human scores; None: 0 to 5.
            max_pairs: drawn by ``seed``; None: all.

        Raises:
            UserError: nothing there, a set or a split that does not exist, or a score that is not on the scale.
        """
        path = Path(data).expanduser()
        if path.is_dir():
            if name not in SETS:
                raise UserError(f"--set {name!r}: expected one of {', '.join(SETS)}")
            if scale is not None:
                raise UserError(f"--scale belongs to a file; {name} has its own")
            if split not in ("train", "dev", "test"):
                raise UserError(f"--split {split!r}: {name} has train, dev, test")
            reader, low, high = SETS[name]
            pairs, source = reader(path, split), f"{name} {split}"
        else:
            pairs, source, (low, high) = read_scored_pairs(path), data, scale or (0.0, 5.0)
        found = Scale(low, high)
        off = next((row for row, score in enumerate(pairs.scores) if not low <= score <= high), None)
        if off is not None:
            score = pairs.scores[off]
            raise UserError(f"{source}: pair {off} has the score {score:g}; the scale goes from {low:g} to {high:g}")
        count = len(pairs) if max_pairs is None else min(max_pairs, len(pairs))
        # Not the first ones: files are sorted by where their pairs come from.
        rows = np.sort(np.random.default_rng(seed).permutation(len(pairs))[:count]).tolist()
        drawn = ScoredPairs(*([values[row] for row in rows] for values in (pairs.first, pairs.second, pairs.scores)))
        return cls(drawn, rows, found, source)


@dataclass(frozen=True)
class AdvStsRun(AdvStsOptions, ModelRun):
    """What ``fastadv evaluate adv-sts`` runs: encoders under one attack."""

    prompts: Optional[Sequence[str]] = None
    """The prompt of each model; None: as ``prompt`` and ``prompt_name`` say"""

    def __post_init__(self):
        super().__post_init__()
        if self.settings.recipe not in ADV_STS_RECIPES:
            raise UserError(
                f"recipe {self.settings.recipe!r}: adversarial STS takes one of {', '.join(ADV_STS_RECIPES)}"
            )
        if self.side not in SIDES:
            raise UserError(f"--side {self.side!r}: expected one of {', '.join(SIDES)}")

    def check(self) -> None:
        """UserError for what can be found wrong without reading weights."""
        sources = self.check_models()
        check_settings(self.settings)
        for source, model in zip(sources, self.models, strict=True):
            source.check_encoding(self._encoding(model))

    def describe(self) -> str:
        """What would be done, in a line."""
        return (
            f"would attack {', '.join(self.models)} on {len(self.data.rows):,} pairs of {self.data.source} by "
            f"{self.settings.recipe}, {self.side} may change; into {self.out}"
        )

    def run(self, progress: bool = False) -> dict:
        """Attacks all models and writes the files; returns what is in ``text-attack.json``."""
        from fastadv.evaluation.text_report.report import write_report

        self.check()
        out = self.opened_folder()
        cosines = {}
        runs = []
        for name, model in zip(self.names, self.models):
            encoder = self._load(model)
            called = f"{model} on {self.data.source}"
            cosines[name] = clean_cosines(encoder, self.data.pairs, self.settings.batch_size, progress, called)
            runs.append(self._attacked(name, model, encoder, self.data.scale, progress))
        if self.has_control:
            for name in self.names[1:]:
                scale = matched_scale(self.data.scale, cosines[self.names[0]], cosines[name])
                control = {"baseline": self.names[0], "robust": name, "words": "mean and spread of cosines"}
                control.update(gain=scale.gain, offset=scale.offset)
                called = f"{self.names[0]}, cosines of {name}"
                run = self._attacked(called, self.models[0], self._load(self.models[0]), scale, progress)
                runs.append(run._replace(facts={**run.facts, "control": control}))
        for run, path in zip(runs, rows_files(out, [run.name for run in runs])):
            write_rows(path, run.rows)
        for name, run in zip(self.names, runs):
            run.facts.update(cosine_mean=float(cosines[name].mean()), cosine_spread=float(cosines[name].std()))
        bands = bands_of(self.data.scale)
        banded = [AttackedModel(r.name, in_bands(r.rows, bands), {**r.facts, "labels": list(bands)}) for r in runs]
        return write_report(out, banded, self._protocol(runs))

    def _encoding(self, model: str) -> Encoding:
        prompt, prompt_name = self.prompt, self.prompt_name
        if self.prompts is not None:
            prompt, prompt_name = self.prompts[list(self.models).index(model)], None
        prompts = {"prompt": prompt, "prompt_name": prompt_name}
        return Encoding(pooling=self.pooling, max_length=self.max_length, device=self.device, **prompts)

    def _load(self, model: str):
        from fastadv.encoder import Encoder

        return Encoder.from_pretrained(model, **self._encoding(model).of_encoder)

    def _attacked(self, name: str, model: str, encoder, scale: Scale, progress: bool) -> AttackedModel:
        """All pairs by one model; those that are done are read."""
        from fastadv.encoder.weights.source import find_model

        settings = self.settings
        own_fingerprint = model_fingerprint(encoder)
        key = ["adv-sts", ROWS_VERSION, own_fingerprint, encoder.pooling, encoder.max_length, vars(scale), self.side]
        victim = SimilarityVictim(encoder, scale, self.side, settings.batch_size, str(find_model(model).location))
        facts: Dict[str, Any] = {"model": model, "fingerprint": own_fingerprint, **encoder.settings}
        pairs = list(zip(self.data.rows, self.data.pairs.first, self.data.pairs.second, self.data.pairs.scores))

        def attack(places: List[int]) -> Iterator[TextAttackRow]:
            with output_to(self.folder / LOG):
                attacker = build_attacker(settings, victim)
                asked = [_asked(victim, *pair[:3]) for pair in pairs]
                facts["recipe"] = facts_of(attacker, asked, settings.max_seconds)
            for place in places:
                with output_to(self.folder / LOG):
                    row = attack_pair(attacker, victim, settings, *pairs[place])
                yield row

        path = part_path(self.folder / "parts", [*key, key_of(settings)], "csv")
        keys = [RowKey(row, first, second, f"{human:g}") for row, first, second, human in pairs]
        rows = complete_rows(path, keys, attack, name, progress)
        facts["spearman"], facts["spearman_adversarial"] = correlations(rows, [pair[3] for pair in pairs])
        return AttackedModel(name, rows, facts)

    def _protocol(self, runs: Sequence[AttackedModel]) -> dict:
        data = self.data
        parts = [data.rows, data.pairs.first, data.pairs.second, data.pairs.scores]
        return {
            "title": "Adversarial STS",
            "class_word": "human score",
            "settings": vars(self.settings),
            "side": self.side,
            "scale": [data.scale.low, data.scale.high],
            "fooled": "|s' - y| >= |s - y| + 1",
            "recipe": runs[0].facts["recipe"],
            "data": {"source": data.source, "num_texts": len(data.rows), "hash": digest_of(parts)},
        }


def attack_pair(
    attacker, victim: SimilarityVictim, settings: TextAttackSettings, row: int, first: str, second: str, human: float
) -> TextAttackRow:
    """The row of one pair. ``label`` is the human score, ``predicted`` and ``score`` are the model's s, those of the
    attacked pair s'."""
    asked = _asked(victim, row, first, second)
    before = victim.set_pair(first, second, human)
    found = attack_text(attacker, victim, settings, asked)
    changed = (found.first_adversarial, found.second_adversarial)
    pair = (first, changed[0]) if victim.side == "second" else changed
    after = float(victim.similarities([victim.text_of(*pair)])[0]) if found.outcome == SUCCEEDED else before
    scores = (float("nan"),) * 2 if found.outcome == ERROR else (before, after)
    return replace(
        found,
        first=first,
        second=second,
        label=f"{human:g}",
        first_adversarial=pair[0],
        second_adversarial=pair[1],
        predicted="" if found.outcome == ERROR else f"{before:.3f}",
        predicted_adversarial="" if found.outcome == ERROR else f"{after:.3f}",
        score=scores[0],
        score_adversarial=scores[1],
    )


def clean_cosines(
    encoder, pairs: ScoredPairs, batch_size: int, progress: bool = False, name: Optional[str] = None
) -> np.ndarray:
    """(N,) of the pairs as given; ``name`` as `encode_distinct` has it. UserError where vectors are not finite."""
    return sts_cosines(encoder, {"pairs": pairs}, batch_size, progress=progress, name=name)["pairs"]


def matched_scale(scale: Scale, cosines: np.ndarray, wanted: np.ndarray) -> Scale:
    """The scale under which ``cosines`` (N,) have the mean and the standard deviation of ``wanted`` (N,)."""
    spread = float(cosines.std())
    gain = float(wanted.std()) / spread if spread > 0 else 0.0
    return replace(scale, gain=gain, offset=float(wanted.mean()) - gain * float(cosines.mean()))


def bands_of(scale: Scale) -> Dict[str, Tuple[float, float]]:
    """A point of the scale each, the last one with its end: what a report has in place of classes."""
    edges = [*np.arange(scale.low, scale.high - 1e-9, 1.0).tolist(), scale.high]
    return {f"{a:g} to {b:g}": (a, b) for a, b in zip(edges, edges[1:])}


def in_bands(rows: Sequence[TextAttackRow], bands: Dict[str, Tuple[float, float]]) -> List[TextAttackRow]:
    """The rows with bands in place of the human score and of the model's."""

    def band(score: float) -> str:
        return next((name for name, (_, end) in bands.items() if score < end), list(bands)[-1])

    return [
        replace(
            row,
            label=band(float(row.label)),
            predicted=band(row.score) if row.outcome != ERROR else "",
            predicted_adversarial=band(row.score_adversarial) if row.outcome != ERROR else "",
        )
        for row in rows
    ]


def correlations(rows: Sequence[TextAttackRow], human: Sequence[float]) -> Tuple[Optional[float], Optional[float]]:
    """Spearman × 100 of the human scores with s and with s', errors left out; None where one side is constant."""
    known = [(row.score, row.score_adversarial, y) for row, y in zip(rows, human, strict=True) if row.outcome != ERROR]
    before, after, scores = zip(*known) if known else ((), (), ())
    found = (spearman_of(values, scores) for values in (before, after))
    return tuple(None if np.isnan(value) else value for value in found)


def spearman_lines(results: dict) -> str:
    """A line a model that is no control."""
    lines = []
    for model in results["models"]:
        if not model.get("control"):
            before, after = (
                "n/a" if model[name] is None else f"{model[name]:.2f}" for name in ("spearman", "spearman_adversarial")
            )
            how = encoding_words(model)
            lines.append(f"{model['name']}, {how}: Spearman x 100 {before}, on the attacked pairs {after}")
    return "\n".join(lines)


def _asked(victim: SimilarityVictim, row: int, first: str, second: str) -> LabelledText:
    texts = (second,) if victim.side == "second" else (first, second)
    return LabelledText(row, texts, victim.names.index("kept"))
