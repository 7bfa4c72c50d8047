"""Which tokens belong to which word, and sentences put together of their own words and edited ones."""

from dataclasses import replace
from typing import Sequence

import torch
from torch import Tensor

from fastadv.data.edits.proposals import EveryWord, Spans, Texts
from fastadv.data.packing import PackedBatch
from fastadv.errors import UserError


def check_tokenizer(tokenizer) -> None:
    """UserError where the tokenizer does not say which letters a token is of."""
    if not tokenizer.is_fast:
        raise UserError(
            f"perturbation.text.choose = gradient: {type(tokenizer).__name__} does not say where its tokens lie in a "
            "text; expected worst or random"
        )


def pack_words(
    tokenizer,
    max_length: int,
    num_token_types: int,
    position_offset: int,
    own: Sequence[Texts],
    drawn: Sequence[EveryWord],
    prompt: str = "",
) -> list[PackedBatch]:
    """(the texts as they are, the texts with every word edited), both with ``words``, the second with ``num_edits``.

    A word that is cut in either has no number: it stays as it is. So do those of the prompt.
    """
    sides = []
    for texts, spans in (
        (own, [each.own_spans for each in drawn]),
        ([each.edited for each in drawn], [each.edited_spans for each in drawn]),
    ):
        first, *second = map(list, zip(*texts))
        encoded = tokenizer(
            [prompt + text for text in first],
            *second,
            truncation=True,
            max_length=max_length,
            return_special_tokens_mask=True,
            return_token_type_ids=True,
            return_attention_mask=False,
            return_offsets_mapping=True,
        )
        spans = [[_shifted(of_row[0], len(prompt)), *of_row[1:]] for of_row in spans]
        words = [words_of_tokens(encoded.encodings[i], of_row) for i, of_row in enumerate(spans)]
        sides.append((encoded, words))
    batches = []
    # Numbered again, so that they are below the number of the sentence's tokens.
    known = [
        {word: number for number, word in enumerate(sorted(set(a) & set(b) - {-1}))}
        for a, b in zip(sides[0][1], sides[1][1], strict=True)
    ]
    for encoded, words in sides:
        tokens, special = encoded["input_ids"], [[flag == 1 for flag in row] for row in encoded["special_tokens_mask"]]
        types = encoded["token_type_ids"] if num_token_types > 1 else None
        batch = PackedBatch.from_token_lists(tokens, special, token_type_lists=types, position_offset=position_offset)
        flat = [both.get(word, -1) for row, both in zip(words, known) for word in row]
        batches.append(replace(batch, words=torch.tensor(flat), is_present=torch.tensor(list(map(bool, known)))))
    num_edits = [max(1, round(each.share * len(both))) for both, each in zip(known, drawn)]
    batches[1] = replace(batches[1], num_edits=torch.tensor(num_edits))
    return batches


def _shifted(spans: Spans, by: int) -> Spans:
    return [(begin + by, end + by) for begin, end in spans]


def words_of_tokens(encoding, spans: Sequence[Spans]) -> list[int]:
    """The number of each token's word, counted over the texts of a row; -1 at tokens of none, or of one that is cut."""
    words, last_letters = [-1] * len(encoding.ids), {}
    starts = [0, *(sum(map(len, spans[:part])) for part in range(1, len(spans)))]
    at = [0] * len(spans)
    for i, ((begin, end), part) in enumerate(zip(encoding.offsets, encoding.sequence_ids, strict=True)):
        if part is None or begin == end:
            continue
        of_text = spans[part]
        while at[part] < len(of_text) and of_text[at[part]][1] <= begin:
            at[part] += 1
        # A byte-level token begins with the space before its word.
        if at[part] < len(of_text) and of_text[at[part]][0] <= begin and end <= of_text[at[part]][1]:
            words[i] = starts[part] + at[part]
            last_letters[words[i]] = end == of_text[at[part]][1]
    return [word if word >= 0 and last_letters[word] else -1 for word in words]


def with_edited_words(own: PackedBatch, edited: PackedBatch, is_edited: Tensor, max_length: int) -> PackedBatch:
    """The sentences of ``own``, of which some words are those of ``edited``.

    A GPU is asked once, for the lengths. What is longer than ``max_length`` is cut before its last token; a pair that
    would be keeps its own words, for its second text alone would be cut.

    Args:
        own, edited: with ``words``, as `pack_words` gives them.
        is_edited: (B, W) bool, the words to be taken from ``edited``; W is above every word's number.
    """
    lengths = _lengths(own, edited, is_edited)
    num_special = own.is_special.new_zeros(own.num_sentences, dtype=torch.int64)
    is_pair = num_special.index_add(0, own.token_sentence, own.is_special.long()) > 2
    is_edited = is_edited & ~(is_pair & (lengths > max_length))[:, None]
    full = _lengths(own, edited, is_edited)
    num_own, device = own.num_tokens, own.input_ids.device
    rows = torch.cat([own.token_sentence, edited.token_sentence])
    words = torch.cat([own.words, edited.words])
    is_own = torch.arange(len(rows), device=device) < num_own
    takes_edited = is_edited[rows, words.clamp(min=0)] & (words >= 0)
    is_kept = is_own != takes_edited
    # A word's edited tokens lie where its own first token does.
    firsts = torch.full_like(is_edited, num_own, dtype=torch.int64)
    places = torch.arange(num_own, device=device)
    has_word = own.words >= 0
    places_of_words = torch.where(has_word, places, num_own)
    flat = own.token_sentence * is_edited.shape[1] + own.words.clamp(min=0)
    firsts = firsts.flatten().scatter_reduce(0, flat, places_of_words, "amin").view_as(is_edited)
    order = torch.where(is_own, torch.arange(len(rows), device=device), firsts[rows, words.clamp(min=0)])
    order = torch.where(is_kept, order, num_own).argsort(stable=True)
    lengths = full.clamp(max=max_length)
    on_host = lengths.tolist()
    num_tokens = sum(on_host)
    row = torch.repeat_interleave(torch.arange(own.num_sentences, device=device), lengths, output_size=num_tokens)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    within = torch.arange(num_tokens, device=device) - starts[row]
    # The last token of a sentence that is cut is still its last.
    source = torch.where(within == lengths[row] - 1, full[row] - 1, within)
    taken = order[source + torch.nn.functional.pad(full.cumsum(0), (1, 0))[row]]
    columns = {
        name: torch.cat([getattr(own, name), getattr(edited, name)])[taken]
        for name in ("input_ids", "token_type_ids", "is_special")
    }
    return PackedBatch(
        **columns,
        position_ids=within + own.position_ids[:1],
        cu_seqlens=starts.int(),
        max_seqlen=max(on_host),
        sentence_ids=own.sentence_ids,
        is_present=torch.zeros_like(full).index_add(0, rows, takes_edited.long()) > 0,
    )


def _lengths(own: PackedBatch, edited: PackedBatch, is_edited: Tensor) -> Tensor:
    """(B,) tokens of each sentence with some words edited, before it is cut."""
    lengths = torch.zeros(own.num_sentences, dtype=torch.int64, device=own.input_ids.device)
    for side, is_other in ((own, False), (edited, True)):
        is_taken = is_edited[side.token_sentence, side.words.clamp(min=0)] & (side.words >= 0)
        lengths = lengths.index_add(0, side.token_sentence, (is_taken == is_other).long())
    return lengths
