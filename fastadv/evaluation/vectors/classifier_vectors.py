"""What a classifier makes of texts on the way to its classes: the vector that enters its head, and its logits."""

from typing import NamedTuple, Optional, Sequence

import numpy as np
import torch

from fastadv.errors import UserError
from fastadv.files.progress import Bar


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
    vectors = np.empty((len(first), encoder.hidden_size))
    logits = np.empty((len(first), len(classifier.label_map)))
    with Bar(total=len(first), unit="text", desc=name, disable=not progress) as bar:
        for rows, batch in encoder.batches_of(first, second, batch_size):
            pooled = encoder.encode(encoder.embed(batch, dropout=False), batch, dropout=False)
            vectors[rows] = pooled.double().cpu().numpy()
            logits[rows] = classifier.head(pooled).double().cpu().numpy()
            bar.update(len(rows))
    is_finite = np.isfinite(vectors).all(axis=1) & np.isfinite(logits).all(axis=1)
    if not is_finite.all():
        raise UserError(f"the model gave NaN or infinity for {int((~is_finite).sum())} of {len(first)} texts")
    return Classified(vectors, logits)
