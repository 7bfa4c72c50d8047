"""How words are used in texts: how often, as which part of speech and in which form, and between which neighbours."""

import re
from collections import Counter, defaultdict
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence

import numpy as np

# What the tagger takes for one token: "don't" is "do" and "n't", and a point or comma stands alone.
_TOKEN = re.compile(
    r"n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|[^\W\d_]+(?=n['’]t\b)|[^\W\d_]+(?:-[^\W\d_]+)*|\d+|[^\w\s]", re.IGNORECASE
)
_BEGIN, _END = "<s>", "</s>"
_PARTS = {"NN": "n", "VB": "v", "JJ": "a", "RB": "r"}
_NAMES = {"NNP": "NN", "NNPS": "NNS"}
_MIN_TAGGED = 8
_MIN_PART_SHARE = 0.8
_MIN_TAG_SHARE = 0.08
_NUM_NEIGHBOURS = 400
"""The commonest words, marks and ends of texts: the neighbours that are counted."""
_MIN_RATE = 0.2
"""A neighbour of a word is another word's neighbour too if it stands there at this share of the rate at least."""


class Form(NamedTuple):
    """A part of speech, n, v, a or r, and the Penn Treebank tags in which a word is used, sorted: ("v", ("VBD",))."""

    part: str
    tags: tuple[str, ...]


class WordUsage:
    """The words of some texts.

    Args:
        texts: sentences.
        tag: gives tokens their Penn Treebank tags, as NLTK's taggers do.
        min_per_million: words rarer than this are unknown.
        num_tagged: at most so many texts, spread evenly, are tagged.
        on_text: is told of each text that was tagged.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tag: Callable[[list[str]], Iterable[tuple[str, str]]],
        min_per_million: float = 4,
        num_tagged: int = 130_000,
        on_text: Callable[[], Any] = lambda: None,
    ):
        # Case is kept for the tagger alone.
        tokens = [[_BEGIN, *_TOKEN.findall(text.lower()), _END] for text in texts]
        counts = Counter(token for of_text in tokens for token in of_text)
        self._million = sum(counts.values()) / 1e6
        least = min_per_million * self._million
        self.counts = {token: count for token, count in counts.items() if count >= least and token.isalpha()}
        """How often each word that is not rare occurs."""
        self._tags: dict[str, Counter] = defaultdict(Counter)
        for text in texts[:: -(-len(texts) // num_tagged) or 1]:
            for place, (token, name) in enumerate(tag(_TOKEN.findall(text))):
                # A word that begins a text has a capital whether it is a name or not.
                is_name = place > 0 and not token.islower()
                self._tags[token.lower()][name if is_name else _NAMES.get(name, name)] += 1
            on_text()
        neighbours = {token: column for column, (token, _) in enumerate(counts.most_common(_NUM_NEIGHBOURS))}
        self._rows = {word: row for row, word in enumerate(self.counts)}
        self._before, self._after = np.zeros((2, len(self._rows), len(neighbours)), np.int32)
        for of_text in tokens:
            for left, right in zip(of_text, of_text[1:]):
                if left in neighbours and right in self._rows:
                    self._before[self._rows[right], neighbours[left]] += 1
                if left in self._rows and right in neighbours:
                    self._after[self._rows[left], neighbours[right]] += 1

    def per_million(self, word: str) -> float:
        """How often a word that is not rare occurs in a million words."""
        return self.counts[word] / self._million

    def form(self, word: str) -> Optional[Form]:
        """The form that a word has wherever it stands; None: it is rare, or has several parts of speech, or is none of
        noun, verb, adjective and adverb."""
        tags = self._tags.get(word, Counter())
        total = tags.total()
        if word not in self.counts or total < _MIN_TAGGED:
            return None
        parts = Counter()
        for name, count in tags.items():
            # Proper nouns are no part of speech here.
            parts[None if name in _NAMES else _PARTS.get(name[:2])] += count
        part, count = parts.most_common(1)[0]
        if part is None or count < _MIN_PART_SHARE * total:
            return None
        return Form(
            part,
            tuple(
                sorted(
                    name
                    for name, count in tags.items()
                    if _PARTS.get(name[:2]) == part and name not in _NAMES and count >= _MIN_TAG_SHARE * total
                )
            ),
        )

    def lost_neighbours(self, word: str, other: str) -> float:
        """The share of a word's places in the texts where the other would stand beside a word that it hardly ever
        stands beside: before it or after it, whichever is more."""
        row, column = self._rows[word], self._rows[other]
        shares = []
        for table in (self._before, self._after):
            expected = _MIN_RATE * table[row] / self.counts[word] * self.counts[other]
            # Half a count more: a rare word has not been seen everywhere it may stand.
            shares.append(table[row][table[column] + 0.5 < expected].sum() / self.counts[word])
        return float(max(shares))
