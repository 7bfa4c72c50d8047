"""Counter-fitting: its sum against numpy, its laws, and what it does to synonyms and antonyms."""

import numpy as np
import pytest
import torch

from fastadv.evaluation.resources import counter_fitting
from fastadv.evaluation.resources.counter_fitting import CounterFitting, counter_fit
from tests.evaluation.resources.test_word_vectors import random_vectors

VECTORS = random_vectors(60, 8)
SYNONYMS = np.array([(0, 1), (2, 1), (5, 4), (7, 9)])
ANTONYMS = np.array([(10, 11), (12, 13), (9, 7)])


def cosine(vectors, a, b):
    return float(vectors.directions[a] @ vectors.directions[b])


def by_hand(fitted, apart, together, near, distances, settings):
    """The sum (4) of the paper, a pair at a time in float64."""

    def d(a, b):
        return 1 - fitted[a] @ fitted[b] / np.linalg.norm(fitted[a]) / np.linalg.norm(fitted[b])

    total = 0.0
    for a, b in apart:
        total += settings.weight_antonyms * max(0, settings.antonym_margin - d(a, b))
    for a, b in together:
        total += settings.weight_synonyms * max(0, d(a, b) - settings.synonym_margin)
    for (a, b), before in zip(near, distances):
        total += settings.weight_preservation * max(0, d(a, b) - before - 1e-5)
    return total


@pytest.mark.parametrize("margin, radius", [(0.0, 0.5), (0.1, 0.3)])
def test_the_sum_is_the_papers(margin, radius):
    settings = CounterFitting(0.5, 2.0, 0.25, synonym_margin=margin, radius=radius, antonym_margin=0.9)
    near, distances = counter_fitting._near_pairs(VECTORS, settings, {(7, 9)})
    fitted = random_vectors(60, 8, seed=1).vectors.astype(np.float64)
    loss = counter_fitting._loss(
        torch.from_numpy(fitted),
        torch.from_numpy(ANTONYMS),
        torch.from_numpy(SYNONYMS),
        near,
        distances.double(),
        settings,
    )
    expected = by_hand(fitted, ANTONYMS, SYNONYMS, near.tolist(), distances.tolist(), settings)
    assert len(near) > 20 and loss.item() == pytest.approx(expected, rel=1e-9)


def test_pairs_to_be_kept_are_the_near_ones_but_for_antonyms():
    settings = CounterFitting(radius=0.5)
    near, distances = counter_fitting._near_pairs(VECTORS, settings, set())
    expected = {(a, b) for a in range(60) for b in range(60) if a != b and cosine(VECTORS, a, b) >= 0.5}
    assert {tuple(pair) for pair in near.tolist()} == expected
    assert np.allclose(distances, [1 - cosine(VECTORS, a, b) for a, b in near.tolist()], atol=1e-6)
    gone = {next(iter(sorted(expected)))}
    left, _ = counter_fitting._near_pairs(VECTORS, settings, gone)
    assert {tuple(pair) for pair in left.tolist()} == {p for p in expected if tuple(sorted(p)) not in gone}


def test_synonyms_come_together_and_antonyms_part_while_the_rest_stays():
    steps = []
    fitted = counter_fit(
        VECTORS, SYNONYMS, ANTONYMS, CounterFitting(num_steps=200, num_extra=0), lambda n, s: steps.append((n, s))
    )
    assert [step for step, _ in steps] == list(range(1, 201)) and steps[-1][1] < 0.2 * steps[0][1]
    assert np.allclose(np.linalg.norm(fitted.vectors, axis=1), 1, atol=1e-5) and fitted.words == VECTORS.words
    for a, b in SYNONYMS[:3]:
        assert cosine(fitted, a, b) > max(0.88, cosine(VECTORS, a, b))
    for a, b in ANTONYMS:
        # (7, 9) is in both lists: WordNet calls a few antonyms synonyms in another sense.
        assert cosine(fitted, a, b) < 0.1
    touched = set(SYNONYMS.ravel()) | set(ANTONYMS.ravel())
    kept = [i for i in range(60) if i not in touched]
    moved = [1 - float(fitted.directions[i] @ VECTORS.directions[i]) for i in kept]
    assert np.median(moved) < 0.02


def test_without_pairs_nothing_moves():
    none = np.empty((0, 2), dtype=int)
    fitted = counter_fit(VECTORS, none, none, CounterFitting(num_steps=5, num_extra=0))
    assert np.allclose(fitted.vectors, VECTORS.directions, atol=1e-6)


def test_extra_numbers_leave_strangers_apart_and_scale_every_cosine_before_the_first_step():
    settings = CounterFitting(num_extra=400, extra_share=0.25, seed=3)
    start = counter_fitting._with_extra(VECTORS.directions, settings)
    assert start.shape == (60, 408) and np.allclose(np.linalg.norm(start, axis=1), 1, atol=1e-6)
    before, after = VECTORS.directions @ VECTORS.directions.T, start @ start.T
    # Random directions of 400 numbers meet at cosines of about 1 / 20.
    assert np.abs(after - 0.75 * before - 0.25 * np.eye(60)).max() < 0.25 * 5 / 20
    other = counter_fitting._with_extra(VECTORS.directions, CounterFitting(num_extra=400, extra_share=0.25, seed=4))
    assert not np.array_equal(start, other)


def test_it_gives_the_same_every_time_and_leaves_its_input_alone():
    before = VECTORS.vectors.copy()
    first = counter_fit(VECTORS, SYNONYMS, ANTONYMS, CounterFitting(num_steps=5))
    again = counter_fit(VECTORS, SYNONYMS, ANTONYMS, CounterFitting(num_steps=5))
    assert np.array_equal(first.vectors, again.vectors) and np.array_equal(VECTORS.vectors, before)
