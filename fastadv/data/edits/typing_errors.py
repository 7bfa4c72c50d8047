"""Typing errors: pure functions of a text and a generator, each of one change at one drawn place.

A function gives the text itself where it has no place for the change. Letters of any alphabet are changed; a letter and
the accents after it stay together. Scripts that are written without spaces or by syllables (Chinese, Japanese, Korean,
Thai and their neighbours), emoji, digits and punctuation are left as they are.
"""

import random
import re
import unicodedata
from functools import lru_cache
from typing import Callable, Mapping, Sequence, TypeVar

from fastadv.data.edits.keyboards import neighbours

T = TypeVar("T")

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


Span = tuple[int, int]
"""(begin, end) of a letter in a text, with the accents, variation selectors and joined parts after it"""
# Those of every plain word are the same objects.
_SPANS = tuple((at, at + 1) for at in range(64))


class _Remembered(dict[str, tuple[T, ...]]):
    """A function of a text as a mapping that keeps its results for short texts: words are edited again and again."""

    def __init__(self, function: Callable[[str], tuple[T, ...]]):
        self._function = function

    def __missing__(self, text: str) -> tuple[T, ...]:
        places = self._function(text)
        if len(text) < 32:
            if len(self) >= 1 << 14:
                self.clear()
            self[text] = places
        return places


def _units(text: str) -> Sequence[Span]:
    if text.isascii():
        return _SPANS[: len(text)] if len(text) <= len(_SPANS) else [(at, at + 1) for at in range(len(text))]
    units: list[Span] = []
    for at, character in enumerate(text):
        belongs = unicodedata.category(character)[0] == "M" or character == _JOIN or (units and text[at - 1] == _JOIN)
        if units and belongs:
            units[-1] = units[-1][0], at + 1
        else:
            units.append((at, at + 1))
    return units


@_Remembered
def _letters(text: str) -> tuple[Span, ...]:
    units, num_letters = _units(text), len(text.rstrip())
    if text.isascii() and text[:num_letters].isalpha():
        return tuple(units[:num_letters])
    return tuple(unit for unit in units if is_typed_letter(text[unit[0]]))


@_Remembered
def _pairs(text: str) -> tuple[int, ...]:
    """Numbers of the letters that another letter follows at once."""
    letters = _letters[text]
    if letters and letters[-1][1] - letters[0][0] == len(letters):
        return tuple(range(len(letters) - 1))
    return tuple(i for i, (own, after) in enumerate(zip(letters, letters[1:])) if own[1] == after[0])


@_Remembered
def _unequal_pairs(text: str) -> tuple[int, ...]:
    letters = [text[begin:end].lower() for begin, end in _letters[text]]
    return tuple([i for i in _pairs[text] if letters[i] != letters[i + 1]])


@lru_cache(maxsize=None)
def _keys(keyboard: str) -> tuple[Mapping[str, str], _Remembered[Span]]:
    """The neighbours of each letter of a keyboard, and the letters of a text that the keyboard has."""
    near = neighbours(keyboard)
    has_latin = near.keys() >= set(_LATIN)

    @_Remembered
    def keys(text: str) -> tuple[Span, ...]:
        if has_latin and text.isascii():
            return _letters[text]
        return tuple(unit for unit in _units(text) if text[slice(*unit)].lower() in near)

    return near, keys


@_Remembered
def _with_lookalikes(text: str) -> tuple[Span, ...]:
    return tuple(unit for unit in _units(text) if text[slice(*unit)].lower() in _LOOKALIKES)


@_Remembered
def _with_case(text: str) -> tuple[Span, ...]:
    cased = ((letter, text[slice(*letter)]) for letter in _letters[text])
    return tuple(letter for letter, own in cased if own.swapcase().swapcase() == own != own.swapcase())


def _drawn(places: Sequence[T], generator: random.Random) -> T:
    return places[int(generator.random() * len(places))]


def swap(text: str, generator: random.Random) -> str:
    """Two letters next to each other in each other's place; the two differ."""
    places = _unequal_pairs[text]
    if not places:
        return text
    at = _drawn(places, generator)
    (begin, middle), (_, end) = _letters[text][at : at + 2]
    first, second = text[begin:middle], text[middle:end]
    if first.isupper() and second.islower():
        # The word keeps its capital.
        first, second = first.lower(), second.upper()
    return text[:begin] + second + first + text[end:]


def drop(text: str, generator: random.Random) -> str:
    """Without one letter; a lone letter stays."""
    letters = _letters[text]
    if len(letters) < 2:
        return text
    begin, end = _drawn(letters, generator)
    return text[:begin] + text[end:]


def insert(text: str, generator: random.Random) -> str:
    """With one letter more: any of the Latin alphabet after a Latin letter, else one of the text's own."""
    letters = _letters[text]
    if not letters:
        return text
    at = int(generator.random() * len(letters))
    if text[letters[at][0]].lower() in _LATIN:
        new = _drawn(_LATIN, generator)
    else:
        new = text[slice(*_drawn(letters, generator))].lower()
    return _with_letter(text, letters, at, new)


def neighbour(text: str, generator: random.Random, keyboard: str = "qwerty") -> str:
    """With the letter of a neighbouring key in the place of one letter.

    Args:
        keyboard: one of `fastadv.data.edits.keyboards.KEYBOARDS`.
    """
    near, places_of = _keys(keyboard)
    places = places_of[text]
    if not places:
        return text
    begin, end = _drawn(places, generator)
    own = text[begin:end]
    new = _drawn(near[own.lower()], generator)
    return text[:begin] + (new.upper() if own.isupper() else new) + text[end:]


def double(text: str, generator: random.Random) -> str:
    """With one letter twice."""
    letters = _letters[text]
    if not letters:
        return text
    at = int(generator.random() * len(letters))
    begin, end = letters[at]
    return _with_letter(text, letters, at, text[begin:end])


def _with_letter(text: str, letters: Sequence[Span], at: int, new: str) -> str:
    """With a letter more after letter ``at``, in the case of the letter that follows; at a word's end of ``at``'s."""
    begin, end = letters[at]
    if at + 1 < len(letters) and letters[at + 1][0] == end:
        begin, after = letters[at + 1]
        is_capital = text[begin:after].isupper()
    else:
        is_capital = text[begin:end].isupper()
    return text[:end] + (new.upper() if is_capital else new.lower()) + text[end:]


def lookalike(text: str, generator: random.Random) -> str:
    """With a character that looks like it in the place of a letter: a digit, a sign, a letter of another script."""
    places = _with_lookalikes[text]
    if not places:
        return text
    begin, end = _drawn(places, generator)
    return text[:begin] + _drawn(_LOOKALIKES[text[begin:end].lower()], generator) + text[end:]


def case(text: str, generator: random.Random) -> str:
    """With one letter as a capital where it was small, or small where it was a capital."""
    places = _with_case[text]
    if not places:
        return text
    begin, end = _drawn(places, generator)
    return text[:begin] + text[begin:end].swapcase() + text[end:]


def split(text: str, generator: random.Random) -> str:
    """With a space inside a word, between two of its letters."""
    places = _pairs[text]
    if not places:
        return text
    _, middle = _letters[text][_drawn(places, generator)]
    return text[:middle] + " " + text[middle:]


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
