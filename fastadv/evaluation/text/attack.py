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
from dataclasses import asdict
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

import numpy as np
import torch

from fastadv.config.text_attack import PAIR_ROLES, USED_BY, TextAttackSettings
from fastadv.data.variants.substitution import draw_seed
from fastadv.data.variants.word_sets import WordSets
from fastadv.distributed.devices import gpus_in_use
from fastadv.errors import UserError
from fastadv.evaluation.recipes.recipe_attack import RecipeAttack
from fastadv.evaluation.recipes.text_recipes import Resources
from fastadv.evaluation.recipes.word_attacks import AntonymAttack, NegationAttack, SynonymAttack
from fastadv.evaluation.resources.attack_data import attack_data_folder
from fastadv.evaluation.text.rows import ERROR, FAILED, SKIPPED, SUCCEEDED, TextAttackRow
from fastadv.evaluation.text.search import TextAttacker, Texts, TextSearch
from fastadv.evaluation.text.time_limit import time_limit
from fastadv.evaluation.victims.text import OutOfTime, TextVictim
from fastadv.pages.shown_text import num_changed, word_changes

_MAX_NOTE = 300


def check_settings(settings: TextAttackSettings, victims: Sequence[str] = ()) -> None:
    """UserError for what an attack needs and is missing on the disk, or in the environment.

    Args:
        victims: the folders of the attacked models.
    """
    if settings.word_sets is not None:
        WordSets.load(settings.word_sets)
    if settings.uses_textattack:
        if importlib.util.find_spec("textattack") is None:
            raise UserError("the recipes need TextAttack, which is not installed: pip install 'fastadv[attack]'")
        for victim in victims or (None,):
            resources_of(settings).check(settings.recipe, victim)


def resources_of(settings: TextAttackSettings) -> Resources:
    """What a recipe of TextAttack reads besides the victim."""
    return Resources(data_dir=settings.attack_data, word_vectors=settings.word_vectors, mlm=settings.mlm)


def key_of(settings: TextAttackSettings) -> dict:
    """Plain values, with a hash of what lies in the files in place of their names."""
    values = asdict(settings)
    for name in USED_BY:
        if values[name] is not None:
            values[name] = hash_of_files(values[name])
    if settings.uses_textattack:
        values["attack_data"] = hash_of_files(attack_data_folder(settings.attack_data) / "manifest.json")
        values["textattack"] = importlib.metadata.version("textattack")
    return values


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
    """Row of the source that the text is from, counted from 0."""
    texts: Texts
    label: int
    """as the model numbers its classes"""


def build_attacker(
    settings: TextAttackSettings, victim: TextVictim, roles: tuple[str, str] = PAIR_ROLES
) -> TextAttacker:
    """The attack of ``settings`` on ``victim``.

    Args:
        roles: what the two texts of a pair are to a recipe of TextAttack.

    Raises:
        UserError: something it needs is missing.
    """
    if settings.uses_textattack:
        return RecipeAttack.build(settings.recipe, victim, resources_of(settings), roles)
    if settings.recipe == "negation":
        return NegationAttack(victim)
    kind = AntonymAttack if settings.recipe == "antonym" else SynonymAttack
    return kind(victim, WordSets.load(settings.word_sets))


def attack_text(
    attacker: TextAttacker, victim: TextVictim, settings: TextAttackSettings, text: LabelledText
) -> TextAttackRow:
    """The row of one text. An error of the attack is an outcome; its traceback goes to stderr."""
    search = TextSearch(text.texts, text.label, settings.goal, settings.max_queries)
    start, outcome, note = time.monotonic(), None, ""
    victim.begin(settings.max_seconds)
    try:
        with generators_aside(), time_limit(settings.max_seconds, OutOfTime):
            seed_by(settings.seed, text.texts)
            attacker(search)
    except OutOfTime:
        note = "time"
    except Exception as error:
        traceback.print_exc()
        line = " ".join(f"{type(error).__name__}: {error}".split())
        outcome, note = ERROR, line if len(line) <= _MAX_NOTE else f"{line[: _MAX_NOTE - 3]}..."
    finally:
        victim.begin()
    seconds = time.monotonic() - start
    if outcome == ERROR:
        pass
    elif search.before is None:
        outcome, note = ERROR, f"the text itself was not classified within {settings.max_seconds:g} s"
    elif not search.is_right_before:
        outcome, note = SKIPPED, ""
    elif search.found is not None and search.after is not None:
        outcome, note = SUCCEEDED, ""
    else:
        outcome, note = FAILED, note or ("queries" if search.is_over else "")
    return _row(search, text, victim.names, outcome, seconds, note)


def error_row(text: LabelledText, victim_names: tuple, note: str) -> TextAttackRow:
    """The row of a text that ended whatever attacked it."""
    return _row(TextSearch(text.texts, text.label), text, victim_names, ERROR, 0.0, note)


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
    with torch.random.fork_rng(devices=gpus_in_use()):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _row(
    search: TextSearch, text: LabelledText, names: tuple, outcome: str, seconds: float, note: str = ""
) -> TextAttackRow:
    """The row of a text as ``search`` left it; ``names`` are those of the victim's classes."""
    given = text.texts
    changed, after = (search.found, search.after) if outcome == SUCCEEDED else (given, search.before)
    if outcome == ERROR:
        said, scores = ("", ""), (float("nan"), float("nan"))
    else:
        said = tuple(names[int(probabilities.argmax())] for probabilities in (search.before, after))
        scores = float(search.before[text.label]), float(after[text.label])
    return TextAttackRow(
        row=text.row,
        first=given[0],
        second=(*given, None)[1],
        label=names[text.label],
        outcome=outcome,
        first_adversarial=changed[0],
        second_adversarial=(*changed, None)[1],
        predicted=said[0],
        predicted_adversarial=said[1],
        score=scores[0],
        score_adversarial=scores[1],
        num_queries=search.num_queries,
        num_words=sum(len(part.split()) for part in given),
        num_words_changed=sum(map(count_changed, given, changed)),
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
