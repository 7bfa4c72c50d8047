"""The part of an evaluation that edits sentences. See `fastadv.evaluation.suite.parts`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Sequence

import numpy as np

from fastadv.config.robustness import RobustnessSettings
from fastadv.evaluation.robustness.edited import UNCHANGED, RobustnessData
from fastadv.evaluation.robustness.measure import Measured as Values
from fastadv.evaluation.robustness.page import FILES, write_robustness
from fastadv.evaluation.robustness.run import describe_robustness, measure_robustness
from fastadv.evaluation.suite.models import SuiteModel
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.parts import Found, Part, PartData, SuiteOptions
from fastadv.evaluation.suite.rows import set_name, share_measured
from fastadv.evaluation.suite.schema import FEATURES, Quantity
from fastadv.files.hashes import sha256_of_file


@dataclass(frozen=True)
class RobustnessPart(Part):
    """``fastadv evaluate robustness``; its numbers are the curves, the cosines of flips, and which copy is nearer."""

    name = "robustness"
    settings_of_edits: RobustnessSettings
    batch_size: int = 64

    @classmethod
    def from_options(cls, options: SuiteOptions) -> Sequence[Part]:
        of_encoders = options.of_encoders
        settings = RobustnessSettings(
            texts=of_encoders.held_out,
            num_sentences=of_encoders.num_sentences,
            split=of_encoders.held_out_split,
            quoting=options.labelled.quoting,
            word_sets=options.text_settings.get("word_sets"),
            seed=options.seed,
        )
        return [cls(settings, options.batch_size)]

    @property
    def seed(self) -> int:
        return self.settings_of_edits.seed

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        settings = self.settings_of_edits
        data = RobustnessData.read(settings)
        beside = () if settings.word_sets is None else (sha256_of_file(Path(settings.word_sets).expanduser()),)
        words = describe_robustness(data)
        return PartData(data, settings.texts, data.sha256, len(data.sentences), words, beside=beside)

    def settings(self) -> dict:
        return asdict(self.settings_of_edits)

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        values: dict[str, Values] = {}
        whys: dict[str, str] = {}
        record = measure_robustness(
            {model.model: model.load for model in models},
            data.content,
            self.settings_of_edits,
            self.batch_size,
            progress,
            names=[model.name for model in models],
            on_values=values.__setitem__,
            on_failure=lambda model, error: whys.__setitem__(model, str(error)),
        )
        write_robustness(record, out)
        source = set_name(self.settings_of_edits.texts)
        measured = [one for model, of_model in values.items() for one in self._numbers(source, model, of_model)]
        return Found(measured, list(FILES), self.settings(), whys)

    def _numbers(self, source: str, model: str, values: Values) -> Iterator[Measured]:
        """Without those that no sentence has a place for, in any model."""
        for variant, of_variant in values.movement.items():
            if variant == UNCHANGED or not variant.is_named or not np.isfinite(of_variant["cosine"]).any():
                continue
            better = "higher" if variant.is_kept else None
            quantity = Quantity(self.name, source, f"cosine, {variant.label}", None, "", better, FEATURES)
            cosines = of_variant["cosine"]
            num = int(np.isfinite(cosines).sum())
            yield Measured(quantity, model, float(np.nanmean(cosines)), num=num, rows=cosines)
            if variant.is_kept:
                quantity = Quantity(self.name, source, f"retrieval@1, {variant.label}", None, "%", task=FEATURES)
                yield share_measured(quantity, model, 100.0 * of_variant["retrieval"])
        for (edit, flip), is_nearer in values.choice.items():
            if np.isfinite(is_nearer).any():
                metric = f"{edit.edit} nearer than {flip.edit}"
                quantity = Quantity(self.name, source, metric, None, "%", task=FEATURES)
                yield share_measured(quantity, model, 100.0 * is_nearer)
