"""Proposals: edited copies of a text, drawn by (seed, epoch, row, number) and by nothing else."""

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Iterator, Sequence

from fastadv.data.edits.kinds import Edits
from fastadv.data.edits.typing_errors import is_typed_letter
from fastadv.data.variants.text_pairs import Texts
from fastadv.data.variants.word_sets import words_of

PROTECTED = (
    r"(?:https?://|www\.)\S+",
    r"[\w.+-]{1,64}@[\w.-]{1,255}",
    r"<[^<>]{1,200}>",
    r"&#?\w{1,10};",
    r"[@#]\w+",
)
"""What no edit of a word touches: addresses, mark-up, and names with @ and #. Nor is a word what has a digit."""

_TRIES = 4
"""Edits drawn for a word before it is left as it is."""


@dataclass(frozen=True)
class Proposer:
    """Draws proposals. Pickles, for loader processes.

    Args:
        edits: what a word, or a whole text, may become.
        num_proposals: K, proposals of each row.
        word_share: bounds of the share of words that a proposal changes, drawn for each proposal; one word at least.
        protected: regular expressions of what stays as it is, besides `PROTECTED`.
        min_letters: words of fewer letters stay as they are.
        seed: of the run.
        side: sets draws of the two sides of a row apart: edits that keep its meaning, and flips.
        is_by_word: whether each word is edited (`every_word`), and the words are chosen in the step.
    """

    edits: Edits
    num_proposals: int
    word_share: tuple[float, float] = (0.1, 0.5)
    protected: tuple[str, ...] = ()
    min_letters: int = 4
    seed: int = 0
    side: str = "text"
    is_by_word: bool = False

    def of(self, row: int, texts: Texts, epoch: int) -> list[Texts | None]:
        """K proposals for the texts of a row; None in the place of one that is the row's texts themselves.

        The first k of K are those of a proposer with ``num_proposals`` k.
        """
        generator = generator_of(self.seed, epoch, row, self.side)
        segments = [pieces_of(text, self.min_letters, self.protected) for text in texts]
        places = [(part, i) for part, of_text in enumerate(segments) for i in range(1, len(of_text), 2)]
        proposals: list[Texts | None] = []
        for _ in range(self.num_proposals):
            drawn = self._drawn(texts, segments, places, generator)
            is_emptied = any(old.strip() and not new.strip() for old, new in zip(texts, drawn))
            proposals.append(None if drawn == texts or is_emptied else drawn)
        return proposals

    def every_word(self, row: int, texts: Texts, epoch: int) -> "EveryWord":
        """The texts with each word edited that can be, for whoever chooses the words; joins are not among the edits."""
        generator = generator_of(self.seed, epoch, row, self.side)
        segments = [pieces_of(text, self.min_letters, self.protected) for text in texts]
        edited = [[self._edited(p, generator) if i % 2 else p for i, p in enumerate(s)] for s in segments]
        is_new = [[new != old for new, old in zip(*both)] for both in zip(edited, segments)]
        own_spans, edited_spans = ([_spans(*of_text) for of_text in zip(side, is_new)] for side in (segments, edited))
        return EveryWord(tuple(map("".join, edited)), own_spans, edited_spans, self._share(generator))

    def _share(self, generator: random.Random) -> float:
        """Share of the words to edit."""
        least, most = self.word_share
        return least + (most - least) * generator.random()

    def _drawn(
        self, texts: Texts, segments: Sequence[list[str]], places: list[tuple[int, int]], generator: random.Random
    ) -> Texts:
        """One proposal; ``places`` are (text, piece) of the words that may be edited."""
        of_words, of_texts = self.edits.of_words, self.edits.of_texts
        which = int(generator.random() * (bool(of_words) + len(of_texts)))
        if of_words and which == 0:
            count, num_edited = max(1, round(self._share(generator) * len(places))), 0
            pieces = [list(of_text) for of_text in segments]
            # Words that no edit changes, those without a synonym for instance, give way to others.
            for part, i in generator.sample(places, len(places)):
                new = self._edited(pieces[part][i], generator)
                num_edited += new != pieces[part][i]
                pieces[part][i] = new
                if num_edited == count:
                    break
            return tuple(map("".join, pieces))
        edit = of_texts[which - bool(of_words)]
        for part in generator.sample(range(len(texts)), len(texts)):
            edited = edit(texts[part], generator)
            if edited != texts[part]:
                return (*texts[:part], edited, *texts[part + 1 :])
        return texts

    def _edited(self, word: str, generator: random.Random) -> str:
        of_words = self.edits.of_words
        for _ in range(_TRIES):
            new = of_words[int(generator.random() * len(of_words))](word, generator)
            if new != word:
                return new
        return word


Spans = list[tuple[int, int]]
"""(begin, end) of words in a text, in order: of each word with the space before it, if there is one, which byte-level
tokens begin with"""


@dataclass(frozen=True)
class EveryWord:
    """Texts with every word edited, beside the texts as they are."""

    edited: Texts
    own_spans: list[Spans]
    """Spans, in each text as it is, of the words that an edit has changed."""
    edited_spans: list[Spans]
    """Spans of the same words in each edited text."""
    share: float
    """Share of the words that are to be taken from the edited texts."""


def _spans(segments: Sequence[str], is_new: Sequence[bool]) -> Spans:
    """The spans of the segments that are new, without the spaces after them."""
    text, begins = "".join(segments), list(accumulate(map(len, segments), initial=0))
    return [
        (begins[i] - (text[begins[i] - 1 : begins[i]] == " "), begins[i] + len(segments[i].rstrip(" \t")))
        for i in range(len(segments))
        if is_new[i]
    ]


def generator_of(seed: int, epoch: int, row: int, side: str) -> random.Random:
    """The generator of one row's draws in one epoch."""
    digest = blake2b(f"{seed} {epoch} {row} {side}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))


def pieces_of(text: str, min_letters: int = 4, protected: Sequence[str] = ()) -> list[str]:
    """Pieces of ``text`` that join to it again: what stays, and at odd places a word that may change with the space
    after it.

    A word of a script that is not typed letter by letter stays.

    Args:
        min_letters: words of fewer letters stay.
        protected: regular expressions of what stays, besides `PROTECTED`.
    """
    patterns = map(_compiled, (*PROTECTED, *protected))
    shielded = sorted(match.span() for pattern in patterns for match in pattern.finditer(text) if match.group())
    shielded = list(_merged(shielded))
    pieces, end, at = [], 0, 0
    for word in words_of(text):
        while at < len(shielded) and shielded[at][1] <= word.start:
            at += 1
        if at < len(shielded) and shielded[at][0] < word.end:
            continue
        if sum(map(is_typed_letter, word.text)) < min_letters:
            continue
        stop = word.end
        while stop < len(text) and text[stop] in " \t":
            stop += 1
        if stop == len(text) or any(begin == stop for begin, _ in shielded[at : at + 1]):
            # A space at the end joins nothing, and what is protected is joined to nothing.
            stop = word.end
        pieces += [text[end : word.start], text[word.start : stop]]
        end = stop
    return [*pieces, text[end:]]


def _merged(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sorted spans, those that overlap as one."""
    begin, end = 0, 0
    for first, last in spans:
        if first > end:
            yield begin, end
            begin = first
        begin, end = (first, last) if end == 0 else (begin, max(end, last))
    yield begin, end


_compiled = lru_cache(maxsize=256)(re.compile)
