"""The linear probe: it separates what is separable, folds its scaling away, and its loss is −log p."""

import numpy as np
import pytest
import torch

from fastadv.evaluation.before_after.probe import fit_probe


def blobs(num_vectors=200, width=6):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, num_vectors)
    vectors = rng.normal(size=(num_vectors, width)) + 3 * labels[:, None] * np.eye(width)[0]
    return vectors, labels


def test_separable_blobs():
    vectors, labels = blobs()
    probe = fit_probe(vectors[:150], labels[:150])
    # Means 3 apart at unit deviation: the best rule is right in Φ(1.5) = 93 % of cases, ± 3.6 % on 50.
    assert probe.is_right(vectors[150:], labels[150:]).mean() > 0.82


def test_scale_shift_and_constant_features_do_not_matter():
    vectors, labels = blobs()
    moved = np.column_stack([vectors * [1e-3, 10, 1, 1, 1, 500] + 7, np.full(len(labels), 4.0)])
    expected, logits = fit_probe(vectors, labels).logits(vectors), fit_probe(moved, labels).logits(moved)
    np.testing.assert_allclose(logits, expected, atol=2e-3)  # lbfgs stops at a gradient of 1e-4


def test_cross_entropy_is_minus_log_p_of_two_classes():
    vectors, labels = blobs(40)
    probe = fit_probe(vectors, labels)
    losses = probe.cross_entropy(torch.from_numpy(labels))(torch.from_numpy(vectors).float())
    p = 1 / (1 + np.exp(-probe.logits(vectors)))
    np.testing.assert_allclose(losses.numpy(), -np.log(np.where(labels == 1, p, 1 - p)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="both present"):
        fit_probe(np.ones((4, 2)), [1, 1, 1, 1])
