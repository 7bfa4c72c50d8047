"""Synonyms and antonyms of words, and words replaced in a text so that all else in it stays.

A file of word sets is JSON (METHODS: never a pickle)::

    {"format": "fastadv word sets 1", "source": {...}, "synonyms": {word: [words]}, "antonyms": {word: [words]}}

in lower case, nearest first, no word in its own set. ``fastadv word-sets`` makes one (``word_sets_build.py``).
"""

import json
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

FORMAT = "fastadv word sets 1"

# Accents, points and vowel signs: of Latin, Arabic, Hebrew, of the scripts of India, and others.
_MARKS = "".join(chr(code) for code in range(0x300, 0x1E00) if unicodedata.category(chr(code))[0] == "M")
# Letters, digits and the marks after them, joined by single apostrophes or hyphens: "don't" and "well-made" are one
# word, "well--made" and 'quoted' are not. A piece with a digit ("90s", "b2b") is matched whole, to be left out whole.
_LETTERS = rf"[^\W_]+(?:[{_MARKS}][^\W_]*)*"
_PIECE = re.compile(rf"{_LETTERS}(?:['’‐‑-]{_LETTERS})*")


class Word(NamedTuple):
    """A word of a text: ``text[start:end]``."""

    start: int
    end: int
    text: str

    @property
    def key(self) -> str:
        """What the word is looked up by: lower case, typographic apostrophes and hyphens made plain."""
        return self.text.lower().replace("’", "'").replace("‐", "-").replace("‑", "-")


def words_of(text: str) -> List[Word]:
    """The words of a text as people see them, in order; numbers, and whatever has a digit, are none."""
    return [Word(*word) for word in word_spans(text)]


def word_spans(text: str, min_length: int = 1) -> Iterator[Tuple[int, int, str]]:
    """(start, end, text) of the words of at least so many characters: `words_of`, in less time."""
    for match in _PIECE.finditer(text):
        start, end = match.span()
        if end - start >= min_length and ((piece := match.group()).isalpha() or not _has_number(piece)):
            yield start, end, piece


def _has_number(piece: str) -> bool:
    if piece.isascii():
        return not piece.isalpha() and any(map(str.isdigit, piece))
    return any(unicodedata.category(character)[0] == "N" for character in piece)


def replaced(text: str, substitutes: Mapping[int, str]) -> str:
    """``text`` with some of its words replaced.

    Args:
        substitutes: from an index into ``words_of(text)`` to the word put there. It takes the capitals of the word it
            replaces: a first letter, or all of two letters and more. Everything between words is kept bit for bit.

    Raises:
        IndexError: an index that is no word's.
    """
    words = words_of(text)
    parts, end = [], 0
    for index in sorted(substitutes):
        if not 0 <= index < len(words):
            raise IndexError(f"word {index} of a text with {len(words)} words")
        word = words[index]
        parts += [text[end : word.start], _with_capitals_of(word.text, substitutes[index])]
        end = word.end
    return "".join([*parts, text[end:]])


def _with_capitals_of(old: str, new: str) -> str:
    num_letters = sum(character.isalpha() for character in old)
    if old.isupper() and num_letters > 1:
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


@dataclass
class WordSets:
    """Synonyms and antonyms by word, each list nearest first, all in lower case, the word itself not in its list."""

    synonyms: Mapping[str, Sequence[str]]
    antonyms: Mapping[str, Sequence[str]]
    source: Mapping[str, Any] = field(default_factory=dict)
    """what they were made from, by whom: shown, never interpreted"""

    def __post_init__(self):
        self.synonyms = MappingProxyType(_checked("synonyms", self.synonyms))
        self.antonyms = MappingProxyType(_checked("antonyms", self.antonyms))

    def __reduce__(self):
        # A mapping proxy does not travel to another process; what it shows does.
        return WordSets, (dict(self.synonyms), dict(self.antonyms), dict(self.source))

    @classmethod
    def load(cls, path: str | Path) -> "WordSets":
        """Reads a file of word sets.

        Raises:
            UserError: it is missing, not JSON, of another format, or has a value that is no list of lower-case words.
        """
        try:
            content = json.loads(Path(path).expanduser().read_bytes())
        except OSError as error:
            raise UserError(f"word sets {str(path)!r}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"word sets {str(path)!r}: not JSON in UTF-8 ({error})") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise UserError(f'word sets {str(path)!r}: expected "format": {FORMAT!r}, found {found!r}')
        source = content.get("source", {})
        if not isinstance(source, dict):
            raise UserError(f'word sets {str(path)!r}: expected "source" to be an object, found {source!r}')
        try:
            return cls(content.get("synonyms"), content.get("antonyms"), source)
        except UserError as error:
            raise UserError(f"word sets {str(path)!r}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the file whole or not at all, a line a word, words in order."""
        head = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, sort_keys=True)}"
            for name, value in (("format", FORMAT), ("source", dict(self.source)))
        )
        sets = ",\n".join(f"{json.dumps(name)}: {_lines(getattr(self, name))}" for name in ("synonyms", "antonyms"))
        with written_aside(path) as aside:
            aside.write_text(f"{{{head},\n{sets}}}\n", encoding="utf-8")


def _lines(sets: Mapping[str, Sequence[str]]) -> str:
    lines = (
        f"{json.dumps(word, ensure_ascii=False)}: {json.dumps(list(sets[word]), ensure_ascii=False)}"
        for word in sorted(sets)
    )
    return "{\n" + ",\n".join(lines) + "\n}"


def _checked(name: str, sets: Any) -> Mapping[str, Tuple[str, ...]]:
    if not isinstance(sets, Mapping):
        raise UserError(f"expected {name!r} to map words to lists of words, found {_short(sets)}")
    checked = {}
    for word, others in sets.items():
        if not isinstance(others, (list, tuple)):
            raise UserError(f"{name} of {word!r}: expected a list of words, found {_short(others)}")
        for each in (word, *others):
            if not isinstance(each, str) or not each.strip() or each != each.lower():
                raise UserError(f"{name} of {word!r}: expected words in lower case, found {_short(each)}")
        checked[word] = tuple(others)
    return checked


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
