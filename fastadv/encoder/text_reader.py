"""The side of an encoder that reads texts: from texts to packed batches."""

import hashlib
import json
from typing import Iterator, List, Optional, Sequence, Tuple

import torch

from fastadv.data.packing import PackedBatch
from fastadv.data.tokenize_texts import Tokens, sentence_ids, tokenize
from fastadv.encoder.sentence_files.read import SentenceFiles
from fastadv.errors import UserError


class TextReader:
    """Texts, or pairs of texts, to packed batches. What it reads them for says the rest (`fastadv.Encoder`)."""

    tokenizer: object
    """Of transformers."""
    max_length: int
    """Tokens a text is cut to, special ones included."""
    prompt: str
    """Text put before every text, of a pair before the first; "": none."""
    files: SentenceFiles
    """What the model's folder says of it."""
    vocab_size: int
    """How many tokens the model has an embedding of."""
    num_token_types: int
    """How many kinds of token the model tells apart."""
    position_offset: int
    """The position id of a sentence's first token."""
    device: torch.device

    def set_prompt(self, prompt: str) -> None:
        """Puts ``prompt`` before every text from now on.

        Raises:
            UserError: it leaves a text no room.
        """
        num_tokens = self._num_prompt_tokens(prompt) if prompt else 0
        if prompt and num_tokens + 1 >= self.max_length:
            raise UserError(
                f"prompt {prompt!r} takes {num_tokens} of the {self.max_length} tokens of a text: it leaves no room"
            )
        self.prompt = prompt
        self._num_skipped = 0 if self.files.pools_prompt else num_tokens

    def _num_prompt_tokens(self, prompt: str) -> int:
        """Tokens before a text's own, the special ones at its beginning included, as sentence-transformers counts."""
        (tokens,), _, _ = tokenize(self.tokenizer, self.max_length, [prompt])
        return len(tokens) - (tokens[-1] in self.tokenizer.all_special_ids)

    def tokenize(self, texts: Sequence[str]) -> Tuple[List[List[int]], List[List[bool]]]:
        """Token ids of each text behind the prompt, cut to ``max_length``, and which of them are special tokens."""
        return self._embedded(tokenize(self.tokenizer, self.max_length, texts, prompt=self.prompt))[:2]

    def tokenize_pairs(self, first: Sequence[str], second: Sequence[str]):
        """Likewise of pairs of texts, the longer being cut, and the type of each token; see ``tokenize_texts.py``."""
        return self._embedded(
            tokenize(self.tokenizer, self.max_length, first, second, self.num_token_types, self.prompt)
        )

    def _embedded(self, tokens: Tokens) -> Tokens:
        """``tokens``, where the model has an embedding of each. Tokens may have been added to a tokenizer alone."""
        size = self.vocab_size
        if len(self.tokenizer) > size:
            highest = max((max(ids, default=0) for ids in tokens[0]), default=0)
            if highest >= size:
                raise UserError(
                    f"the tokenizer numbers {self.tokenizer.convert_ids_to_tokens(highest)!r} {highest}, and the model "
                    f"embeds tokens 0 to {size - 1} alone: they do not belong together"
                )
        return tokens

    @staticmethod
    def _check_not_empty(tokens: List[List[int]], texts: Sequence[str]) -> None:
        """UserError for a text without a token, of a tokenizer that puts none around it."""
        empty = next((place for place, ids in enumerate(tokens) if not ids), None)
        if empty is not None:
            raise UserError(f"text {empty}, {texts[empty]!r}, has no token: the model makes no vector of it")

    @property
    def tokenizer_fingerprint(self) -> str:
        """Equal for tokenizers that cut every text alike, behind an equal prompt."""
        if self.tokenizer.is_fast:
            state = json.loads(self.tokenizer.backend_tokenizer.to_str())
            # Set by the last call, not by the tokenizer.
            state["truncation"] = state["padding"] = None
        else:
            state = [
                type(self.tokenizer).__name__,
                sorted(self.tokenizer.get_vocab().items()),
                self.tokenizer.init_kwargs,
                self.files.is_lower_cased,
            ]
        if self.prompt:
            state = [state, self.prompt]
        return hashlib.sha256(json.dumps(state, sort_keys=True, default=str).encode()).hexdigest()

    def pack(self, texts: Sequence[str], labels: Optional[Sequence] = None) -> PackedBatch:
        """Tokenises texts into one batch on the model's device. Equal texts share an id (`sentence_ids`)."""
        token_lists, special_lists = self.tokenize(texts)
        self._check_not_empty(token_lists, texts)
        batch = PackedBatch.from_token_lists(
            token_lists,
            special_lists,
            sentence_ids=sentence_ids(self.tokenize, token_lists, texts),
            labels=labels,
            position_offset=self.position_offset,
        )
        return batch.to(self.device)

    def batches_of(
        self, texts: Sequence[str], second: Sequence[str] | None = None, batch_size: int = 64
    ) -> Iterator[tuple[list[int], PackedBatch]]:
        """(rows, batch on the model's device) of texts, or of pairs of texts: the longest first, each row once."""
        tokens, special, *types = self.tokenize(texts) if second is None else self.tokenize_pairs(texts, second)
        self._check_not_empty(tokens, texts)
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]), reverse=True)
        for at in range(0, len(order), batch_size):
            rows = order[at : at + batch_size]
            batch = PackedBatch.from_token_lists(
                [tokens[i] for i in rows],
                [special[i] for i in rows],
                token_type_lists=[types[0][i] for i in rows] if types else None,
                position_offset=self.position_offset,
            )
            yield rows, batch.to(self.device)
