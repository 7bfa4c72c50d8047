"""Typing errors: pure functions of a text and a generator, each of one change at one drawn place.

A function gives the text itself where it has no place for the change. Letters of any alphabet are changed; a letter and
the accents after it stay together. Scripts that are written without spaces or by syllables (Chinese, Japanese, Korean,
Thai and their neighbours), emoji, digits and punctuation are left as they are.
"""

import random
import re
import unicodedata
from functools import lru_cache

from fastadv.data.edits.keyboards import neighbours

_ASCII = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LATIN = "abcdefghijklmnopqrstuvwxyz"
_NOT_TYPED_BY_LETTERS = re.compile(
    "HIRAGANA|KATAKANA|CJK|HANGUL|BOPOMOFO|YI SYLLABLE|THAI|LAO |KHMER|MYANMAR|TIBETAN|ETHIOPIC|CHEROKEE|"
    "IDEOGRAPHIC|NUSHU|TANGUT|MATHEMATICAL"
)
_JOIN = "\u200d"

# Letters that look alike, in both directions; some are of another script.
_LOOKALIKES = {
    **{"a": "@аα", "b": "Ьƅ", "c": "сϲ", "d": "ԁ", "e": "3еє", "g": "9ɡ", "h": "һ", "i": "1!і", "j": "ј", "k": "κ"},
    **{"l": "1I", "n": "ո", "o": "0оο", "p": "рρ", "q": "9", "r": "г", "s": "5$ѕ", "t": "7τ", "u": "υս", "v": "ν"},
    **{"w": "ԝ", "x": "х×", "y": "уγ", "z": "2"},
    **{"а": "a", "е": "e", "о": "o0", "р": "p", "с": "c", "у": "y", "х": "x", "і": "i", "ѕ": "s", "ј": "j"},
    **{"α": "a", "ο": "o", "ρ": "p", "ν": "v", "κ": "k", "υ": "u", "γ": "y", "τ": "t"},
}


@lru_cache(maxsize=4096)
def is_typed_letter(letter: str) -> bool:
    """Whether a character is a letter of an alphabet, that is, typed by a key of its own."""
    if letter in _ASCII:
        return True
    return letter.isalpha() and not _NOT_TYPED_BY_LETTERS.match(unicodedata.name(letter, "IDEOGRAPHIC"))


def _units(text: str) -> list[str]:
    """Letters with the accents, variation selectors and joined parts after them, each as one piece of ``text``."""
    if text.isascii():
        return list(text)
    units: list[str] = []
    for character in text:
        belongs = unicodedata.category(character)[0] == "M" or character == _JOIN or (units and units[-1][-1] == _JOIN)
        if units and belongs:
            units[-1] += character
        else:
            units.append(character)
    return units


def _is_letter(unit: str) -> bool:
    return is_typed_letter(unit[0])


def _letters(units: list[str]) -> list[int]:
    return [i for i, unit in enumerate(units) if unit[0] in _ASCII or _is_letter(unit)]


def _drawn(places: list[int], generator: random.Random) -> int:
    return places[int(generator.random() * len(places))]


def swap(text: str, generator: random.Random) -> str:
    """Two letters next to each other in each other's place; the two differ."""
    units = _units(text)
    letters = set(_letters(units))
    places = [i for i in letters if i + 1 in letters and units[i].lower() != units[i + 1].lower()]
    if not places:
        return text
    at = _drawn(sorted(places), generator)
    first, second = units[at], units[at + 1]
    if first.isupper() and second.islower():
        # The word keeps its capital.
        first, second = first.lower(), second.upper()
    return "".join([*units[:at], second, first, *units[at + 2 :]])


def drop(text: str, generator: random.Random) -> str:
    """Without one letter; a lone letter stays."""
    units = _units(text)
    letters = _letters(units)
    if len(letters) < 2:
        return text
    at = _drawn(letters, generator)
    return "".join([*units[:at], *units[at + 1 :]])


def insert(text: str, generator: random.Random) -> str:
    """With one letter more: any of the Latin alphabet after a Latin letter, else one of the text's own."""
    units = _units(text)
    letters = _letters(units)
    if not letters:
        return text
    at = _drawn(letters, generator)
    own = units[at]
    if own[0].lower() in _LATIN:
        new = _LATIN[int(generator.random() * len(_LATIN))]
    else:
        new = units[_drawn(letters, generator)].lower()
    return "".join([*units[: at + 1], _in_case_of(_after(units, at), new), *units[at + 1 :]])


def neighbour(text: str, generator: random.Random, keyboard: str = "qwerty") -> str:
    """With the letter of a neighbouring key in the place of one letter.

    Args:
        keyboard: one of `fastadv.data.edits.keyboards.KEYBOARDS`.
    """
    keys, units = neighbours(keyboard), _units(text)
    places = [i for i, unit in enumerate(units) if unit.lower() in keys]
    if not places:
        return text
    at = _drawn(places, generator)
    near = keys[units[at].lower()]
    new = near[int(generator.random() * len(near))]
    return "".join([*units[:at], _in_case_of(units[at], new), *units[at + 1 :]])


def double(text: str, generator: random.Random) -> str:
    """With one letter twice."""
    units = _units(text)
    letters = _letters(units)
    if not letters:
        return text
    at = _drawn(letters, generator)
    return "".join([*units[: at + 1], _in_case_of(_after(units, at), units[at]), *units[at + 1 :]])


def lookalike(text: str, generator: random.Random) -> str:
    """With a character that looks like it in the place of a letter: a digit, a sign, a letter of another script."""
    units = _units(text)
    places = [i for i, unit in enumerate(units) if unit.lower() in _LOOKALIKES]
    if not places:
        return text
    at = _drawn(places, generator)
    alike = _LOOKALIKES[units[at].lower()]
    return "".join([*units[:at], alike[int(generator.random() * len(alike))], *units[at + 1 :]])


def case(text: str, generator: random.Random) -> str:
    """With one letter as a capital where it was small, or small where it was a capital."""
    units = _units(text)
    places = [i for i in _letters(units) if units[i].swapcase().swapcase() == units[i] != units[i].swapcase()]
    if not places:
        return text
    at = _drawn(places, generator)
    return "".join([*units[:at], units[at].swapcase(), *units[at + 1 :]])


def split(text: str, generator: random.Random) -> str:
    """With a space inside a word, between two of its letters."""
    units = _units(text)
    letters = set(_letters(units))
    places = sorted(i for i in letters if i + 1 in letters)
    if not places:
        return text
    at = _drawn(places, generator)
    return "".join([*units[: at + 1], " ", *units[at + 1 :]])


def join(text: str, generator: random.Random) -> str:
    """Without the space after one word."""
    places = [
        match
        for match in re.finditer(r"(?<=\S)[ \t]+", text)
        if is_typed_letter(text[match.start() - 1]) or unicodedata.category(text[match.start() - 1])[0] == "M"
    ]
    if not places:
        return text
    gap = places[int(generator.random() * len(places))]
    return text[: gap.start()] + text[gap.end() :]


def _after(units: list[str], at: int) -> str:
    """The letter after the one at ``at``, whose case a new letter between the two takes; itself at a word's end."""
    return units[at + 1] if at + 1 < len(units) and _is_letter(units[at + 1]) else units[at]


def _in_case_of(old: str, new: str) -> str:
    return new.upper() if old.isupper() else new.lower()
