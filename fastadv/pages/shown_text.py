"""Texts of others on a page: escaped, with what is invisible made visible, and with what changed marked."""

import unicodedata
from html import escape
from typing import List, Optional, Tuple

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


def marked(before: str, after: str, most: Optional[int] = None) -> str:
    """``after`` with what changed from ``before``: struck out what went, underlined what came; escaped.

    Args:
        most: letters of either text that are looked at; None: all.
    """
    from fastadv.evaluation.embeddings.reconstruct import word_changes

    parts: List[str] = []
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


def _to_the_last_equal(changes: List[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """Without a last run that differs: of texts that are cut it is there because they are cut at different words."""
    return changes[:-1] if len(changes) > 1 and changes[-1][0] != changes[-1][1] else changes


def _near_changes(changes: List[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """The runs of a long text without most of the words before its first change."""
    if sum(len(new.split()) for _, new in changes) <= MAX_WORDS_SHOWN or not changes or changes[0][0] != changes[0][1]:
        return changes
    last = " ".join(changes[0][0].split()[-20:])
    return [(f"… {last}", f"… {last}"), *changes[1:]]
