"""FreeLB, CARL and RAR in torch against their numpy transcriptions, in float64, step by step.

Losses, perturbations of every pass, parameter gradients, banks and Z. Every mistake planted in the transcription must
show against the torch code, too, far above rounding.
"""

from functools import lru_cache

import pytest

from tests.oracle.classes.supervised_cases import CASES, examples, gaps, outcome, transcribed
from tests.oracle.classes.torch_run_supervised import SupervisedRun
from tests.oracle.comparison import FAR_ABOVE_ROUNDING, RELATIVE_TOLERANCE
from tests.oracle.mutants import planting


@lru_cache(maxsize=None)
def torch_steps(name, seed=0):
    run = SupervisedRun(CASES[name], seed)
    return [run.step(examples(rows)) for rows in CASES[name].batches]


def differences(name, mutant=None, seed=0):
    """Relative gaps above the tolerance by (step, name)."""
    case = CASES[name]
    side, found = transcribed(case), {}
    if mutant is not None:
        side = transcribed(case, planting.transcribed(mutant, type(side)))
    for number, (theirs, draws) in enumerate(torch_steps(name, seed), start=1):
        ours = outcome(side, case, examples(case.batches[number - 1]), draws)
        of_step = {what: gap for what, gap in gaps(ours, theirs).items() if gap > RELATIVE_TOLERANCE}
        found.update({(number, what): gap for what, gap in of_step.items()})
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_with_transcription(name, seed):
    assert differences(name, seed=seed) == {}


@planting.parametrized("passes")
def test_mutant_is_seen(mutant, name):
    # GELU's approximation by tanh is the nearest mistake: 8e-5.
    assert max(differences(name, mutant).values(), default=0.0) > FAR_ABOVE_ROUNDING / 10


@pytest.mark.parametrize("name", ["free", "carl-nce-plain", "rar-heavy"])
def test_the_logged_gain_is_that_of_the_cross_entropy(name):
    """From the first pass to the last, without what the last pass alone has."""
    case, run = CASES[name], SupervisedRun(CASES[name])
    side = transcribed(case)
    for rows in case.batches[:5]:
        batch = examples(rows)
        (_, draws), gain = run.step(batch), float(run.module.metrics["inner_gain"])
        deltas = side.deltas(batch, draws)
        of_passes = side.passes(batch, deltas, draws, side.parameters)
        means = [
            sum(side.cross_entropy(side.parameters, h, e.label) for e, h in zip(batch, hs, strict=True)) / len(batch)
            for hs in of_passes
        ]
        assert gain == pytest.approx(means[-1] - means[0], rel=1e-9, abs=1e-12)
