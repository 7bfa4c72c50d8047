"""Edits by name: a function of a text and a generator each, which a config lists and a proposal is drawn from.

| group | edits |
|---|---|
| ``typos`` | ``swap``, ``drop``, ``insert``, ``neighbour``, ``double`` |
| ``looks`` | ``lookalike``, ``case`` |
| ``spaces`` | ``join``, ``split`` |
| ``synonyms`` | a word by one of its synonyms, of ``data.word_sets`` |
| ``flips`` | ``antonym`` (of ``data.word_sets``), ``negation``, ``number``, ``name``: the text says another thing |

To add an edit, write a function ``(text, generator) -> text`` and name it here, or keep it in a package of your own and
list ``my_package.my_module:function``.
"""

import random
from dataclasses import dataclass
from functools import partial
from typing import Callable, Sequence

from fastadv.config.own_class import find_function
from fastadv.data.edits import meaning, typing_errors
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError

Edit = Callable[[str, random.Random], str]
"""(text, generator) → the text with one change, or the text itself; a pure function that pickles"""

TYPING_ERRORS = {
    name: getattr(typing_errors, name)
    for name in ("swap", "drop", "insert", "neighbour", "double", "lookalike", "case", "join", "split")
}
FLIPS = {name: getattr(meaning, name) for name in ("negation", "number", "name")}
GROUPS = {
    "typos": ("swap", "drop", "insert", "neighbour", "double"),
    "looks": ("lookalike", "case"),
    "spaces": ("join", "split"),
    "flips": ("antonym", "negation", "number", "name"),
}
OF_WORD_SETS = {"synonyms": meaning.synonym, "antonym": meaning.antonym}
FLIP_NAMES = GROUPS["flips"]
NAMES = (*GROUPS, *TYPING_ERRORS, *OF_WORD_SETS, *FLIPS)
"""Everything that a list of edits may name, but functions of the user's own."""

_OWN = "your own as my_package.my_module:function"


@dataclass(frozen=True)
class OwnEdit:
    """A function of the user's own, whose mistakes are told in one line."""

    name: str
    function: Callable

    def __call__(self, text: str, generator: random.Random) -> str:
        try:
            edited = self.function(text, generator)
        except Exception as error:  # whatever it may raise
            raise UserError(f"{self.name} failed on {text[:60]!r}: {type(error).__name__}: {error}") from error
        if not isinstance(edited, str):
            raise UserError(f"{self.name} gave {type(edited).__name__}, expected the edited text")
        return edited


@dataclass(frozen=True)
class Edits:
    """The edits of a list of names."""

    of_words: tuple[Edit, ...]
    """Edits that change one word: each word of a proposal draws one of them."""
    of_texts: tuple[Edit, ...]
    """Edits that are given the whole text: flips, and functions of the user's own."""


def expanded(names: Sequence[str]) -> list[str]:
    """``names`` with groups spelt out, each edit once."""
    return list(dict.fromkeys(name for given in names for name in GROUPS.get(given, (given,))))


def check_edits(names: Sequence[str], key: str, keeps_meaning: bool = True) -> None:
    """UserError for a name that is unknown, or of an edit of the other side.

    Args:
        key: the config key that the names were given for.
        keeps_meaning: whether edits that keep a text's meaning are expected, else flips.
    """
    for name in expanded(names):
        is_flip = name in FLIP_NAMES
        if ":" in name:
            find_function(name, key)
            continue
        if name not in NAMES or is_flip == keeps_meaning:
            allowed = [n for n in NAMES if (n == "flips" or n in FLIP_NAMES) != keeps_meaning]
            raise UserError(f"{key}: {name!r} is no edit of this kind; expected {', '.join(allowed)}, or {_OWN}")


def make_edits(names: Sequence[str], key: str, word_sets: WordSets | None = None, keyboard: str = "qwerty") -> Edits:
    """The functions of a list of names.

    Raises:
        UserError: an unknown name, a function that does not import, or word sets that are not given.
    """
    of_words, of_texts = [], []
    for name in expanded(names):
        if ":" in name:
            of_texts.append(OwnEdit(name, find_function(name, key)))
        elif name in OF_WORD_SETS:
            if word_sets is None:
                raise UserError(f"{key}: {name} needs data.word_sets; expected a file that fastadv word-sets made")
            edit = partial(OF_WORD_SETS[name], word_sets=word_sets)
            (of_texts if name in FLIP_NAMES else of_words).append(edit)
        elif name in FLIPS:
            of_texts.append(FLIPS[name])
        elif name in TYPING_ERRORS:
            edit = TYPING_ERRORS[name]
            of_words.append(partial(edit, keyboard=keyboard) if name == "neighbour" else edit)
        else:
            raise UserError(f"{key}: {name!r} is unknown; expected {', '.join(NAMES)}, or {_OWN}")
    return Edits(tuple(of_words), tuple(of_texts))
