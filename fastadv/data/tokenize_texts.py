"""Texts and pairs of texts to token ids, as the encoder's own tokenizer cuts them."""

from typing import List, Optional, Sequence, Tuple

from fastadv.errors import UserError


def tokenize(
    tokenizer,
    max_length: int,
    first: Sequence[str],
    second: Optional[Sequence[str]] = None,
    num_types: int = 0,
    prompt: str = "",
) -> Tuple[List[List[int]], List[List[bool]], List[List[int]]]:
    """Token ids, is-special flags and token types of each text, or of each pair ``[CLS] a [SEP] b [SEP]``.

    What is longer than ``max_length``, special tokens included, is cut at its end; of a pair, token by token the text
    that is longer then. Token types are 0, and 1 in the second text where the tokenizer tells the two apart and the
    model does, which has ``num_types`` of them.

    Args:
        prompt: put before each text, of a pair before the first.

    Raises:
        UserError: ``max_length`` leaves a pair no token of its own.
    """
    is_pair = second is not None
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if is_pair and max_length < least:
        raise UserError(
            f"encoder.max_length = {max_length}: expected at least {least} for pairs of texts, "
            "their special tokens and a token of each"
        )
    encoded = tokenizer(
        [prompt + text for text in first] if prompt else list(first),
        list(second) if is_pair else None,
        truncation=True,
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=is_pair,
        return_special_tokens_mask=True,
    )
    special = [[flag == 1 for flag in flags] for flags in encoded["special_tokens_mask"]]
    if is_pair and num_types > 1:
        types = encoded["token_type_ids"]
    else:
        types = [[0] * len(tokens) for tokens in encoded["input_ids"]]
    return encoded["input_ids"], special, types
