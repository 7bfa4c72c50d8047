"""The supervised systems, as `Step` runs them in float64, against numpy transcriptions that share nothing with them.

Three consecutive steps on the toy encoder and five classes: the loss, delta, the first inner loss, the gradients of all
parameters, and SMART's average model. Then the comparison itself: it must see every planted mistake.
"""

import pytest

from tests.oracle.classes.classification_cases import CASES, TRANSCRIBED
from tests.oracle.classes.classification_torch import compared, differences, run_torch, torch_steps
from tests.oracle.comparison import FAR_ABOVE_ROUNDING, largest
from tests.oracle.mutants import planting


@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_with_transcription(name):
    """The gradient by every parameter, too."""
    assert differences(CASES[name], has_every_gradient=True) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.learning_rate])
def test_torch_agrees_with_transcription_under_other_random_numbers(name):
    assert differences(CASES[name], seed=1) == []


@planting.parametrized("classes")
def test_mutant_of_the_transcription_is_seen(mutant, name):
    wrong = planting.transcribed(mutant, TRANSCRIBED[CASES[name].system])
    assert largest(differences(CASES[name], wrong)) > FAR_ABOVE_ROUNDING


@planting.parametrized("torch_classes")
def test_mutant_of_the_torch_code_is_seen(mutant, name):
    with planting.in_torch(mutant):
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
