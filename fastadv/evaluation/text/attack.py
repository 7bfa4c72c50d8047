"""One attack on one text, whatever its recipe: from a labelled text to its row.

    attacker = build_attacker(settings, victim)
    row = attack_text(attacker, victim, settings, text)

A text's random numbers are seeded by the text, its answers are forgotten with it, and it never meets another text in a
batch: so a row is the same in any order and in any process. Outcomes are METHODS 5's: what was wrong before is skipped
and was not attacked; a text that a limit ends has failed, and its note says which.
"""

import hashlib
import importlib.metadata
import importlib.util
import random
import time
import traceback
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
import torch

from fastadv.data.variants.substitution import draw_seed
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.recipes.recipe_attack import RecipeAttack
from fastadv.evaluation.recipes.text_recipes import NEEDS_MLM, NEEDS_VECTORS, Resources
from fastadv.evaluation.recipes.text_recipes import RECIPES as TEXTATTACK_RECIPES
from fastadv.evaluation.recipes.word_attacks import DEFAULT_GOALS, AntonymAttack, NegationAttack, SynonymAttack
from fastadv.evaluation.resources.attack_data import attack_data_folder
from fastadv.evaluation.text.rows import ERROR, FAILED, SKIPPED, SUCCEEDED, TextAttackRow
from fastadv.evaluation.text.search import GOALS, REMAIN, UNTARGETED, TextAttacker, Texts, TextSearch
from fastadv.evaluation.text.time_limit import time_limit
from fastadv.evaluation.victims.text import DEFAULT_BATCH_SIZE, OutOfTime, TextVictim
from fastadv.pages.shown_text import num_changed, word_changes

WORD_RECIPES = ("antonym", "negation", "synonym")
RECIPES = (*TEXTATTACK_RECIPES, *WORD_RECIPES)

DEFAULT_MAX_SECONDS = 120.0

USED_BY: Dict[str, tuple] = {
    "word_sets": ("antonym", "synonym"),
    "mlm": NEEDS_MLM,
    "word_vectors": NEEDS_VECTORS,
    "attack_data": TEXTATTACK_RECIPES,
}
"""which recipes read which file or folder"""
_NEEDED = ("word_sets", "mlm", "word_vectors")

_MAX_NOTE = 300


