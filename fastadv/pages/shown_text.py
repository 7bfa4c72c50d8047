"""Texts of others on a page: escaped, with what is invisible made visible, and with what changed marked."""

import unicodedata
from difflib import SequenceMatcher
from html import escape

MAX_WORDS_SHOWN = 400
"""of a text, from its first change on"""


def visible(text: str) -> str:
    """``text`` with what is invisible made visible, so that it stays in the order of letters; not escaped."""
    letters = []
    for letter in text:
        kind = unicodedata.category(letter)
        if letter in "\t\n\r" or kind in ("Cc", "Cf", "Cs", "Cn", "Co"):
            letters.append(f"⟨{ord(letter):04X}⟩")
        else:
            letters.append(letter)
    return "".join(letters)


def shown(text: str) -> str:
    """``visible(text)``, escaped."""
    return escape(visible(text))


def word_changes(before: str, after: str) -> list[tuple[str, str]]:
    """Runs of words as (before, after): equal ones where nothing changed, '' where there is nothing to set against."""
    old, new = before.split(), after.split()
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(" ".join(old[a:b]), " ".join(new[c:d])) for _, a, b, c, d in matcher.get_opcodes()]


def num_changed(changes: list[tuple[str, str]]) -> int:
    """Words that differ: of every changed run the longer side."""
    return sum(max(len(old.split()), len(new.split())) for old, new in changes if old != new)


def marked(before: str, after: str, most: int | None = None) -> str:
    """``after`` with what changed from ``before``: struck out what went, underlined what came; escaped.

    Args:
        most: letters of either text that are looked at; None: all.
    """
    parts: list[str] = []
    num_words = 0
    is_cut = most is not None and max(len(before), len(after)) > most
    if is_cut:
        changes = _to_the_last_equal(word_changes(_begin(before, most), _begin(after, most)))
    else:
        changes = word_changes(before, after)
    for old, new in _near_changes(changes):
        num_words += len(new.split())
        if num_words > MAX_WORDS_SHOWN:
            is_cut = True
            break
        if old == new:
            parts.append(shown(old))
        elif old and new:
            parts.append(f"<del>{shown(old)}</del> <ins>{shown(new)}</ins>")
        else:
            parts.append(f"<del>{shown(old)}</del>" if old else f"<ins>{shown(new)}</ins>")
    return f"<bdi>{' '.join([*parts, '…'] if is_cut else parts)}</bdi>"


def _begin(text: str, most: int) -> str:
    """Whole words of at most ``most`` letters; of a first word that is longer, its letters."""
    if len(text) <= most or text[most].isspace():
        return text[:most]
    return text[:most].rsplit(None, 1)[0]


def _to_the_last_equal(changes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without a last run that differs: of texts that are cut it is there because they are cut at different words."""
    return changes[:-1] if len(changes) > 1 and changes[-1][0] != changes[-1][1] else changes


def _near_changes(changes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The runs of a long text without most of the words before its first change."""
    if sum(len(new.split()) for _, new in changes) <= MAX_WORDS_SHOWN or not changes or changes[0][0] != changes[0][1]:
        return changes
    last = " ".join(changes[0][0].split()[-20:])
    return [(f"… {last}", f"… {last}"), *changes[1:]]
