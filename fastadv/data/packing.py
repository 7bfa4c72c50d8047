"""Sentences without padding: the tokens of a batch laid end to end.

Shapes: ``B`` sentences, ``T`` real tokens of all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

_OF_TOKENS = ("input_ids", "token_type_ids", "position_ids", "is_special")
_OF_SENTENCES = ("sentence_ids", "labels", "row_ids", "is_present", "num_edits")


@dataclass(frozen=True)
class PackedBatch:
    """A batch of sentences as one run of tokens; sentence b owns tokens ``cu_seqlens[b]:cu_seqlens[b + 1]``."""

    input_ids: Tensor
    """(T,) int64"""
    token_type_ids: Tensor
    """(T,) int64"""
    position_ids: Tensor
    """(T,) int64, counted from the encoder's own first position (0 for BERT, 2 for RoBERTa)"""
    is_special: Tensor
    """(T,) bool, true at [CLS], [SEP] and their like"""
    cu_seqlens: Tensor
    """(B + 1,) int32, cumulative lengths from 0 to T"""
    max_seqlen: int
    """tokens of the longest sentence"""
    sentence_ids: Tensor
    """(B,) int64, equal for sentences that are equal after truncation"""
    labels: Tensor | None = None
    """(B,) or None"""
    row_ids: Tensor | None = None
    """(B,) int64, each sentence's row of the training data; None where it is not known"""
    positive: "PackedBatch | None" = None
    """a text that means the same as each sentence, in their order; None where only sentences are given"""
    hard_negative: "PackedBatch | None" = None
    """likewise a text that is close to each sentence and means something else"""
    variants: Mapping[str, "PackedBatch"] = field(default_factory=dict)
    """other texts of each sentence by name, in their order (`fastadv.data.variants.text_variants`); of a variant itself
    none"""
    is_present: Tensor | None = None
    """(B,) bool, of a variant: whether there is such a text, or the sentence itself stands in its place"""
    words: Tensor | None = None
    """(T,) int64, where words may be edited one by one: the number, from 0, of the token's word in its sentence; -1 at
    tokens of no such word"""
    num_edits: Tensor | None = None
    """(B,) int64, of a variant with every word edited: how many words are to be taken from it"""
    proposals: Mapping[str, Sequence["PackedBatch"]] = field(default_factory=dict)
    """K edited copies of each sentence, in their order, for each side of `fastadv.data.edits`: ``text`` keeps what the
    sentence says, ``flip`` does not. Each has `is_present`"""
    host_lengths: tuple[int, ...] | None = field(default=None, repr=False, compare=False)
    """Tokens of each sentence, known without asking the device; None where they are not"""
    remembered: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results that every pass of this batch shares, by name, kept by whoever computes them. A batch that `replace` or
    `to` makes of this one starts without any"""

    def __post_init__(self):
        given_texts = {"positive": self.positive, "hard_negative": self.hard_negative, **self.variants}
        given_texts |= {f"{side} {k}": each for side, drawn in self.proposals.items() for k, each in enumerate(drawn)}
        for name, given in given_texts.items():
            if given is not None and given.num_sentences != self.num_sentences:
                raise ValueError(f"{name} has {given.num_sentences} sentences, the batch {self.num_sentences}")

    @property
    def num_sentences(self) -> int:
        return self.cu_seqlens.shape[0] - 1

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @cached_property
    def token_sentence(self) -> Tensor:
        """(T,) int64, the sentence a token belongs to."""
        sentences = torch.arange(self.num_sentences, device=self.cu_seqlens.device)
        # output_size spares a GPU the synchronisation that counting the repeats would cost.
        return torch.repeat_interleave(sentences, self.lengths, output_size=self.num_tokens)

    @property
    def lengths(self) -> Tensor:
        """(B,) int64, tokens of each sentence."""
        return self.cu_seqlens.diff().long()

    def to(self, device: torch.device | str) -> "PackedBatch":
        """The same batch on ``device``. To a GPU nothing waits for the copy, whose source is pinned for it."""
        is_pinned = torch.device(device).type == "cuda"
        moved = {
            name: (_pinned(value) if is_pinned else value).to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and name != "token_sentence"
        }
        for name in ("positive", "hard_negative"):
            given = getattr(self, name)
            moved[name] = None if given is None else given.to(device)
        moved["variants"] = {name: texts.to(device) for name, texts in self.variants.items()}
        moved["proposals"] = {side: [each.to(device) for each in drawn] for side, drawn in self.proposals.items()}
        return replace(self, **moved)

    def twice(self) -> "PackedBatch":
        """The sentences twice: row B + b is row b once more. What is given with them is left out."""
        return PackedBatch(
            **{name: getattr(self, name).repeat(2) for name in (*_OF_TOKENS, "sentence_ids")},
            cu_seqlens=torch.cat([self.cu_seqlens, self.cu_seqlens[1:] + self.num_tokens]),
            max_seqlen=self.max_seqlen,
        )

    def split(self, num_parts: int) -> list["PackedBatch"]:
        """The batch in ``num_parts`` runs of sentences, in their order, of sizes that differ by one at most.

        Tensors are views. A GPU is asked for where sentences end only where ``host_lengths`` are not known.

        Raises:
            ValueError: fewer sentences than parts.
        """
        num_sentences, lengths = self.num_sentences, self._lengths_on_host()
        ends = list(accumulate(lengths, initial=0))
        if not 1 <= num_parts <= num_sentences:
            raise ValueError(f"{num_sentences} sentences in {num_parts} parts: expected 1 to {num_sentences} parts")
        bounds = [num_sentences * i // num_parts for i in range(num_parts + 1)]
        given = {name: getattr(self, name) for name in ("positive", "hard_negative")}
        given = {name: [None] * num_parts if whole is None else whole.split(num_parts) for name, whole in given.items()}
        variants = {name: texts.split(num_parts) for name, texts in self.variants.items()}
        proposals = {side: [each.split(num_parts) for each in drawn] for side, drawn in self.proposals.items()}
        parts = []
        for i, (first, end) in enumerate(zip(bounds, bounds[1:])):
            tokens, of_sentences = slice(ends[first], ends[end]), {n: getattr(self, n) for n in _OF_SENTENCES}
            parts.append(
                PackedBatch(
                    **{name: getattr(self, name)[tokens] for name in _OF_TOKENS},
                    **{name: None if rows is None else rows[first:end] for name, rows in of_sentences.items()},
                    cu_seqlens=self.cu_seqlens[first : end + 1] - self.cu_seqlens[first],
                    max_seqlen=max(lengths[first:end]),
                    host_lengths=tuple(lengths[first:end]),
                    variants={name: of_parts[i] for name, of_parts in variants.items()},
                    proposals={side: [each[i] for each in drawn] for side, drawn in proposals.items()},
                    words=None if self.words is None else self.words[tokens],
                    **{name: of_parts[i] for name, of_parts in given.items()},
                )
            )
        return parts

    def by_length(self) -> list[tuple["PackedBatch", Tensor]]:
        """For each length its sentences, and the places (t,) of their tokens in this batch.

        What is given with the sentences is left out. A GPU is asked which lengths there are.
        """
        starts, parts = self.cu_seqlens[:-1].long(), []
        for length in sorted(set(self._lengths_on_host())):
            rows = (self.lengths == length).nonzero().flatten()
            tokens = (starts[rows, None] + torch.arange(length, device=rows.device)).flatten()
            part = PackedBatch(
                **{name: getattr(self, name)[tokens] for name in _OF_TOKENS},
                cu_seqlens=torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device) * length,
                max_seqlen=length,
                sentence_ids=self.sentence_ids[rows],
                host_lengths=(length,) * len(rows),
            )
            parts.append((part, tokens))
        return parts

    @classmethod
    def end_to_end(cls, batches: Sequence["PackedBatch"]) -> "PackedBatch":
        """The sentences of ``batches`` as one batch, in their order. What is given with them is left out."""
        starts = accumulate([batch.num_tokens for batch in batches], initial=0)
        ends = [batch.cu_seqlens[1:] + start for batch, start in zip(batches, starts)]
        return cls(
            **{name: torch.cat([getattr(batch, name) for batch in batches]) for name in (*_OF_TOKENS, "sentence_ids")},
            cu_seqlens=torch.cat([batches[0].cu_seqlens[:1], *ends]),
            max_seqlen=max(batch.max_seqlen for batch in batches),
            host_lengths=sum((batch._lengths_on_host() for batch in batches), ()),
        )

    @classmethod
    def chosen(cls, batches: Sequence["PackedBatch"], index: Tensor, index_on_host: Sequence[int]) -> "PackedBatch":
        """Sentence b of batch ``index[b]``, for each b; all batches are variants of the same B sentences.

        Args:
            index: (B,) int64.
            index_on_host: the same numbers.
        """
        whole, num_sentences = cls.end_to_end(batches), batches[0].num_sentences
        rows = index * num_sentences + torch.arange(num_sentences, device=index.device)
        lengths = whole.lengths[rows]
        on_host = tuple(whole.host_lengths[k * num_sentences + b] for b, k in enumerate(index_on_host))
        num_tokens = sum(on_host)
        cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        shifts = torch.repeat_interleave(whole.cu_seqlens[rows] - cu_seqlens[:-1], lengths, output_size=num_tokens)
        tokens = shifts + torch.arange(num_tokens, device=index.device)
        return cls(
            **{name: getattr(whole, name)[tokens] for name in _OF_TOKENS},
            cu_seqlens=cu_seqlens.int(),
            max_seqlen=max(on_host),
            sentence_ids=whole.sentence_ids[rows],
            is_present=torch.stack([batch.is_present for batch in batches]).flatten()[rows],
            host_lengths=on_host,
        )

    def _lengths_on_host(self) -> tuple[int, ...]:
        return tuple(self.lengths.tolist()) if self.host_lengths is None else self.host_lengths

    @classmethod
    def from_token_lists(
        cls,
        token_lists: Sequence[Sequence[int]],
        is_special_lists: Sequence[Sequence[bool]],
        sentence_ids: Sequence[int] | None = None,
        labels: Sequence | None = None,
        token_type_lists: Sequence[Sequence[int]] | None = None,
        position_offset: int = 0,
        row_ids: Sequence[int] | None = None,
    ) -> "PackedBatch":
        """Packs sentences given as lists of token ids.

        Args:
            sentence_ids: signed 64-bit ids; by default the row number, so that no two sentences count as equal.
            position_offset: the position id of a sentence's first token.

        Raises:
            ValueError: no sentence, an empty sentence, or lists of unequal lengths.
        """
        lengths = [len(tokens) for tokens in token_lists]
        if not lengths or min(lengths) == 0:
            raise ValueError(f"a batch needs sentences of at least one token, got lengths {lengths}")
        if [len(flags) for flags in is_special_lists] != lengths:
            raise ValueError("is_special_lists and token_lists differ in their lengths")
        flat = torch.tensor([token for tokens in token_lists for token in tokens], dtype=torch.int64)
        if token_type_lists is None:
            token_types = torch.zeros_like(flat)
        else:
            token_types = torch.tensor([t for types in token_type_lists for t in types], dtype=torch.int64)
        return cls.of_lengths(
            lengths,
            position_offset,
            input_ids=flat,
            token_type_ids=token_types,
            is_special=torch.tensor([flag for flags in is_special_lists for flag in flags], dtype=torch.bool),
            sentence_ids=torch.arange(len(lengths)) if sentence_ids is None else torch.tensor(sentence_ids),
            labels=None if labels is None else torch.tensor(labels),
            row_ids=None if row_ids is None else torch.tensor(row_ids),
        )

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], position_offset: int, **fields: Any) -> "PackedBatch":
        """Sentences of ``lengths`` tokens, whose positions are counted from ``position_offset``.

        Args:
            fields: what `PackedBatch` has beside places of tokens and sentences.
        """
        ends = torch.tensor([0, *accumulate(lengths)])
        firsts = torch.repeat_interleave(ends[:-1], ends.diff())
        return cls(
            position_ids=torch.arange(len(firsts)) - firsts + position_offset,
            cu_seqlens=ends.int(),
            max_seqlen=max(lengths),
            host_lengths=tuple(lengths),
            **fields,
        )


def _pinned(value: Tensor) -> Tensor:
    """In memory that a GPU reads by itself."""
    return value.pin_memory() if value.device.type == "cpu" else value
