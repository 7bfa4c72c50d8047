"""A sentence encoder as a classifier that text can be attacked through: frozen, with a logistic regression on top.

Attacks on text ask a classifier. An encoder has none, so one is fitted on its vectors, and an attack moves it only
through them: its rates compare encoders, each with the best linear reading of its own vectors.

Shapes: ``N`` texts, ``D`` hidden size, ``C`` classes.
"""

from pathlib import Path
from typing import Sequence

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.classifier.classification_head import LinearHead
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.before_after.probe import L2_STRENGTH, MAX_ITERATIONS
from fastadv.evaluation.vectors.vector_cache import encode_distinct

NUM_TRAIN = 2048
"""labelled texts that fit it"""


def probe_victim(encoder, data: LabelledTexts, batch_size: int = 64) -> Classifier:
    """The encoder with a linear head: multinomial logistic regression, L2, on standardised features, the scaling folded
    into the head.

    Args:
        encoder: of mean pooling, which a linear head reads.
        data: single texts of at least two classes.

    Raises:
        UserError: another pooling, pairs of texts, one class alone, or vectors that are not finite or all equal.
    """
    check_pooling(encoder.pooling)
    if data.second is not None:
        raise UserError("a linear probe reads single texts, and the labelled data are pairs")
    labels = np.asarray(data.labels)
    present = np.unique(labels)
    if len(present) < 2:
        only = ", ".join(repr(data.label_map.names[label]) for label in present.tolist()) or "there is none"
        raise UserError(f"the labelled data have one class alone ({only}); a probe needs two")
    # What a head reads: before a Normalize at the end.
    vectors = encode_distinct(encoder, data.first, batch_size, is_finished=False).astype(np.float64)
    mean, scale = vectors.mean(axis=0), vectors.std(axis=0)
    if not scale.any():
        raise UserError("the encoder gives every text the same vector; there is nothing to tell classes apart by")
    # A feature that never varies carries nothing; its scale of 0 must not divide.
    scale = np.where(scale > 0, scale, 1)
    fitted = LogisticRegression(C=1 / L2_STRENGTH, max_iter=MAX_ITERATIONS).fit((vectors - mean) / scale, labels)
    weight = fitted.coef_ / scale
    return linear_classifier(encoder, weight, fitted.intercept_ - weight @ mean, data.label_map, present)


def check_pooling(pooling: str) -> None:
    """UserError for vectors that no linear head reads."""
    if pooling != "mean":
        raise UserError(
            f"a linear probe reads mean-pooled vectors, and this encoder pools by {pooling}; no attack on text"
        )


def linear_classifier(
    encoder, weight: np.ndarray, bias: np.ndarray, label_map: LabelMap, present: Sequence[int]
) -> Classifier:
    """The encoder with a linear head.

    Args:
        weight: (P, D) of the P classes that are ``present``; of two (1, D) will do: the logit of the second.
        bias: (P,), or (1,) likewise.
        present: numbers of the classes that the head knows; the others are never named.
    """
    if len(present) == 2 and len(weight) == 1:
        # The logit of the first is 0.
        weight, bias = np.vstack([np.zeros_like(weight), weight]), np.array([0.0, bias[0]])
    head = LinearHead(weight.shape[1], len(label_map))
    with torch.no_grad():
        head.out.weight.zero_()
        head.out.bias.fill_(-1e4)
        head.out.weight[present] = torch.as_tensor(weight, dtype=head.out.weight.dtype)
        head.out.bias[present] = torch.as_tensor(bias, dtype=head.out.bias.dtype)
    return Classifier(encoder, head.to(encoder.dtype).to(encoder.device), label_map).eval()


def draw_train(
    data: LabelledTexts, attacked: Sequence[str], num_train: int = NUM_TRAIN, seed: int = 0
) -> LabelledTexts:
    """At most ``num_train`` texts of ``data``, none of them among the ``attacked``, each once."""
    from fastadv.evaluation.embeddings.classifier_attack import with_rows

    taken, rows = set(attacked), []
    for row in np.random.default_rng(seed).permutation(len(data)).tolist():
        if data.first[row] not in taken and len(rows) < num_train:
            taken.add(data.first[row])
            rows.append(row)
    if not rows:
        raise UserError("the labelled data have no text to fit a probe on that is not attacked; give fewer --max_texts")
    return with_rows(data, sorted(rows))


def write_victim(encoder, data: LabelledTexts, folder: Path, batch_size: int = 64) -> Path:
    """`probe_victim`, saved as a classifier that `fastadv attack` opens."""
    return probe_victim(encoder, data, batch_size).save_pretrained(folder)
