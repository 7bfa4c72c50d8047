"""The part of an evaluation that attacks scored pairs of sentences (AdvSTS). See `fastadv.evaluation.suite.parts`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence

from fastadv.errors import UserError
from fastadv.evaluation.suite.models import SuiteModel, at_shortest
from fastadv.evaluation.suite.numbers import Measured, spearman_measured
from fastadv.evaluation.suite.parts import AttackPart, Found, Part, PartData, SuiteOptions, check_each, those_that_can
from fastadv.evaluation.suite.rows import found_by_attack, outcomes, share_measured
from fastadv.evaluation.suite.schema import SIMILARITY, Quantity
from fastadv.evaluation.text.attack import TextAttackSettings, check_settings, key_of
from fastadv.evaluation.text.rows import ERROR, SUCCEEDED, TextAttackRow
from fastadv.files.hashes import sha256_of


@dataclass(frozen=True)
class AdvStsPart(AttackPart):
    """``fastadv evaluate adv-sts``."""

    name = "adv-sts"
    data: str
    settings_of_attack: TextAttackSettings
    max_pairs: Optional[int] = None
    has_control: bool = True

    @classmethod
    def from_options(cls, options: SuiteOptions) -> Sequence[Part]:
        settings = options.settings_of(options.adv_sts_recipe)
        return [cls(options.senteval, settings, options.max_pairs, options.has_control)]

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
            prompts=[model.prompt for model in usable],
            has_control=self.has_control,
            names=[model.name for model in usable],
            device=usable[0].device,
        )

        def measured(model: SuiteModel, rows: Sequence[TextAttackRow]) -> Iterator[Measured]:
            clean = Quantity(self.name, data.content.source, "spearman", task=SIMILARITY)
            fooled = clean.under_attack(metric="fooled", unit="%", better="lower")
            yield share_measured(fooled, model.model, outcomes(rows, SUCCEEDED))
            human = [float(row.label) for row in rows]
            attacked = clean.under_attack(metric="spearman under attack")
            for of_metric, field in ((clean, "score"), (attacked, "score_adversarial")):
                if all(row.outcome == ERROR for row in rows):
                    yield Measured(of_metric, model.model, None, why="every pair ended in an error")
                    continue
                # A pair that ended in an error keeps its place, so that models are compared pair by pair.
                scores = [float("nan") if row.outcome == ERROR else getattr(row, field) for row in rows]
                yield spearman_measured(of_metric, model.model, scores, human)

        return found_by_attack(run, usable, progress, measured, self.settings(), whys)