@dataclass(frozen=True)
class TextAttackSettings:
    """What an attack is; every value has a say in its rows."""

    recipe: str
    goal: Optional[str] = None
    """``untargeted`` or ``remain`` (`fastadv.evaluation.text.search`); None: the recipe's own"""
    max_queries: Optional[int] = None
    """texts asked for at most, the text as given included; None: no limit"""
    max_seconds: Optional[float] = DEFAULT_MAX_SECONDS
    """a text; None: no limit"""
    seed: int = 0
    batch_size: int = DEFAULT_BATCH_SIZE
    """texts a pass of the classifier"""
    word_sets: Optional[str] = None
    """a file of `fastadv.data.variants.word_sets`"""
    mlm: Optional[str] = None
    """a folder of a masked language model"""
    word_vectors: Optional[str] = None
    """a file of word vectors (``fastadv word-sets --vectors_out``)"""
    attack_data: Optional[str] = None
    """the folder of ``fastadv prepare-attack-data``; None: the usual place"""

    def __post_init__(self):
        if self.recipe not in RECIPES:
            raise UserError(f"recipe {self.recipe!r}: expected one of {', '.join(RECIPES)}")
        own = DEFAULT_GOALS.get(self.recipe, UNTARGETED)
        goal = own if self.goal is None else self.goal
        if goal not in GOALS:
            raise UserError(f"goal {goal!r}: expected one of {', '.join(GOALS)}")
        if goal == REMAIN and own != REMAIN:
            raise UserError(
                f"goal {goal!r}: {self.recipe} keeps the true class, where an unchanged prediction is right; "
                f"expected {UNTARGETED}, or one of {', '.join(r for r, g in DEFAULT_GOALS.items() if g == REMAIN)}"
            )
        object.__setattr__(self, "goal", goal)
        for name, least in (("max_queries", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} {value}: expected at least {least}")
        # Not a number fails every comparison.
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UserError(f"max_seconds {self.max_seconds}: expected more than 0")
        for name, recipes in USED_BY.items():
            if getattr(self, name) is not None and self.recipe not in recipes:
                raise UserError(f"{name} is read by {', '.join(recipes)}; {self.recipe} has no use for it")
            if getattr(self, name) is None and name in _NEEDED and self.recipe in recipes:
                raise UserError(f"{self.recipe} needs --{name}")

    @property
    def uses_textattack(self) -> bool:
        return self.recipe in TEXTATTACK_RECIPES

    @property
    def resources(self) -> Resources:
        """What a recipe of TextAttack reads beside the victim."""
        return Resources(data_dir=self.attack_data, word_vectors=self.word_vectors, mlm=self.mlm)

    def check(self, victims: Sequence[str] = ()) -> None:
        """UserError for what is missing on the disk, or in the environment.

        Args:
            victims: the folders of the attacked models.
        """
        if self.word_sets is not None:
            WordSets.load(self.word_sets)
        if self.uses_textattack:
            check_textattack()
            for victim in victims:
                self.resources.check(self.recipe, victim)

    def as_key(self) -> dict:
        """Plain values, with a hash of what lies in the files in place of their names."""
        values = asdict(self)
        for name in USED_BY:
            if values[name] is not None:
                values[name] = hash_of_files(values[name])
        if self.uses_textattack:
            values["attack_data"] = hash_of_files(attack_data_folder(self.attack_data) / "manifest.json")
            values["textattack"] = importlib.metadata.version("textattack")
        return values


def check_textattack() -> None:
    """UserError where TextAttack is not installed."""
    if importlib.util.find_spec("textattack") is None:
        raise UserError("the recipes need TextAttack, which is not installed: pip install 'fastadv[attack]'")


def hash_of_files(path: str | Path) -> str:
    """Of a file, or of all files of a folder with their places."""
    path, digest = Path(path).expanduser(), hashlib.sha256()
    for part in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if part.is_file():
            digest.update(f"{part.relative_to(path)}\0{part.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            with part.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


class LabelledText(NamedTuple):
    """A text, or a pair of texts, to attack."""

    row: int
    """of its source, from 0"""
    texts: Texts
    label: int
    """as the model numbers its classes"""


def build_attacker(settings: TextAttackSettings, victim: TextVictim) -> TextAttacker:
    """The attack of ``settings`` on ``victim``.

    Raises:
        UserError: something it needs is missing.
    """
    if settings.uses_textattack:
        return RecipeAttack.build(settings.recipe, victim, settings.resources)
    if settings.recipe == "negation":
        return NegationAttack(victim)
    kind: Callable = {"antonym": AntonymAttack, "synonym": SynonymAttack}[settings.recipe]
    return kind(victim, WordSets.load(settings.word_sets))


def attack_text(
    attacker: TextAttacker, victim: TextVictim, settings: TextAttackSettings, text: LabelledText
) -> TextAttackRow:
    """The row of one text. An error of the attack is an outcome; its traceback goes to stderr."""
    search = TextSearch(text.texts, text.label, settings.goal, settings.max_queries)
    start, note = time.monotonic(), ""
    victim.begin(settings.max_seconds)
    try:
        with generators_aside(), time_limit(settings.max_seconds, OutOfTime):
            seed_by(settings.seed, text.texts)
            attacker(search)
    except OutOfTime:
        note = "time"
    except Exception as error:
        traceback.print_exc()
        return _row(search, text, victim, ERROR, time.monotonic() - start, _in_one_line(error))
    finally:
        victim.begin()
    seconds = time.monotonic() - start
    if search.before is None:
        reason = f"the text itself was not classified within {settings.max_seconds:g} s"
        return _row(search, text, victim, ERROR, seconds, reason)
    if not search.is_right_before:
        return _row(search, text, victim, SKIPPED, seconds)
    if search.found is not None and search.after is not None:
        return _row(search, text, victim, SUCCEEDED, seconds)
    return _row(search, text, victim, FAILED, seconds, note or ("queries" if search.is_over else ""))


def error_row(text: LabelledText, victim_names: tuple, note: str) -> TextAttackRow:
    """The row of a text that ended whatever attacked it."""
    return _error(TextSearch(text.texts, text.label), text, victim_names, 0.0, note)


def seed_by(seed: int, texts: Texts) -> None:
    """Seeds the generators that recipes draw from, by the text and ``seed`` alone."""
    drawn = int(draw_seed(seed, 0, texts, "attack").integers(2**32))
    random.seed(drawn)
    np.random.seed(drawn)
    torch.manual_seed(drawn)


@contextmanager
def generators_aside() -> Iterator[None]:
    """The generators that `seed_by` seeds are afterwards as they were: a training run goes on as without the attack."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _row(
    search: TextSearch, text: LabelledText, victim: TextVictim, outcome: str, seconds: float, note: str = ""
) -> TextAttackRow:
    names, given = victim.names, text.texts
    if outcome == ERROR:
        return _error(search, text, names, seconds, note)
    has_succeeded = outcome == SUCCEEDED
    changed, after = (search.found, search.after) if has_succeeded else (given, search.before)
    return TextAttackRow(
        row=text.row,
        first=given[0],
        second=_second(given),
        label=names[text.label],
        outcome=outcome,
        first_adversarial=changed[0],
        second_adversarial=_second(changed),
        predicted=names[int(search.before.argmax())],
        predicted_adversarial=names[int(after.argmax())],
        score=float(search.before[text.label]),
        score_adversarial=float(after[text.label]),
        num_queries=search.num_queries,
        num_words=sum(len(part.split()) for part in given),
        num_words_changed=sum(map(count_changed, given, changed)),
        seconds=seconds,
        note=note,
    )


def _error(search: TextSearch, text: LabelledText, names: tuple, seconds: float, note: str) -> TextAttackRow:
    given = text.texts
    return TextAttackRow(
        row=text.row,
        first=given[0],
        second=_second(given),
        label=names[text.label],
        outcome=ERROR,
        first_adversarial=given[0],
        second_adversarial=_second(given),
        predicted="",
        predicted_adversarial="",
        score=float("nan"),
        score_adversarial=float("nan"),
        num_queries=search.num_queries,
        num_words=sum(len(part.split()) for part in given),
        num_words_changed=0,
        seconds=seconds,
        note=note,
    )


def count_changed(before: str, after: str) -> int:
    """Words, as spaces set them apart, that differ."""
    old, new = before.split(), after.split()
    if len(old) == len(new):
        # Words were put in the place of words; and matching long runs of one word would take minutes.
        return sum(one != other for one, other in zip(old, new))
    return num_changed(word_changes(before, after))


def _second(texts: Texts) -> Optional[str]:
    return texts[1] if len(texts) == 2 else None


def _in_one_line(error: Exception) -> str:
    said: List[str] = f"{type(error).__name__}: {error}".split()
    line = " ".join(said)
    return line if len(line) <= _MAX_NOTE else f"{line[: _MAX_NOTE - 3]}..."
