"""What a classifier makes of labelled texts: logits, accuracy, macro F1.

Shapes: ``N`` texts, ``C`` classes.
"""

from typing import Iterator, Literal, Tuple

import numpy as np
import torch

from fastadv.data.labelled.text import LabelledText
from fastadv.data.packing import PackedBatch
from fastadv.data.text import collate
from fastadv.errors import UserError
from fastadv.evaluation.before_after.embedding_attack import evaluation_mode

Metric = Literal["accuracy", "macro_f1"]


def batches_by_length(text: LabelledText, encoder, batch_size: int) -> Iterator[Tuple[np.ndarray, PackedBatch]]:
    """(rows, batch on the encoder's device), the longest texts first; together all rows, each once."""
    order = np.argsort(-np.asarray(text.lengths[np.arange(len(text))]), kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, collate([text[int(row)] for row in rows], encoder.position_offset).to(encoder.device)


def predict(classifier, text: LabelledText, batch_size: int = 64) -> np.ndarray:
    """Logits (N, C) in float32 without dropout, in the order of the rows."""
    found = np.empty((len(text), len(classifier.label_map)), dtype=np.float32)
    with evaluation_mode(classifier), torch.no_grad():
        for rows, batch in batches_by_length(text, classifier.encoder, batch_size):
            found[rows] = classifier.classify_batch(batch).float().cpu().numpy()
    return found


def check_finite(logits: np.ndarray, model: str) -> None:
    """Refuses logits (N, C) with NaN or infinity: the largest of such a row is some class all the same, which no attack
    ever moves.

    Args:
        model: what the message calls it.
    """
    num_broken = int((~np.isfinite(logits).all(axis=1)).sum())
    if num_broken:
        raise UserError(f"{model} gave logits with NaN or infinity for {num_broken} of {len(logits)} texts")


def classification_score(logits: np.ndarray, labels: np.ndarray, metric: Metric = "accuracy") -> float:
    """Accuracy, or the mean over classes of F1, x 100; NaN where a logit is not finite.

    Args:
        logits: (N, C).
        labels: (N,).
    """
    from sklearn.metrics import accuracy_score, f1_score

    if not np.isfinite(logits).all():
        return float("nan")
    predicted = logits.argmax(axis=1)
    if metric == "accuracy":
        return 100 * float(accuracy_score(labels, predicted))
    return 100 * float(f1_score(labels, predicted, average="macro", zero_division=0))
