"""Tokens of edited copies: those of the text, with those of the edited words in the places of the old ones."""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple, Sequence

from fastadv.data.edits.proposals import Copies
from fastadv.data.piece_tokens import PieceTokens
from fastadv.data.variants.text_pairs import Texts

Bodies = tuple[bytes, ...]
"""Tokens of the text of a row, or of both of a pair, as `PieceTokens` gives them."""


def spliced(row: Copies, tokens: PieceTokens, most: int | None) -> list[Bodies]:
    """The tokens of the row's own texts, and after them those of each copy.

    Args:
        most: as many tokens of a text are enough; None: all are needed.
    """
    layout = _laid_out(row, tokens, most)
    own = [tokens[piece] for piece in layout.pieces]
    bodies = [_joined(own, layout.ends)]
    for number, copy in enumerate(row.changes):
        changed = _changed(copy, layout, tokens)
        if changed is None:
            texts = row.texts_of(number)
            bodies.append(bodies[0] if texts is None else _whole(texts, tokens, most))
            continue
        parts = own.copy()
        for at, piece in changed.items():
            parts[at] = tokens[piece]
        bodies.append(_joined(parts, layout.ends))
    if layout.is_cut and any(len(body) < 4 * most for of_copy in bodies for body in of_copy):
        # Some pieces have no token, and what comes after the last one is in sight.
        copies = [row.texts_of(number) or row.texts for number in range(len(row.changes))]
        return [_whole(texts, tokens, most) for texts in (row.texts, *copies)]
    return bodies


class _Layout(NamedTuple):
    """The pieces of the texts of a row, as the tokenizer is given them, and where its words lie in them."""

    pieces: list[str]
    ends: list[int]
    """where the pieces of each text end, after a 0"""
    words: dict[int, tuple[int, str, str, str]]
    """place of a word in `Copies.pieces` → its piece here, what is before and after it in that, and the blanks that
    belong to the word"""
    is_cut: bool
    """whether a text goes on after its pieces"""


def _laid_out(row: Copies, tokens: PieceTokens, most: int | None) -> _Layout:
    pieces, ends, words, is_cut = [], [0], {}, False
    for part, text in enumerate(row.texts):
        of_text = tokens.cut(text, most)
        if most is not None and len(of_text) > most:
            is_cut = True
            of_text.pop()
        begins = list(accumulate([len(piece) + tokens.num_between for piece in of_text], initial=0))
        pieces += of_text
        offset = 0
        for place in range(row.ends[part] + 1, row.ends[part + 1], 2) if row.pieces else ():
            word = row.pieces[place]
            offset += len(row.pieces[place - 1])
            at = bisect_right(begins, offset) - 1
            if at == len(of_text):
                break
            num_letters, begin, piece = len(word.rstrip(" \t")), offset - begins[at], of_text[at]
            words[place] = ends[-1] + at, piece[:begin], piece[begin + num_letters :], word[num_letters:]
            offset += len(word)
        ends.append(len(pieces))
    return _Layout(pieces, ends, words, is_cut)


def _changed(copy: dict[int, str] | Texts, layout: _Layout, tokens: PieceTokens) -> dict[int, str] | None:
    """The pieces that are new in a copy, by number; None where its words do not tell its pieces."""
    if not isinstance(copy, dict):
        return None
    changed: dict[int, str] = {}
    for place, new in copy.items():
        if place not in layout.words:
            # What is cut.
            continue
        at, before, after, blanks = layout.words[place]
        if blanks:
            if not new.endswith(blanks):
                return None
            new = new[: -len(blanks)]
        # A space at the edge of a word may move the cut, and two words of one piece are rare.
        if at in changed or not new or new[0].isspace() or new[-1].isspace():
            return None
        piece = changed[at] = before + new + after
        if tokens.is_whole(piece):
            return None
    return changed


def _joined(parts: Sequence[bytes], ends: Sequence[int]) -> Bodies:
    if len(ends) == 2:
        return (b"".join(parts),)
    return tuple(b"".join(parts[first:end]) for first, end in zip(ends, ends[1:]))


def _whole(texts: Texts, tokens: PieceTokens, most: int | None) -> Bodies:
    return tuple(tokens.of(text, most) for text in texts)
