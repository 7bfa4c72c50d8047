"""The supervised systems, as `Step` runs them in float64, against numpy transcriptions that share nothing with them.

Three consecutive steps on the toy encoder and five classes: the loss, delta, the first inner loss, the gradients of all
parameters, and SMART's average model. Then the comparison itself: it must see every planted mistake.
"""

import pytest

from tests.agreement.test_mutants import FAR_ABOVE_ROUNDING, largest, named
from tests.oracle.classes.classification_cases import CASES
from tests.oracle.classes.classification_torch import compared, differences, run_torch, torch_steps
from tests.oracle.comparison import RELATIVE_TOLERANCE
from tests.oracle.mutants import numpy_mutants_of_classification, torch_mutants_of_classification

ON_NUMPY = [(mutant, name) for mutant, names in numpy_mutants_of_classification.MUTANTS.items() for name in names]
ON_TORCH = [(mutant, name) for mutant, (_, names) in torch_mutants_of_classification.MUTANTS.items() for name in names]


@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_with_transcription(name):
    """The gradient by every parameter, too."""
    assert differences(CASES[name], has_every_gradient=True) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.learning_rate])
def test_torch_agrees_with_transcription_under_other_random_numbers(name):
    assert differences(CASES[name], seed=1) == []


@pytest.mark.parametrize(("mutant", "name"), ON_NUMPY, ids=named)
def test_mutant_of_the_transcription_is_seen(mutant, name):
    assert largest(differences(CASES[name], mutant)) > FAR_ABOVE_ROUNDING


@pytest.mark.parametrize(("mutant", "name"), ON_TORCH, ids=named)
def test_mutant_of_the_torch_code_is_seen(mutant, name):
    with torch_mutants_of_classification.planted(mutant):
        steps = run_torch(CASES[name])
    assert largest(compared(CASES[name], steps)) > FAR_ABOVE_ROUNDING


@pytest.mark.parametrize(
    ("name", "num_masks"),
    [
        ("fine_tuning", 2),
        ("adversarial_training-fgm", 3),  # the gradient comes from the clean pass' own graph
        ("adversarial_training-pgd-l2", 3),  # inner steps without dropout
        ("freelb-no-ball", 4),  # X's, and one of three passes
        ("scal-fgm", 3),
        ("scal-cl", 4),
        ("smart-plain", 4),  # one inner step under the clean masks
        ("smart-off", 3),
    ],
)
def test_passes_draw_masks_of_their_own(name, num_masks):
    """As many as the system has; z_adv's and z+'s are not z's, and the average model has none."""
    for step in torch_steps(CASES[name]):
        assert step.num_masks == num_masks
        others = [view for view in (step.views.positive, step.views.adversarial) if view is not None]
        for view in others if step.views.clean.inner is not None else []:
            assert any((one != other).any() for one, other in zip(view.inner, step.views.clean.inner, strict=True))


def test_the_tolerance_is_far_below_what_mistakes_make():
    assert RELATIVE_TOLERANCE * 1e6 == FAR_ABOVE_ROUNDING
