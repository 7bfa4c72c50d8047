"""How often each token occurs in the training data."""

from typing import Union

import numpy as np
import torch
from torch import Tensor

from fastadv.data.mixture import JoinedText
from fastadv.data.text import TokenizedText


def count_tokens(text: Union[TokenizedText, JoinedText], vocab_size: int) -> Tensor:
    """(vocab_size,) int64 occurrences, special tokens among them."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for tokens in text.token_pieces():
        counts += np.bincount(tokens, minlength=vocab_size)
    return torch.from_numpy(counts)
