"""The agreement test can fail: every planted mistake is seen by the comparison it makes.

Mistakes are planted on either side: in the torch code by a patch, in the transcription by another method. Each must
show far above rounding: a comparison that sees a mistake only where rounding was amplified does not see it.
"""

import pytest

from tests.oracle.comparison import RELATIVE_TOLERANCE, compared, differences, run_torch
from tests.oracle.mutants import numpy_mutants, numpy_mutants_of_objectives, torch_mutants
from tests.oracle.mutants.numpy_mutants import InnerLossIsMean
from tests.oracle.sentences.cases import CASES

MUTANTS_OF_NUMPY = {**numpy_mutants.MUTANTS, **numpy_mutants_of_objectives.MUTANTS}
ON_NUMPY = [(mutant, name) for mutant, names in MUTANTS_OF_NUMPY.items() for name in names]
ON_TORCH = [(mutant, name) for mutant, (_, names) in torch_mutants.OF_NUMBERS.items() for name in names]
OF_MASKS = [(mutant, name) for mutant, (_, names) in torch_mutants.OF_MASKS.items() for name in names]
USED_CASES = sorted({name for _, name in ON_NUMPY + ON_TORCH + OF_MASKS})
FAR_ABOVE_ROUNDING = 1e6 * RELATIVE_TOLERANCE


def named(value):
    return value if isinstance(value, str) else value.__name__


def largest(found):
    return max((difference.size for difference in found), default=0.0)


def differences_under(mutant, name):
    with torch_mutants.planted(mutant):
        table, steps = run_torch(CASES[name])
    return compared(CASES[name], table, steps)


@pytest.mark.parametrize("name", USED_CASES)
def test_nothing_is_seen_without_a_mutant(name):
    assert differences(CASES[name]) == []


@pytest.mark.parametrize(("mutant", "name"), ON_NUMPY, ids=named)
def test_mutant_of_the_transcription_is_seen(mutant, name):
    assert largest(differences(CASES[name], mutant)) > FAR_ABOVE_ROUNDING


@pytest.mark.parametrize(("mutant", "name"), ON_TORCH, ids=named)
def test_mutant_of_the_torch_code_is_seen(mutant, name):
    assert largest(differences_under(mutant, name)) > FAR_ABOVE_ROUNDING


@pytest.mark.parametrize(("mutant", "name"), OF_MASKS, ids=named)
def test_mutant_of_masks_is_seen(mutant, name):
    """In every step, and by the masks themselves, where rounding plays no part."""
    found = differences_under(mutant, name)
    assert {d.step for d in found if d.what.startswith("masks: ")} == {1, 2, 3}


@pytest.mark.parametrize("name", numpy_mutants.BASE)
def test_mean_for_sum_shows_in_the_inner_loss_only(name):
    """Directions and signs forget a factor of the gradient: in the perturbations the mutant is equivalent."""
    found = differences(CASES[name], InnerLossIsMean)
    assert [(d.step, d.what) for d in found] == [(step, "inner loss") for step in (1, 2, 3)]
