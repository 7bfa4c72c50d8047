"""Keyboards by name, and which letters lie next to each other on them."""

from functools import lru_cache
from types import MappingProxyType
from typing import Mapping

# Rows of letters, each row half a key to the right of the one above it.
_ROWS = {
    "qwerty": ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    "qwertz": ("qwertzuiopü", "asdfghjklöä", "yxcvbnm"),
    "azerty": ("azertyuiop", "qsdfghjklm", "wxcvbn"),
    "dvorak": ("   pyfgcrl", "aoeuidhtns", " qjkxbmwvz"),
    "jcuken": ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"),
}
KEYBOARDS = tuple(_ROWS)


@lru_cache(maxsize=None)
def neighbours(keyboard: str) -> Mapping[str, str]:
    """Each letter of a keyboard of `KEYBOARDS` → the letters whose keys touch its key, in lower case."""
    places = {
        letter: (row, column)
        for row, letters in enumerate(_ROWS[keyboard])
        for column, letter in enumerate(letters)
        if letter != " "
    }
    # A key touches the two beside it, and of the next row below the one under it and the one to the left of that.
    shifts = ((0, -1), (0, 1), (1, 0), (1, -1), (-1, 0), (-1, 1))
    at = {place: letter for letter, place in places.items()}
    near = {
        letter: "".join(at.get((row + down, column + right), "") for down, right in shifts)
        for letter, (row, column) in places.items()
    }
    return MappingProxyType(near)
