"""Texts, or pairs of texts, of a batch to packed tokens, as the encoder's own tokenizer cuts them."""

from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate, groupby
from typing import NamedTuple, Sequence

import numpy as np
import torch

from fastadv.data.edits.proposals import Copies
from fastadv.data.edits.spliced_tokens import Bodies, spliced
from fastadv.data.packing import PackedBatch
from fastadv.data.piece_tokens import PieceTokens, piece_tokens
from fastadv.data.records import sentence_id
from fastadv.data.tokenize_texts import is_plain, tokenize
from fastadv.data.variants.text_pairs import Texts


class TextPacker:
    """Packs texts that are not in the file of tokens. Pickles, without the tokens that it has kept.

    Args:
        tokenizer, max_length, num_token_types, position_offset: of the encoder.
        prompt: put before each text, of a pair before the first; texts with one are tokenised whole.
    """

    def __init__(self, tokenizer, max_length: int, num_token_types: int, position_offset: int, prompt: str = ""):
        self._of_encoder, self._prompt = (tokenizer, max_length, num_token_types, position_offset), prompt
        self._pieces: PieceTokens | None = None
        self._frames: dict[int, _Frame | None] = {}

    def __reduce__(self):
        return TextPacker, (*self._of_encoder, self._prompt)

    def __call__(self, texts: Sequence[Texts]) -> PackedBatch:
        """The texts of rows as one batch, all of one text or all of two; equal tokens have equal ``sentence_ids``."""
        frame = self._frame(len(texts[0]))
        if frame is None:
            return self._packed_whole(texts)
        return self._packed([tuple(self._pieces.of(text, frame.most) for text in of_row) for of_row in texts], frame)

    def copies(self, rows: Sequence[Copies], sentence_ids: torch.Tensor) -> list[PackedBatch]:
        """K batches in the rows' order, of K copies of each row.

        A copy of the row's own tokens, changed where the text is cut or in a way that the tokenizer does not see, is
        none.

        Args:
            sentence_ids: (B,) of the rows' own texts.

        Raises:
            ValueError: the tokenizer gives those other tokens now.
        """
        frame, num_copies = self._frame(len(rows[0].texts)), len(rows[0].changes)
        if frame is None:
            by_row = [[row.texts, *(row.texts_of(k) or row.texts for k in range(num_copies))] for row in rows]
            packed = self._packed_whole([texts for of_k in zip(*by_row) for texts in of_k])
        else:
            by_row = [spliced(row, self._pieces, frame.most) for row in rows]
            packed = self._packed([body for of_k in zip(*by_row) for body in of_k], frame)
        own, *parts = packed.split(1 + num_copies)
        # The rows' ids are of their plain texts, those here of the tokens.
        plain = torch.tensor([all(map(is_plain, row.texts)) for row in rows])
        if not torch.equal(own.sentence_ids[plain], sentence_ids[plain]):
            raise ValueError("the tokenizer gives other tokens than it gave when the text was read")
        return [replace(part, is_present=part.sentence_ids != own.sentence_ids) for part in parts]

    def _frame(self, num_texts: int) -> "_Frame | None":
        """What is around the tokens of pieces; None where texts are tokenised whole."""
        if self._prompt:
            return None
        if num_texts not in self._frames:
            tokenizer, max_length, num_token_types, _ = self._of_encoder
            if self._pieces is None:
                self._pieces = piece_tokens(tokenizer)
            frame = None if self._pieces is None else _frame_of(tokenizer, max_length, num_token_types, num_texts)
            self._frames[num_texts] = frame
        return self._frames[num_texts]

    def _packed_whole(self, texts: Sequence[Texts]) -> PackedBatch:
        tokenizer, max_length, num_token_types, position_offset = self._of_encoder
        columns = map(list, zip(*texts))
        tokens, special, types = tokenize(
            tokenizer, max_length, *columns, num_types=num_token_types, prompt=self._prompt
        )
        ids = [sentence_id(of_text) for of_text in tokens]
        return PackedBatch.from_token_lists(
            tokens, special, ids, token_type_lists=types, position_offset=position_offset
        )

    def _packed(self, bodies: Sequence[Bodies], frame: "_Frame") -> PackedBatch:
        *_, position_offset = self._of_encoder
        # Of each row, in turn, special tokens and a text.
        parts = [part for of_row in bodies for part in frame.around(of_row)]
        counts = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(len(bodies), -1) // 4
        of_part = np.repeat(np.tile(np.arange(counts.shape[1]), len(bodies)), counts.ravel())
        lengths, tokens = counts.sum(1).tolist(), b"".join(parts)
        bounds = list(accumulate(lengths, initial=0))
        ids = [blake2b(tokens[4 * i : 4 * j], digest_size=8).digest() for i, j in zip(bounds, bounds[1:])]
        columns = {
            "input_ids": np.frombuffer(tokens, "<i4").astype(np.int64),
            "token_type_ids": np.array(frame.types)[of_part],
            "is_special": of_part % 2 == 0,
            "sentence_ids": np.frombuffer(b"".join(ids), "<i8").astype(np.int64),
        }
        columns = {name: torch.from_numpy(column) for name, column in columns.items()}
        return PackedBatch.of_lengths(lengths, position_offset, **columns)


class _Frame(NamedTuple):
    """What the tokenizer puts around the texts of a row, and what it leaves of them."""

    special: tuple[bytes, ...]
    """special tokens before, between and after the texts, as little-endian int32"""
    types: list[int]
    """the type of the tokens of each part: special tokens and texts in turn"""
    room: int
    """tokens left to the texts"""

    @property
    def most(self) -> int | None:
        """Tokens of a text that are enough; None: all, for which text of a pair is cut depends on both."""
        return self.room if len(self.special) == 2 else None

    def around(self, bodies: Bodies) -> tuple[bytes, ...]:
        """The parts of a row: special tokens and texts in turn, cut to what is left to them."""
        special, room = self.special, self.room
        if len(bodies) == 1:
            return special[0], bodies[0][: 4 * room], special[1]
        first, second = bodies
        most_of_first, most_of_second = _lengths_of_pair(len(first) // 4, len(second) // 4, room)
        return special[0], first[: 4 * most_of_first], special[1], second[: 4 * most_of_second], special[2]


def _lengths_of_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens left of each text of a pair: token by token the longer one is cut, of equal ones the first."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


def _frame_of(tokenizer, max_length: int, num_token_types: int, num_texts: int) -> _Frame | None:
    """The frame of rows of so many texts; None where there is none such."""
    if tokenizer.truncation_side != "right":
        return None
    ((ids,), (flags,), (types,)) = tokenize(tokenizer, max_length, *[["a"]] * num_texts, num_types=num_token_types)
    tokens, parts = iter(zip(ids, types)), []
    for is_special, of_part in groupby(flags):
        if is_special == len(parts) % 2:
            # Special tokens there are none of.
            parts.append([])
        parts.append([next(tokens) for _ in of_part])
    parts += [[]] * (len(parts) % 2 == 0)
    types_of_parts = [sorted({type_of_token for _, type_of_token in part}) for part in parts]
    if len(parts) != 2 * num_texts + 1 or any(len(types) > 1 for types in types_of_parts):
        return None
    special = tuple(np.array([token for token, _ in part], "<i4").tobytes() for part in parts[::2])
    room = max_length - sum(map(len, special)) // 4
    return _Frame(special, [types[0] if types else 0 for types in types_of_parts], room)
