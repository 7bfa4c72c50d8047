"""Tokens of texts, put together of those of their pieces: what lies between two spaces is tokenised once and kept.

| tokenizer | its pieces |
|---|---|
| WordPiece with BERT's normaliser and pre-tokeniser | what lies between two spaces |
| byte-level BPE that cuts as GPT-2 does, at most with the normaliser NFC | the same, with the space before it |

These cut every text at its spaces, and nothing in them looks across one: the tokens of a text are those of its pieces,
one after another. A tokenizer is known as such by its parts, not by its name. Any other has no pieces: SentencePiece,
other normalisers, dropout, added tokens with a space inside.
"""

import re
from string import punctuation
from struct import pack
from typing import Sequence

_GENERATION = 1 << 14
"""Pieces after which those are dropped that were not asked for since as many before; one takes about 200 bytes."""
_LONGEST = 64
"""Characters of the longest piece that is kept: others hardly come again."""
_NEVER = r"\Z."
"""A pattern that matches nothing."""


def piece_tokens(tokenizer) -> "PieceTokens | None":
    """The tokens of pieces of a transformers tokenizer; None where a text's tokens may be others than its pieces'."""
    if not tokenizer.is_fast:
        return None
    return next((kind(tokenizer) for kind in (WordPieceTokens, ByteLevelTokens) if kind.fits(tokenizer)), None)


class PieceTokens(dict[str, bytes]):
    """Piece → its tokens as little-endian int32, without special tokens; found when they are asked for, and kept.

    Any text may be asked for, as a piece of its own.

    Args:
        tokenizer: one that `fits`.
    """

    num_between: int
    """characters between a piece and the next: the space, where it belongs to neither"""

    def __init__(self, tokenizer):
        self._backend = tokenizer.backend_tokenizer
        # Bound here: each access to the model makes an object of it.
        self._tokenize = self._backend.model.tokenize
        self._of_mark = {mark: [token.id for token in self._tokenize(mark)] for mark in punctuation}
        self._has_added = _finder(self._backend.get_added_tokens_decoder().values(), re.IGNORECASE)
        self._older: dict[str, bytes] = {}

    @staticmethod
    def fits(tokenizer) -> bool:
        """Whether a text's tokens are those of its pieces."""
        raise NotImplementedError

    def cut(self, text: str, most: int | None = None) -> list[str]:
        """The pieces of a text; where they are more than ``most``, so many and the rest of the text."""
        raise NotImplementedError

    def is_whole(self, text: str) -> bool:
        """Whether the text is one piece, because of what is in it."""
        return False

    def _words(self, piece: str) -> Sequence[str]:
        """What the model is given of a piece of printable ASCII without added tokens."""
        raise NotImplementedError

    def of(self, text: str, most: int | None = None) -> bytes:
        """The tokens of a text, or of its beginning where that has ``most`` or more."""
        pieces = self.cut(text, most)
        rest = pieces.pop() if most is not None and len(pieces) > most else ""
        tokens = b"".join(map(self.__getitem__, pieces))
        # A piece may be without a token, though hardly any is.
        return tokens + self.of(rest) if rest and len(tokens) < 4 * most else tokens

    def __missing__(self, piece: str) -> bytes:
        tokens = self._older.get(piece)
        if tokens is None:
            ids = self._ids(piece)
            tokens = pack(f"<{len(ids)}i", *ids)
            if len(piece) > _LONGEST:
                return tokens
        if len(self) >= _GENERATION:
            self._older = self.copy()
            self.clear()
        self[piece] = tokens
        return tokens

    def _ids(self, piece: str) -> list[int]:
        if piece.isascii() and piece.isprintable() and not self._has_added(piece):
            # What comes before the model takes most of the tokenizer's time, and does nothing else to such a piece.
            ids = []
            for word in self._words(piece):
                ids += self._of_mark.get(word) or [token.id for token in self._tokenize(word)]
            return ids
        # The tokenizer's last call may have left limits there.
        self._backend.no_truncation()
        self._backend.no_padding()
        return self._backend.encode(piece, add_special_tokens=False).ids


class WordPieceTokens(PieceTokens):
    """Of WordPiece with BERT's normaliser and pre-tokeniser."""

    num_between = 1
    # Every mark of ASCII is a word of its own.
    _find_words = staticmethod(re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9 ]").findall)

    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self._is_lower = self._backend.normalizer is not None and self._backend.normalizer.lowercase

    @staticmethod
    def fits(tokenizer) -> bool:
        from tokenizers import models, normalizers, pre_tokenizers

        backend = tokenizer.backend_tokenizer
        added = backend.get_added_tokens_decoder().values()
        return (
            isinstance(backend.model, models.WordPiece)
            and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and (backend.normalizer is None or isinstance(backend.normalizer, normalizers.BertNormalizer))
            and not any(_has_space(token) for token in added)
            # Without its accents such a token may be found in ASCII.
            and all(token.content.isascii() or not token.normalized for token in added)
        )

    def cut(self, text: str, most: int | None = None) -> list[str]:
        return text.split(" ", -1 if most is None else most)

    def _words(self, piece: str) -> Sequence[str]:
        piece = piece.lower() if self._is_lower else piece
        return (piece,) if piece.isalpha() else self._find_words(piece)


class ByteLevelTokens(PieceTokens):
    """Of byte-level BPE that cuts as GPT-2 does."""

    num_between = 0
    # A space before another is of the piece before it.
    _cut_at = staticmethod(re.compile(r"(?<=.)(?= \S)", re.DOTALL).split)
    _find_words = staticmethod(
        re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+| +(?!\S)| +").findall
    )

    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self._is_prefixed = self._backend.pre_tokenizer.add_prefix_space

    @staticmethod
    def fits(tokenizer) -> bool:
        from tokenizers import models, normalizers, pre_tokenizers

        backend = tokenizer.backend_tokenizer
        added = backend.get_added_tokens_decoder().values()
        return (
            isinstance(backend.model, models.BPE)
            and not backend.model.dropout
            and isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
            and backend.pre_tokenizer.use_regex
            and (backend.normalizer is None or isinstance(backend.normalizer, normalizers.NFC))
            and not any(_has_space(token) for token in added)
            # A normalised text may have one that the text itself has not.
            and not (backend.normalizer and any(token.normalized for token in added))
        )

    def is_whole(self, text: str) -> bool:
        # The spaces before an added token, which ends the text there, are not cut as those before a word.
        return self._has_added(text) is not None

    def cut(self, text: str, most: int | None = None) -> list[str]:
        return [text] if self.is_whole(text) else self._cut_at(text, most or 0)

    def _words(self, piece: str) -> Sequence[str]:
        if self._is_prefixed and piece and piece[0] != " ":
            piece = f" {piece}"
        words = (piece,) if piece.isalpha() else self._find_words(piece)
        return [word.replace(" ", "Ġ") for word in words]


def _finder(added_tokens, flags: int = 0):
    """Finds the first of some added tokens in a text."""
    return re.compile("|".join(re.escape(token.content) for token in added_tokens) or _NEVER, flags).search


def _has_space(added_token) -> bool:
    return any(map(str.isspace, added_token.content))
