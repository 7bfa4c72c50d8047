"""Proposals: edited copies of a text, drawn by (seed, epoch, row, number) and by nothing else."""

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Iterator, NamedTuple, Sequence, TypeVar

from fastadv.data.edits.kinds import Edits
from fastadv.data.edits.typing_errors import is_typed_letter
from fastadv.data.variants.text_pairs import Texts
from fastadv.data.variants.word_sets import word_spans

T = TypeVar("T")

PROTECTED = (
    r"(?:https?://|www\.)\S+",
    r"[\w.+-]{1,64}@[\w.-]{1,255}",
    r"<[^<>]{1,200}>",
    r"&#?\w{1,10};",
    r"[@#]\w+",
)
"""What no edit of a word touches: addresses, mark-up, and names with @ and #. Nor is a word what has a digit."""
_MARKS = re.compile(r"[@#<&]|://|www\.")
"""One of these is in whatever `PROTECTED` matches, and is looked for ten times as fast."""

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
        copies = self.copies(row, texts, epoch)
        return [copies.texts_of(number) for number in range(self.num_proposals)]

    def copies(self, row: int, texts: Texts, epoch: int) -> "Copies":
        """The same proposals as what they change."""
        generator, pieces, places, ends = generator_of(self.seed, epoch, row, self.side), [], [], [0]
        if self.edits.of_words:
            for text in texts:
                pieces += pieces_of(text, self.min_letters, self.protected)
                places += range(ends[-1] + 1, len(pieces), 2)
                ends.append(len(pieces))
        changes = [self._drawn(texts, pieces, places, generator) for _ in range(self.num_proposals)]
        return Copies(texts, pieces, ends, changes)

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
        self, texts: Texts, pieces: Sequence[str], places: Sequence[int], generator: random.Random
    ) -> "dict[int, str] | Texts":
        """One proposal; ``places`` are those of the words among ``pieces``."""
        of_words, of_texts = self.edits.of_words, self.edits.of_texts
        which = int(generator.random() * (bool(of_words) + len(of_texts)))
        if of_words and which == 0:
            count, edited = max(1, round(self._share(generator) * len(places))), {}
            # Words that no edit changes, those without a synonym for instance, give way to others.
            for place in _shuffled(places, generator):
                new = self._edited(pieces[place], generator)
                if new != pieces[place]:
                    edited[place] = new
                    if len(edited) == count:
                        break
            return edited
        edit = of_texts[which - bool(of_words)]
        for part in _shuffled(range(len(texts)), generator):
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


class Copies(NamedTuple):
    """Edited copies of the texts of a row, as what they change."""

    texts: Texts
    pieces: list[str]
    """`pieces_of` each text, one after another"""
    ends: list[int]
    """where the pieces of each text end, after a 0; of no text where no edit of a word may be drawn"""
    changes: list[dict[int, str] | Texts]
    """of each copy the words that are new, by their places among the pieces, or the texts themselves"""

    def texts_of(self, number: int) -> Texts | None:
        """A copy; None where it is the row's texts, or leaves nothing of one of them."""
        copy = self.changes[number]
        if isinstance(copy, dict):
            pieces = self.pieces.copy()
            for place, new in copy.items():
                pieces[place] = new
            copy = tuple("".join(pieces[first:end]) for first, end in zip(self.ends, self.ends[1:]))
        is_emptied = any(old.strip() and not new.strip() for old, new in zip(self.texts, copy))
        return None if copy == self.texts or is_emptied else copy


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


def _shuffled(items: Sequence[T], generator: random.Random) -> list[T]:
    """``generator.sample(items, len(items))``, whose checks take longer than the draws."""
    pool, shuffled, bits = list(items), [], generator.getrandbits
    for num_left in range(len(pool), 0, -1):
        num_bits = num_left.bit_length()
        drawn = bits(num_bits)
        while drawn >= num_left:
            drawn = bits(num_bits)
        shuffled.append(pool[drawn])
        pool[drawn] = pool[num_left - 1]
    return shuffled


def pieces_of(text: str, min_letters: int = 4, protected: Sequence[str] = ()) -> list[str]:
    """Pieces of ``text`` that join to it again: what stays, and at odd places a word that may change with the space
    after it.

    A word of a script that is not typed letter by letter stays.

    Args:
        min_letters: words of fewer letters stay.
        protected: regular expressions of what stays, besides `PROTECTED`.
    """
    patterns = map(_compiled, (*(PROTECTED if _MARKS.search(text) else ()), *protected))
    shielded = sorted(match.span() for pattern in patterns for match in pattern.finditer(text) if match.group())
    shielded = list(_merged(shielded))
    pieces, end, at = [], 0, 0
    for start, last, word in word_spans(text, min_letters):
        while at < len(shielded) and shielded[at][1] <= start:
            at += 1
        if at < len(shielded) and shielded[at][0] < last:
            continue
        if not (word.isascii() and word.isalpha()) and sum(map(is_typed_letter, word)) < min_letters:
            continue
        stop = last
        while stop < len(text) and text[stop] in " \t":
            stop += 1
        if stop == len(text) or (at < len(shielded) and shielded[at][0] == stop):
            # A space at the end joins nothing, and what is protected is joined to nothing.
            stop = last
        pieces += (text[end:start], text[start:stop])
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
