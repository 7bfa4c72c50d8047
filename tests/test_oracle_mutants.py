"""The agreement test can fail: every planted mistake is seen by the comparison it makes.

Mistakes are planted on either side: in the torch code by a patch, in the transcription by another method.
"""

import pytest

from tests.oracle import numpy_mutants, numpy_mutants_of_objectives, torch_mutants
from tests.oracle.cases import CASES
from tests.oracle.comparison import compared, differences, run_torch
from tests.oracle.numpy_mutants import InnerLossIsMean

MUTANTS_OF_NUMPY = {**numpy_mutants.MUTANTS, **numpy_mutants_of_objectives.MUTANTS}
ON_NUMPY = [(mutant, name) for mutant, names in MUTANTS_OF_NUMPY.items() for name in names]
ON_TORCH = [(mutant, name) for mutant, (_, names) in torch_mutants.MUTANTS.items() for name in names]
USED_CASES = sorted({name for _, name in ON_NUMPY + ON_TORCH})


def named(value):
    return value if isinstance(value, str) else value.__name__


@pytest.mark.parametrize("name", USED_CASES)
def test_nothing_is_seen_without_a_mutant(name):
    assert differences(CASES[name]) == []


@pytest.mark.parametrize(("mutant", "name"), ON_NUMPY, ids=named)
def test_mutant_of_the_transcription_is_seen(mutant, name):
    assert differences(CASES[name], mutant) != []


@pytest.mark.parametrize(("mutant", "name"), ON_TORCH, ids=named)
def test_mutant_of_the_torch_code_is_seen(mutant, name):
    case = CASES[name]
    with torch_mutants.planted(mutant):
        table, steps = run_torch(case)
    assert compared(case, table, steps) != []


@pytest.mark.parametrize("name", numpy_mutants.BASE)
def test_mean_for_sum_shows_in_the_inner_loss_only(name):
    """Directions and signs forget a factor of the gradient: in the perturbations the mutant is equivalent."""
    lines = differences(CASES[name], InnerLossIsMean)
    assert len(lines) == len(CASES[name].batches)
    assert all(": inner loss differs" in line for line in lines)
