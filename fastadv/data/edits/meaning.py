"""Words replaced: synonyms, which keep what a text says, and flips, which change it.

All are pure functions of a text and a generator, each of one change at one drawn place; a text without a place for the
change is given back as it is. Negations and names are English.
"""

import random
import re
from typing import Mapping, Sequence

from fastadv.data.variants.word_sets import WordSets, replaced, words_of

_AUXILIARIES = "is|are|was|were|am|can|could|will|would|should|must|may|might|do|does|did|has|have|had"
# Capitals begin a sentence; May and Will are names as well.
_CAPITALS = "|".join(word.capitalize() for word in _AUXILIARIES.split("|") if word not in ("may", "will"))
_AUXILIARY = re.compile(rf"\b({_AUXILIARIES}|{_CAPITALS})\b(?!\s+not\b|\s*n?['’]t)")
_NEGATED = re.compile(rf"\b({_AUXILIARIES}|{_CAPITALS}|ca|wo|Ca|Wo)(\s+not\b|\s*n['’]t\b)|\b[Cc]annot\b")
_DIGITS = re.compile(r"(?<![\w.,])\d{1,9}(?![\w])")
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBER_WORD = re.compile(rf"\b({'|'.join(_NUMBERS)})\b", re.IGNORECASE)
_FIRST_NAMES = (
    "Anna",
    "Peter",
    "Maria",
    "David",
    "Laura",
    "Thomas",
    "Julia",
    "Robert",
    "Helen",
    "Martin",
    "Alice",
    "Paul",
)
_PLACES = (
    "Paris",
    "Berlin",
    "Chicago",
    "Madrid",
    "Tokyo",
    "Vienna",
    "Boston",
    "Oslo",
    "Cairo",
    "Lisbon",
    "Dublin",
    "Rome",
)
_TITLE_BEFORE = re.compile(r"\b(Mr|Mrs|Ms|Dr|Prof|Sir|Lady|Miss|Captain|President|director|actor|actress)\.?\s+$")
_PLACE_BEFORE = re.compile(r"\b(in|at|from|to|near|of)\s+$")


def synonym(text: str, generator: random.Random, word_sets: WordSets) -> str:
    """With one word replaced by one of its synonyms."""
    return _with_member(text, generator, word_sets.synonyms)


def antonym(text: str, generator: random.Random, word_sets: WordSets) -> str:
    """With one word replaced by one of its antonyms."""
    return _with_member(text, generator, word_sets.antonyms)


def _with_member(text: str, generator: random.Random, sets: Mapping[str, Sequence[str]]) -> str:
    places = []
    for index, word in enumerate(words_of(text)):
        others = [other for other in sets.get(word.key, ()) if other != word.key]
        if others:
            places.append((index, others))
    if not places:
        return text
    index, others = _drawn(places, generator)
    return replaced(text, {index: _drawn(others, generator)})


def negation(text: str, generator: random.Random) -> str:
    """With one negation of a verb more, or one less: "is" and "is not"."""
    places = [*_AUXILIARY.finditer(text), *_NEGATED.finditer(text)]
    # An auxiliary that is negated already has one way to change.
    places = [place for place in places if place.re is _NEGATED or not _NEGATED.match(text, place.start())]
    if not places:
        return text
    place = _drawn(sorted(places, key=re.Match.start), generator)
    verb = place.group(1)
    if place.re is _AUXILIARY:
        new = f"{verb} not"
    elif verb is None:
        # cannot
        new = place.group()[:3]
    else:
        new = verb
        if verb.lower() in ("ca", "wo"):
            new = {"ca": "can", "wo": "will", "Ca": "Can", "Wo": "Will"}[verb]
    return text[: place.start()] + new + text[place.end() :]


def number(text: str, generator: random.Random) -> str:
    """With another number, of as many digits, in the place of one number; "two" to "twelve" too."""
    places = sorted([*_DIGITS.finditer(text), *_NUMBER_WORD.finditer(text)], key=re.Match.start)
    if not places:
        return text
    place = _drawn(places, generator)
    old = place.group()
    if old.isdecimal():
        least = 0 if len(old) == 1 else 10 ** (len(old) - 1)
        drawn = least + int(generator.random() * (10 ** len(old) - 1 - least))
        new = str(drawn + (drawn >= int(old)))
    else:
        new = _drawn([word for word in _NUMBERS if word != old.lower()], generator)
        new = new.capitalize() if old[0].isupper() else new
    return text[: place.start()] + new + text[place.end() :]


def name(text: str, generator: random.Random) -> str:
    """With another name in the place of one: a capitalised word after a title, or, after "in" or "from", of a place.

    Other names are not known from other capitalised words, and stay.
    """
    places = []
    for word in words_of(text):
        if not (word.text[0].isupper() and word.text[1:].islower()):
            continue
        before = text[max(0, word.start - 24) : word.start]
        others = _FIRST_NAMES if _TITLE_BEFORE.search(before) else _PLACES if _PLACE_BEFORE.search(before) else ()
        if others:
            places.append((word, [other for other in others if other != word.text]))
    if not places:
        return text
    word, others = _drawn(places, generator)
    return text[: word.start] + _drawn(others, generator) + text[word.end :]


def _drawn(places, generator: random.Random):
    return places[int(generator.random() * len(places))]
