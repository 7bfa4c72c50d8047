"""How often each token occurs in the training data."""

from typing import Sequence

import numpy as np
import torch
from torch import Tensor

# Rows joined before they are counted: one call of numpy for many.
_ROWS_TOGETHER = 4096


def count_tokens(text: Sequence[dict], vocab_size: int) -> Tensor:
    """(vocab_size,) int64 occurrences in rows with ``input_ids`` (a `TokenizedText`), special tokens among them."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(text), _ROWS_TOGETHER):
        rows = [text[i]["input_ids"] for i in range(start, min(start + _ROWS_TOGETHER, len(text)))]
        counts += np.bincount(np.concatenate(rows), minlength=vocab_size)
    return torch.from_numpy(counts)
