"""The text-level systems, as `Step` runs them in float64, against numpy transcriptions that share nothing with them.

Three batches of five classes, with texts missing from some, none and all of the rows: the loss and the gradient by
every parameter. Then the comparison itself: it must see every planted mistake.
"""

import pytest

from tests.oracle.comparison import FAR_ABOVE_ROUNDING, largest
from tests.oracle.mutants import planting
from tests.oracle.texts.text_level_cases import BATCHES, CASES, TRANSCRIBED
from tests.oracle.texts.text_level_torch import TorchRun, compared, differences, torch_steps


@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_with_transcription(name):
    assert differences(CASES[name], has_every_gradient=True) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_dropout])
def test_torch_agrees_with_transcription_under_other_masks(name):
    assert differences(CASES[name], seed=1) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.has_dropout])
def test_pieces_of_a_batch_agree_with_the_transcription(name):
    """A row's text and its class stay together, and a missing text missing, whatever piece they are in."""
    run = TorchRun(CASES[name], micro_batch_size=2)
    assert compared(CASES[name], [run.step(batch) for batch in BATCHES]) == []


@planting.parametrized("texts")
def test_mutant_is_seen(mutant, name):
    wrong = planting.transcribed(mutant, TRANSCRIBED[CASES[name].system])
    assert largest(differences(CASES[name], wrong)) > FAR_ABOVE_ROUNDING


@pytest.mark.parametrize(
    ("name", "num_masks"),
    [("safer", 3), ("base_adv", 3), ("base_adv_soft", 3), ("ada", 4), ("a2t", 4), ("bat_pairwise", 6)],
)
def test_passes_draw_masks_of_their_own(name, num_masks):
    """Two a pass, and X's of a clean pass that is not made; the victim has none."""
    for step in torch_steps(CASES[name]):
        assert step.num_masks == num_masks
        passes = [masks for masks in vars(step.draws).values() if masks is not None]
        for one in passes:
            for other in passes:
                alike = [a.shape == b.shape and (a == b).all() for a, b in zip(one.inner, other.inner)]
                assert one is other or not all(alike)
