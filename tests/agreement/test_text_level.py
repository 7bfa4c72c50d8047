"""The transcriptions of the text-level systems by themselves: closed forms, laws of missing texts."""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracle.classes.classification import NUM_CLASSES
from tests.oracle.comparison import random_moves, slope_by_differences
from tests.oracle.texts import text_level
from tests.oracle.texts.bat import BATPairwise, BATTriplet
from tests.oracle.texts.text_level import (
    Draws,
    TextOptions,
    make_model_parameters,
    make_victim_parameters,
    random_draws,
)
from tests.oracle.texts.text_level_cases import BATCHES, CASES, MIXED, NONE, TRANSCRIBED, WHOLE
from tests.oracle.transcription import parameter_slope


def side_of(case):
    return TRANSCRIBED[case.system](case.options, make_model_parameters(), make_victim_parameters())


@pytest.mark.parametrize("name", CASES)
def test_slope_is_the_loss_difference(name):
    case = CASES[name]
    side, draws = side_of(case), random_draws(MIXED)
    moves = random_moves(side.parameters)

    def loss_of(parameters):
        return side.loss(MIXED, draws, parameters)

    slope = parameter_slope(loss_of, side.parameters, moves)
    assert slope == pytest.approx(slope_by_differences(loss_of, side.parameters, moves), rel=1e-6, abs=1e-7)


def by_hand(options, fickle, obstinate, system=BATPairwise):
    return system(options, {}).balance(fickle, obstinate)


def test_pairwise_by_hand():
    options = TextOptions(weight_fickle=2.0, weight_obstinate=3.0, margin=0.5)
    # Two of three have a fickle text, of mean 0.3; of the obstinate ones 0.5 - 0.1 counts and 0.9 is beyond the margin.
    assert by_hand(options, [0.2, None, 0.4], [0.1, 0.9, None]) == pytest.approx(2 * 0.3 + 3 * 0.4 / 2, rel=1e-14)
    assert by_hand(options, [None, None], [None, None]) == 0


def test_triplet_by_hand():
    options = TextOptions(weight_triplet=2.0, margin=0.5)
    # 0.2 + 0.4; only d_f; only m - d_o, below 0; neither.
    fickle, obstinate = [0.2, 0.3, None, None], [0.1, None, 0.9, None]
    assert by_hand(options, fickle, obstinate, BATTriplet) == pytest.approx(2 * (0.6 + 0.3) / 4, rel=1e-14)
    # The hinge is of the sum: 0.3 + (0.5 - 0.9) is below 0.
    assert by_hand(options, [0.3], [0.9], BATTriplet) == 0


@pytest.mark.parametrize("kind", ["cls", "mean", "max"])
def test_distances_by_hand(kind):
    side = BATPairwise(TextOptions(distance_of=kind), {})
    encoded = text_level.Encoded(np.array([3.0, 4.0]), np.array([[1.0, -2.0], [3.0, -6.0]]))
    expected = {"cls": [3, 4], "mean": [2, -4], "max": [3, -2]}[kind]
    assert side.vector(encoded).tolist() == expected
    assert side.distance(np.array([1.0, 0]), np.array([3.0, 4.0])) == pytest.approx(0.4, rel=1e-14)
    assert side.distance(np.array([1.0, 2]), np.array([-2.0, -4])) == pytest.approx(2, rel=1e-14)


def test_soft_targets_by_hand():
    """A victim of (1/4, 3/4), a model of (1/2, 1/2): log 2, as of any victim; an equal model: the victim's entropy."""
    side = text_level.BaseAdvSoft(TextOptions(), {})
    victim = np.array([0.25, 0.75])
    assert side.soft_cross_entropy(victim, np.array([7.0, 7.0])) == pytest.approx(np.log(2), rel=1e-14)
    entropy = -(victim * np.log(victim)).sum()
    assert side.soft_cross_entropy(victim, np.log(victim) + 3) == pytest.approx(entropy, rel=1e-14)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.system.startswith("bat")])
def test_without_other_texts_bat_is_fine_tuning(name):
    side, draws = side_of(CASES[name]), random_draws(NONE)
    plain = text_level.FineTuning(side.options, side.parameters)
    assert side.loss(NONE, draws) == plain.loss(NONE, draws)


@pytest.mark.parametrize("name", CASES)
def test_a_batch_without_what_is_counted(name):
    """No x' to train on is a loss of 0; ADA's, A2T's and SAFER's are then fine-tuning's."""
    side, draws = side_of(CASES[name]), Draws()
    plain = text_level.FineTuning(side.options, side.parameters).loss(NONE, draws)
    expected = 0.0 if CASES[name].system.startswith("base_adv") else plain
    assert side.loss(NONE, draws) == pytest.approx(expected, rel=1e-14)


def test_hard_targets_are_soft_ones_of_a_victim_that_knows_the_label():
    for hard, soft in ((text_level.BaseAdv, text_level.BaseAdvSoft), (text_level.ADA, text_level.ADASoft)):
        options, parameters = TextOptions(weight_adversarial=0.7), make_model_parameters()
        side, draws = soft(options, parameters), random_draws(WHOLE)
        labels = {example.adversarial: example.label for example in WHOLE}
        side.victim_probabilities = lambda text, labels=labels: np.eye(NUM_CLASSES)[labels[text]]
        assert side.loss(WHOLE, draws) == pytest.approx(hard(options, parameters).loss(WHOLE, draws), rel=1e-14)


def test_a_text_that_is_missing_is_not_one_that_is_the_sentence():
    """BAT counts the latter, at distance 0; in ADA it is the sentence once more."""
    given = [replace(e, fickle=e.sentence, obstinate=e.sentence, adversarial=e.sentence) for e in WHOLE]
    parameters, options = make_model_parameters(), TextOptions()
    plain = text_level.FineTuning(options, parameters).loss(WHOLE)
    assert text_level.ADA(options, parameters).loss(given) == pytest.approx(2 * plain, rel=1e-14)
    assert BATPairwise(options, parameters).loss(given) == pytest.approx(plain + 1.2, rel=1e-14)
    assert BATTriplet(options, parameters).loss(given) == pytest.approx(plain + 1, rel=1e-14)


def test_cases_cover_classes_and_missing_texts():
    assert {example.label for example in MIXED} == set(range(NUM_CLASSES))
    for name in text_level.VARIANTS:
        present = [sum(getattr(e, name) is not None for e in batch) for batch in BATCHES]
        assert 0 < present[0] < len(MIXED) and present[1] == len(WHOLE) and present[2] == 0
