"""What a classifier makes of texts on the way to its classes: the vector that enters its head, and its logits."""

from typing import NamedTuple, Optional, Sequence

import numpy as np
import torch
from tqdm import tqdm

from fastadv.data.packing import PackedBatch
from fastadv.data.tokenize_texts import tokenize
from fastadv.errors import UserError


class Classified(NamedTuple):
    """Of N texts, in their order, in float64."""

    vectors: np.ndarray
    """h (N, D), before the head"""
    logits: np.ndarray
    """(N, C)"""

    @property
    def log_probabilities(self) -> np.ndarray:
        """(N, C)"""
        highest = self.logits.max(axis=1, keepdims=True)
        return self.logits - highest - np.log(np.exp(self.logits - highest).sum(axis=1, keepdims=True))


@torch.no_grad()
def classified(
    classifier,
    first: Sequence[str],
    second: Optional[Sequence[str]] = None,
    batch_size: int = 64,
    progress: bool = False,
    name: str = "encode",
) -> Classified:
    """Runs texts, or pairs of texts, through a `Classifier` of `fastadv.encoder`, without dropout.

    Args:
        name: what stands before the bar.

    Raises:
        UserError: vectors or logits that are not finite.
    """
    encoder = classifier.encoder
    tokens, special, types = tokenize(encoder.tokenizer, encoder.max_length, first, second, encoder.num_token_types)
    vectors = np.empty((len(tokens), encoder.hidden_size))
    logits = np.empty((len(tokens), len(classifier.label_map)))
    order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]), reverse=True)
    with tqdm(total=len(order), unit="text", desc=name, disable=not progress) as bar:
        for at in range(0, len(order), batch_size):
            rows = order[at : at + batch_size]
            batch = PackedBatch.from_token_lists(
                [tokens[i] for i in rows],
                [special[i] for i in rows],
                token_type_lists=[types[i] for i in rows],
                position_offset=encoder.position_offset,
            ).to(encoder.device)
            pooled = encoder.encode(encoder.embed(batch, dropout=False), batch, dropout=False)
            vectors[rows] = pooled.double().cpu().numpy()
            logits[rows] = classifier.head(pooled).double().cpu().numpy()
            bar.update(len(rows))
    is_finite = np.isfinite(vectors).all(axis=1) & np.isfinite(logits).all(axis=1)
    if not is_finite.all():
        raise UserError(f"the model gave NaN or infinity for {int((~is_finite).sum())} of {len(tokens)} texts")
    return Classified(vectors, logits)
