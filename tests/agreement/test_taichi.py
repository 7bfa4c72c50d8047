"""TaiChi's transcription, before the torch code is held against it: by hand and by differences."""

import numpy as np
import pytest

from tests.oracle.classes.classification import NUM_CLASSES
from tests.oracle.comparison import random_moves, slope_by_differences
from tests.oracle.texts.taichi import TERMS, TaiChi, TaiChiOptions, divergence, make_parameters
from tests.oracle.texts.taichi_cases import BATCHES, CASES, random_masks
from tests.oracle.transcription import parameter_slope


@pytest.mark.parametrize("name", CASES)
def test_slope_is_the_loss_difference(name):
    case = CASES[name]
    side = TaiChi(case.options, make_parameters())
    moves, rows = random_moves(side.parameters), BATCHES["mixed"]
    masks = random_masks(rows) if case.has_dropout else None

    def loss_of(parameters):
        return side.loss(rows, masks, parameters)

    slope = parameter_slope(loss_of, side.parameters, moves)
    assert slope == pytest.approx(slope_by_differences(loss_of, side.parameters, moves), rel=1e-6, abs=1e-7)


def test_contrast_by_hand():
    """Keys at right angles, the anchors equal to theirs: scores 1 and 0, the positive not below the line."""
    side = TaiChi(TaiChiOptions(temperature=0.5), {})
    one, other, third = np.eye(3)
    assert side.contrast([one, other], [one, other], None) == pytest.approx(-2.0, rel=1e-15)
    # Two negatives of score 0.
    assert side.contrast(3 * [one], [one, other, third], None) == pytest.approx(
        np.mean([np.log(2) - 2, np.log(np.exp(2) + 1), np.log(np.exp(2) + 1)]), rel=1e-14
    )
    assert side.contrast([one], [other], None) == 0


def test_distance_by_hand():
    """A positive at distance 5, a negative at 0: -log(exp(-5/2) / exp(0))."""
    side = TaiChi(TaiChiOptions(similarity="neg_l2", temperature=2.0), {})
    anchor, far = np.zeros(2), np.array([3.0, 4.0])
    assert side.contrast_of(0, [anchor], [far, anchor]) == pytest.approx(2.5, rel=1e-15)


def test_divergence_by_hand():
    """(1/4, 3/4) against (1/2, 1/2)."""
    p, q = np.log([1.0, 3.0]), np.zeros(2)
    assert divergence(p, q) == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), rel=1e-14)
    assert divergence(q, p) == pytest.approx(-0.5 * np.log(0.75), rel=1e-14)
    assert divergence(p, p + 3) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("ablation", TERMS)
def test_a_text_without_a_pair_is_in_the_clean_cross_entropy_alone(ablation):
    side = TaiChi(TaiChiOptions(ablation), make_parameters())
    mixed, paired = BATCHES["mixed"], [row for row in BATCHES["mixed"] if row.attacked is not None]
    of_all, of_paired = side.terms(mixed), side.terms(paired)
    for name, value in of_all.items():
        assert (value == pytest.approx(of_paired[name], rel=1e-13)) == (name != "ce_clean")
    assert {n for n, value in side.terms(BATCHES["unpaired"]).items() if value} == {"ce_clean"} & set(of_all)
    lone = {n for n, value in side.terms(BATCHES["lone"]).items() if value}
    assert lone == {name for name in of_all if not name.startswith("ctr_")}


def test_terms_are_of_the_networks_they_are_named_after():
    """A move of the adversarial network leaves the clean network's own terms, and the other way round."""
    side, rows = TaiChi(TaiChiOptions(), make_parameters()), BATCHES["paired"]
    before = side.terms(rows)
    for network, kept in (("adversarial", "clean"), ("clean", "adversarial")):
        moved = {n: v + 0.1 * n.startswith(network) for n, v in side.parameters.items()}
        after = side.terms(rows, None, moved)
        same = {name for name in before if after[name] == before[name]}
        assert same == {f"ce_{kept}", f"ctr_{kept}"}


def test_classes_are_all_there():
    assert {row.label for batch in BATCHES.values() for row in batch} == set(range(NUM_CLASSES))
