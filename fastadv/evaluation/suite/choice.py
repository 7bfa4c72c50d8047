"""Which parts an evaluation has: those that were named, or all; one that cannot even be set up says why."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from fastadv.config.embedding_attack import AttackSettings
from fastadv.config.schema import EvaluationConfig
from fastadv.config.text_attack import USED_BY, TextAttackSettings
from fastadv.errors import UserError
from fastadv.evaluation.suite.adv_sts import AdvStsPart
from fastadv.evaluation.suite.attacks import EmbeddingPart, TextPart
from fastadv.evaluation.suite.models import SuiteModel
from fastadv.evaluation.suite.parts import Found, GeometryPart, Part, PartData, StsPart, TransferPart
from fastadv.evaluation.text.attacked_data import AttackedData

PARTS = ("sts", "transfer", "geometry", "adv-sts", "embeddings", "text")
DEFAULT_RECIPES = ("pwws", "deepwordbug")
DEFAULT_ADV_STS_RECIPE = "pwws"


@dataclass(frozen=True)
class SuiteOptions:
    """What the parts share, and what is their own."""

    out: Path
    data: Optional[str] = None
    """a folder in SentEval layout"""
    parts: Optional[Tuple[str, ...]] = None
    """of `PARTS`; None: all"""
    recipes: Optional[Tuple[str, ...]] = None
    """of the attacks on text; None: `DEFAULT_RECIPES`"""
    adv_sts_recipe: str = DEFAULT_ADV_STS_RECIPE
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


@dataclass(frozen=True)
class MissingPart:
    """One whose settings are not whole."""

    name: str
    why: str
    version: int = 1
    seed: Optional[int] = None

    def read(self, models: Sequence[SuiteModel]) -> PartData:
        raise UserError(self.why)

    def why_not(self, model: SuiteModel, models: Sequence[SuiteModel], data: PartData) -> Optional[str]:
        return self.why

    def settings(self) -> dict:
        return {}

    def measure(self, data: PartData, models: Sequence[SuiteModel], out: Path, progress: bool) -> Found:
        raise UserError(self.why)


def choose_parts(options: SuiteOptions) -> Tuple[List[Part], Tuple[str, ...]]:
    """The parts in their order, and the names of those that were asked for by name.

    Raises:
        UserError: an unknown part, or one that is named twice.
    """
    chosen = PARTS if options.parts is None else options.parts
    unknown = next((name for name in chosen if name not in PARTS), None)
    if unknown is not None or not chosen:
        raise UserError(f"--parts {unknown or 'without a name'}: expected some of {', '.join(PARTS)}")
    for option, names in (("--parts", chosen), ("--recipes", options.recipes or ())):
        if len(set(names)) < len(names):
            raise UserError(f"{option} {' '.join(names)}: expected each once")
    parts: List[Part] = []
    for kind in [name for name in PARTS if name in chosen]:
        if kind != "text":
            parts.append(_made(kind, lambda kind=kind: _part(kind, options)))
            continue
        for recipe in options.recipes or DEFAULT_RECIPES:
            name = f"text-{recipe}"
            parts.append(_made(name, lambda name=name, recipe=recipe: _text_part(name, recipe, options)))
    is_named = {part.name: options.parts is not None for part in parts}
    if options.recipes is not None:
        is_named.update({name: True for name in is_named if name.startswith("text-")})
    return parts, tuple(name for name, was_asked_for in is_named.items() if was_asked_for)


def _made(name: str, make: Callable[[], Part]) -> Part:
    try:
        return make()
    except UserError as error:
        return MissingPart(name, str(error))


def _part(kind: str, options: SuiteOptions) -> Part:
    if kind == "embeddings":
        return EmbeddingPart(options.labelled, options.attack, options.of_encoders, options.batch_size)
    if options.data is None:
        raise UserError("--data is not given; it takes a folder in SentEval layout")
    if kind == "sts":
        return StsPart(options.data, options.batch_size, options.cache_dir)
    if kind == "transfer":
        return TransferPart(options.data, batch_size=options.batch_size, cache_dir=options.cache_dir)
    if kind == "geometry":
        return GeometryPart(options.data, seed=options.seed, batch_size=options.batch_size)
    settings = _text_settings(options.adv_sts_recipe, options)
    return AdvStsPart(options.data, settings, options.max_pairs, options.has_control)


def _text_part(name: str, recipe: str, options: SuiteOptions) -> Part:
    settings = _text_settings(recipe, options)
    return TextPart(options.labelled, settings, name, str(options.out / "victims"), options.batch_size)


def _text_settings(recipe: str, options: SuiteOptions) -> TextAttackSettings:
    shared = {"seed": options.seed, "batch_size": options.batch_size, **options.text_settings}
    read = {name: value for name, value in shared.items() if recipe in USED_BY.get(name, (recipe,))}
    return TextAttackSettings(recipe, **read)
