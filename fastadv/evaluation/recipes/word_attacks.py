"""Balanced Adversarial Training's attacks by words (BAT sections 2 and 3, appendix A.2), on sets of words.

| | what changes | goal by default |
|---|---|---|
| synonym | any number of words, each to one of its synonyms | untargeted |
| antonym | one word of one text, to one of its antonyms | remain |
| negation | one verb of one text gains a negation, or one negation goes | remain |

Words are taken in the order of their importance: how much of the true class's probability goes with them (Jin et al.
2020). Of a pair either text may change. Parts of speech are not looked at: antonyms are WordNet's and have the word's
own, synonyms are as good as the sets.
"""

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

import numpy as np

from fastadv.data.variants.word_sets import Word, WordSets, replaced, words_of
from fastadv.evaluation.text.search import Questions, Texts, TextSearch
from fastadv.evaluation.victims.text import TextVictim

_Place = Tuple[int, int]
"""which text of a pair, which of its words"""

_AUXILIARIES = (
    "am is are was were can could will would shall should may might must do does did has have had ought"
).split()
_CONTRACTED = {"can": "can't", "will": "won't", **{w: f"{w}n't" for w in "is are was were could would should".split()}}
_CONTRACTED.update({word: f"{word}n't" for word in "do does did has have had must".split()})
"""of the others the contraction is not what people write"""
_PLAIN = {negated: word for word, negated in _CONTRACTED.items()}
_PLAIN.update({"shan't": "shall", "mightn't": "might", "oughtn't": "ought", "cannot": "can", "ain't": "is"})
_NEGATIONS = ("not", "never")


@dataclass(frozen=True)
class SynonymAttack:
    """Greedy: word by word in the order of importance, the synonym that takes most from the true class stays."""

    victim: TextVictim
    word_sets: WordSets

    def __call__(self, search: TextSearch) -> None:
        ask = Questions(self.victim, search)
        if not ask.first():
            return
        chosen: Dict[_Place, str] = {}
        best = 1 - search.before[search.label]
        for place, synonyms in _by_importance(ask, search, self.word_sets.synonyms):
            if search.is_over:
                return
            options = [{**chosen, place: synonym} for synonym in synonyms]
            _, scores = ask.try_all([_put(search.texts, option) for option in options])
            if search.found is not None:
                return
            if len(scores) and scores.max() > best:
                best, chosen = scores.max(), options[int(scores.argmax())]


@dataclass(frozen=True)
class AntonymAttack:
    """The first word, in the order of importance, of which an antonym reaches the goal."""

    victim: TextVictim
    word_sets: WordSets

    def __call__(self, search: TextSearch) -> None:
        ask = Questions(self.victim, search)
        if not ask.first():
            return
        for place, antonyms in _by_importance(ask, search, self.word_sets.antonyms):
            if search.is_over or search.found is not None:
                return
            ask.try_all([_put(search.texts, {place: antonym}) for antonym in antonyms])


@dataclass(frozen=True)
class NegationAttack:
    """Every text that differs by one negation; the one that reaches the goal most clearly."""

    victim: TextVictim

    def __call__(self, search: TextSearch) -> None:
        ask = Questions(self.victim, search)
        if not ask.first() or search.is_over:
            return
        ask.try_all(
            [
                (*search.texts[:part], changed, *search.texts[part + 1 :])
                for part, text in enumerate(search.texts)
                for changed in negated(text)
            ]
        )


def negated(text: str) -> List[str]:
    """All texts that differ from this one by one negation: gained by an auxiliary or modal verb, or gone.

    "I can do it" gives "I can't do it", "I am not going" gives "I am going". A verb without an auxiliary gains none.
    """
    words, found = words_of(text), []
    keys = ["", *(word.key for word in words), ""]
    for index, (before, key, after) in enumerate(zip(keys, keys[1:], keys[2:])):
        if key in _PLAIN:
            found.append(replaced(text, {index: _PLAIN[key]}))
        elif key in _NEGATIONS:
            found.append(_without(text, words[index]))
        # Of several verbs in a row the first is negated: "can't do", not "can don't".
        elif key in _AUXILIARIES and after not in _NEGATIONS and before not in (*_AUXILIARIES, *_NEGATIONS, *_PLAIN):
            found.append(replaced(text, {index: _CONTRACTED.get(key, f"{key} not")}))
    return [changed for changed in dict.fromkeys(found) if changed != text]


def _by_importance(
    ask: Questions, search: TextSearch, sets: Mapping[str, Sequence[str]]
) -> List[Tuple[_Place, Sequence[str]]]:
    """Places of words that have others in ``sets``, and those; the most important first."""
    places = [
        ((part, index), word, sets[word.key])
        for part, text in enumerate(search.texts)
        for index, word in enumerate(words_of(text))
        if sets.get(word.key)
    ]
    if search.is_over or not places:
        return []
    asked = ask([_put_out(search.texts, part, word) for (part, _), word, _ in places])
    # Equal ones in the order of the text; those that no query was left for are not tried.
    order = np.argsort(asked[:, search.label], kind="stable")
    return [(places[number][0], places[number][2]) for number in order]


def _put(texts: Texts, substitutes: Dict[_Place, str]) -> Texts:
    return tuple(
        replaced(text, {index: word for (other, index), word in substitutes.items() if other == part})
        for part, text in enumerate(texts)
    )


def _put_out(texts: Texts, part: int, word: Word) -> Texts:
    return (*texts[:part], _without(texts[part], word), *texts[part + 1 :])


def _without(text: str, word: Word) -> str:
    """The text without a word and without the space that stood before it, or after it at the beginning."""
    before, after = text[: word.start], text[word.end :]
    if before.endswith(" "):
        return before[:-1] + after
    return before + re.sub(r"^ ", "", after)
