"""The part of an evaluation that attacks scored pairs of sentences (AdvSTS). See ``suite_parts.py``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

from fastadv.errors import UserError
from fastadv.evaluation.suite.models import SuiteModel, at_shortest
from fastadv.evaluation.suite.numbers import Measured, Quantity, spearman_measured
from fastadv.evaluation.suite.parts import Found, PartData, check_each, sha256_of, those_that_can
from fastadv.evaluation.suite.rows import outcomes, share_measured
from fastadv.evaluation.text.attack import TextAttackSettings, check_settings, key_of
from fastadv.evaluation.text.rows import ERROR, SUCCEEDED, read_rows
from fastadv.evaluation.text.run import rows_files
from fastadv.evaluation.text_report.report import REPORT_FILES


@dataclass(frozen=True)
class AdvStsPart:
    """``fastadv evaluate adv-sts``."""

    data: str
    settings_of_attack: TextAttackSettings
    max_pairs: Optional[int] = None
    has_control: bool = True
    name: str = "adv-sts"
    version: int = 1

    @property
    def seed(self) -> int:
        return self.settings_of_attack.seed

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        from fastadv.config.text_attack import ADV_STS_RECIPES
        from fastadv.evaluation.text.adv_sts import AdvStsData

        if self.settings_of_attack.recipe not in ADV_STS_RECIPES:
            raise UserError(f"adversarial STS takes one of {', '.join(ADV_STS_RECIPES)}")
        check_settings(self.settings_of_attack)
        data = AdvStsData.read(self.data, max_pairs=self.max_pairs, seed=self.seed)
        pairs = data.pairs
        digest = sha256_of([data.rows, pairs.first, pairs.second, pairs.scores])
        words = f"{len(pairs)} pairs of {data.source}, by {self.settings_of_attack.recipe}"
        return PartData(data, self.data, digest, len(pairs), words)

    def why_not(self, model: SuiteModel, models: Sequence[SuiteModel], data: PartData) -> Optional[str]:
        first = models[0]
        if model.pooling == first.pooling:
            return None
        return (
            f"{model.name} pools by {model.pooling} and {first.name}, which it would be compared with, by "
            f"{first.pooling}; name one for all with --pooling"
        )

    def settings(self) -> dict:
        return {"attack": key_of(self.settings_of_attack), "has_control": self.has_control, "side": "both"}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        from fastadv.evaluation.text.adv_sts import AdvStsRun, clean_cosines

        def check(model: SuiteModel) -> None:
            try:
                clean_cosines(model.load(), data.content.pairs, self.settings_of_attack.batch_size)
            except UserError as error:
                raise UserError(f"{model.name} on {data.content.source}: {error}") from error

        usable, whys = those_that_can(self, models, data)
        usable = at_shortest(check_each(usable, check, whys))
        run = AdvStsRun(
            models=[model.model for model in usable],
            data=data.content,
            settings=self.settings_of_attack,
            out=str(out),
            pooling=usable[0].pooling,
            max_length=usable[0].max_length,
            has_control=self.has_control,
            names=[model.name for model in usable],
        )
        results = run.run(progress)
        paths = rows_files(out, [entry["name"] for entry in results["models"]])
        measured = []
        for model, path in zip(usable, paths):
            rows, quantity = read_rows(path), Quantity(self.name, data.content.source, "fooled", None, "%", "lower")
            measured.append(share_measured(quantity, model.model, outcomes(rows, SUCCEEDED)))
            human = [float(row.label) for row in rows]
            for metric, field in (("spearman", "score"), ("spearman under attack", "score_adversarial")):
                of_metric = quantity._replace(metric=metric, unit="x 100", better="higher")
                if all(row.outcome == ERROR for row in rows):
                    measured.append(Measured(of_metric, model.model, None, why="every pair ended in an error"))
                    continue
                # A pair that ended in an error keeps its place, so that models are compared pair by pair.
                scores = [float("nan") if row.outcome == ERROR else getattr(row, field) for row in rows]
                measured.append(spearman_measured(of_metric, model.model, scores, human))
        files = [*REPORT_FILES, *(path.name for path in paths)]
        protocol = {**self.settings(), "controls": results["findings"]}
        return Found(measured, files, protocol, whys, baseline=usable[0].name if len(usable) > 1 else None)
