"""The agreement test of sentence objectives can fail: the comparison it makes sees every planted mistake.

Mistakes are planted on either side, and each must show far above rounding.
"""

from tests.oracle.comparison import FAR_ABOVE_ROUNDING, TRANSCRIBED, compared, differences, largest, run_torch
from tests.oracle.mutants import planting
from tests.oracle.sentences.cases import CASES


def differences_to(mutant, name):
    return differences(CASES[name], planting.transcribed(mutant, TRANSCRIBED[CASES[name].objective]))


def differences_under(mutant, name):
    with planting.in_torch(mutant):
        table, steps = run_torch(CASES[name])
    return compared(CASES[name], table, steps)


@planting.parametrized("sentences")
def test_mutant_of_the_transcription_is_seen(mutant, name):
    assert largest(differences_to(mutant, name)) > FAR_ABOVE_ROUNDING


@planting.parametrized("torch_sentences")
def test_mutant_of_the_torch_code_is_seen(mutant, name):
    assert largest(differences_under(mutant, name)) > FAR_ABOVE_ROUNDING


@planting.parametrized("torch_masks")
def test_mutant_of_masks_is_seen(mutant, name):
    """In every step, and by the masks themselves, where rounding plays no part."""
    found = differences_under(mutant, name)
    assert {d.step for d in found if d.what.startswith("masks: ")} == {1, 2, 3}


def test_mean_for_sum_shows_in_the_inner_loss_only():
    """Directions and signs forget a factor of the gradient: in the perturbations the mutant is equivalent."""
    (mutant,) = (mutant for mutant in planting.read("sentences") if mutant.name == "InnerLossIsMean")
    for name in mutant.cases:
        found = differences_to(mutant, name)
        assert [(d.step, d.what) for d in found] == [(step, "inner loss") for step in (1, 2, 3)]
