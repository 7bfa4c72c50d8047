"""Texts and pairs of texts to token ids, as the encoder's own tokenizer cuts them."""

import unicodedata
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

from fastadv.data.records import sentence_id
from fastadv.data.sources.line_report import LineReport
from fastadv.errors import UserError

Tokens = Tuple[List[List[int]], List[List[bool]], List[List[int]]]
"""token ids, is-special flags and token types of each text"""

_counting: ContextVar[Optional[LineReport]] = ContextVar("counting", default=None)


def tokenize(
    tokenizer,
    max_length: int,
    first: Sequence[str],
    second: Optional[Sequence[str]] = None,
    num_types: int = 0,
    prompt: str = "",
) -> Tokens:
    """Token ids, is-special flags and token types of each text, or of each pair ``[CLS] a [SEP] b [SEP]``.

    What is longer than ``max_length``, special tokens included, is cut at its end; of a pair, token by token the text
    that is longer then. Token types are 0, and 1 in the second text where the tokenizer tells the two apart and the
    model does, which has ``num_types`` of them.

    Args:
        prompt: put before each text, of a pair before the first.

    Raises:
        UserError: ``max_length`` leaves a pair no token of its own.
        TypeError: a text where a list of texts belongs, or something else than a text in the list.
        ValueError: lists of different lengths.
    """
    is_pair = second is not None
    columns = [checked_texts(texts) for texts in ((first, second) if is_pair else (first,))]
    if len({len(texts) for texts in columns}) > 1:
        raise ValueError(f"{len(columns[0])} first texts and {len(columns[1])} second ones: expected as many")
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if is_pair and max_length < least:
        raise UserError(
            f"encoder.max_length = {max_length}: expected at least {least} for pairs of texts, "
            "their special tokens and a token of each"
        )
    if not columns[0]:
        # Some tokenizers fail at an empty list.
        return [], [], []
    columns[0] = [prompt + text for text in columns[0]]
    encoded = tokenizer(
        *columns,
        truncation=True,
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=is_pair,
        return_special_tokens_mask=True,
    )
    ids = encoded["input_ids"]
    special = [[flag == 1 for flag in flags] for flags in encoded["special_tokens_mask"]]
    types = encoded["token_type_ids"] if is_pair and num_types > 1 else [[0] * len(tokens) for tokens in ids]
    report = _counting.get()
    if report is not None:
        report.num_cut += _num_cut(tokenizer, max_length, encoded, *columns)
        report.max_length = max_length
        report.num_texts += len(ids)
        report.num_tokens += sum(len(flags) - sum(flags) for flags in special)
        report.num_unknown += _num_unknown(tokenizer, ids, special)
    return ids, special, types


def is_plain(text: str) -> bool:
    """Whether ``text`` is its own `plain_text`."""
    return text == plain_text(text)


def plain_text(text: str) -> str:
    """``text`` in Unicode's composed form (NFC), with one space for each stretch of white space and none around it."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def sentence_ids(
    encoder_tokenize: Callable[..., Sequence[List]], tokens: Sequence[Sequence[int]], *columns: Sequence[str]
) -> List[int]:
    """What says which texts, or pairs of texts, are equal: of each the `sentence_id` of its `plain_text`'s tokens.

    Tokenizers of bytes have tokens of white space, with which "a man" and "a man  " would be different sentences.

    Args:
        encoder_tokenize: columns of texts -> (token ids, ...) of each row.
        tokens: what it gave for ``columns``.
    """
    ids = list(map(sentence_id, tokens))
    others = [place for place, texts in enumerate(zip(*columns)) if not all(map(is_plain, texts))]
    if others:
        # Not texts of their own, for those who count.
        with counting_tokens(LineReport()):
            plain = encoder_tokenize(*([plain_text(texts[place]) for place in others] for texts in columns))[0]
        for place, of_text in zip(others, plain, strict=True):
            ids[place] = sentence_id(of_text)
    return ids


def checked_texts(texts: Sequence[str]) -> List[str]:
    """A list of ``texts``, which may be an array or a column of a table.

    Raises:
        TypeError: one text, whose letters would pass for texts, or something that is no text.
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"a list of texts is expected, got one text; give [{_short(texts)}]")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise TypeError(f"text {place} is expected to be a str, got {type(text).__name__} {_short(text)}")
    return listed


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


@contextmanager
def counting_tokens(report: LineReport) -> Iterator[None]:
    """Within the block ``report`` counts what is tokenised in this thread: texts, those cut, tokens, unknown ones."""
    token = _counting.set(report)
    try:
        yield
    finally:
        _counting.reset(token)


def say_tokens(encoder, name: str, first: Sequence[str], second: Optional[Sequence[str]] = None) -> None:
    """Logs how many of some texts, or pairs, an encoder cuts, and how many of their tokens it does not know.

    Args:
        encoder: has ``tokenize``, and for pairs ``tokenize_pairs``; of one that has not there is nothing to say.
        name: what the texts are called.
    """
    if not hasattr(encoder, "tokenize"):
        return
    report = LineReport()
    with counting_tokens(report):
        encoder.tokenize(first) if second is None else encoder.tokenize_pairs(first, second)
    report.say_tokens(name)


def _num_cut(tokenizer, max_length: int, encoded, first: List[str], second: Optional[List[str]] = None) -> int:
    """How many texts or pairs lost tokens: none that has fewer than ``max_length``, and not all that have as many."""
    at_limit = [row for row, tokens in enumerate(encoded["input_ids"]) if len(tokens) == max_length]
    encodings = getattr(encoded, "encodings", None)
    if encodings is not None:
        return sum(bool(encodings[row].overflowing) for row in at_limit)
    if not at_limit:
        return 0
    # A tokenizer in Python keeps nothing of what it cut.
    columns = [[texts[row] for row in at_limit] for texts in (first, second) if texts is not None]
    longer = tokenizer(
        *columns,
        truncation=True,
        max_length=max_length + 1,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    return sum(len(tokens) > max_length for tokens in longer["input_ids"])


def _num_unknown(tokenizer, ids: List[List[int]], special: List[List[bool]]) -> int:
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return 0
    rows = ((tokens, flags) for tokens, flags in zip(ids, special) if unknown in tokens)
    # GPT-2's unknown token is its special one.
    return sum(token == unknown and not flag for tokens, flags in rows for token, flag in zip(tokens, flags))
