"""Cases of FreeLB's passes, CARL and RAR by name, and what one step of either side is compared by.

Six classes over twelve rows of training data. CARL's first three batches fill the banks, all but one row's, and one of
them holds a row twice; then negatives are drawn.
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle.classes.carl import CARL, CarlOptions
from tests.oracle.classes.free_passes import (
    Draws,
    Example,
    FreeLB,
    PassOptions,
    make_classifier_parameters,
    random_draws,
)
from tests.oracle.classes.rar import RAR, RarOptions, make_reconstructor_parameters
from tests.oracle.comparison import random_moves
from tests.oracle.sentences.cases import bare, framed
from tests.oracle.toy_encoder import CLS, SATURATED_WORDS, make_parameters
from tests.oracle.transcription import parameter_gradient, parameter_slope

NUM_CLASSES, NUM_ROWS = 6, 12
LABELS = (0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 0, 3)
SENTENCES = (
    framed([2, 3, 4], 0),
    framed([5, 2], 1),
    framed([6, 7, 3, 2], 2),
    bare([8], 3),
    framed([3, 3, 9], 4),
    bare(2 * [SATURATED_WORDS[0]], 5),
    framed([10, SATURATED_WORDS[1], 2], 6),
    framed([], 7),
    framed([11, 4], 8),
    bare([5, CLS, 6], 9),
    framed([7, 8, 9, 10], 10),
    framed([4], 11),
)
UNWRITTEN = 11
BATCHES = (
    (0, 1, 2, 3),
    (4, 5, 6),
    (7, 8, 9, 10, 0, 0),
    # Every class but one; all of one class; one row alone, whose representation no bank has; all that came before.
    (0, 3, 5, 7, 8, 4),
    (0, 6, 9),
    (UNWRITTEN,),
    (10, 11, 1, 2),
)
NUM_FILLING = 3


def examples(rows):
    return [Example(SENTENCES[row], LABELS[row], row) for row in rows]


@dataclass(frozen=True)
class SupervisedCase:
    options: PassOptions
    has_dropout: bool = True
    negatives: str = "per_batch"
    learning_rate: float = 0.0
    batches: tuple = BATCHES

    @property
    def kind(self):
        return {PassOptions: "free", CarlOptions: "carl", RarOptions: "rar"}[type(self.options)]


def parameters_of(case):
    parameters = {**make_parameters(head="none"), **make_classifier_parameters(NUM_CLASSES)}
    return {**parameters, **make_reconstructor_parameters()} if case.kind == "rar" else parameters


def transcribed(case, mutant=None):
    """The transcription of a case, or a mutant of it, at its start."""
    if case.kind == "carl":
        return (mutant or CARL)(case.options, parameters_of(case), NUM_ROWS)
    return (mutant or {"free": FreeLB, "rar": RAR}[case.kind])(case.options, parameters_of(case))


CASES = {
    "free": SupervisedCase(PassOptions()),
    "free-ball": SupervisedCase(PassOptions(epsilon=0.25, alpha=0.2)),
    "free-zero-start": SupervisedCase(PassOptions(sigma=0.0)),
    "free-one-pass": SupervisedCase(PassOptions(num_passes=1)),
    "free-no-dropout": SupervisedCase(PassOptions(num_passes=2), has_dropout=False),
    "free-moving": SupervisedCase(PassOptions(), learning_rate=0.1, batches=BATCHES[:3]),
    **{
        f"carl-{estimator}-{name}": SupervisedCase(
            CarlOptions(estimator=estimator, **options), **{"has_dropout": True, **settings}
        )
        for estimator in ("nce", "softmax")
        for name, options, settings in (
            ("plain", {}, {}),
            ("per-row", {}, {"negatives": "per_row"}),
            ("raw", {"normalize": False, "temperature": 0.5}, {}),
            ("slow", {"momentum": 0.8, "temperature": 0.3}, {}),
            ("one-pass", {"num_passes": 1}, {}),
            ("no-dropout", {}, {"has_dropout": False}),
            ("many", {"num_negatives": 40}, {}),
            ("moving", {"temperature": 0.3}, {"learning_rate": 0.05}),
        )
    },
    "rar": SupervisedCase(RarOptions()),
    "rar-heavy": SupervisedCase(RarOptions(weight_reconstruction=2.0)),
    "rar-one-pass": SupervisedCase(RarOptions(num_passes=1)),
    "rar-no-dropout": SupervisedCase(RarOptions(), has_dropout=False),
    "rar-moving": SupervisedCase(RarOptions(weight_reconstruction=1.0), learning_rate=0.02, batches=BATCHES[:3]),
}


@dataclass(frozen=True)
class Outcome:
    """Of one step: numbers by name."""

    values: dict
    slope: float
    """of the loss, along a random direction of all parameters"""
    slope_scale: float = 0.0
    """sum of the magnitudes that the slope is the sum of, where it is one"""


def outcome(side, case, batch, draws):
    """One step of the transcription; parameters move where the case says so."""
    loss, deltas = side.step(batch, draws)
    values = {"loss": loss, **{f"delta {t}": np.concatenate(d) for t, d in enumerate(deltas, start=1)}}
    if case.kind == "carl":
        values.update(banks=side.banks.copy(), written=side.written.copy())
        values["z"] = np.array([np.nan if z is None else z for z in side.z])
    loss_of = loss_after_step(side, batch, deltas, draws)
    slope = parameter_slope(loss_of, side.parameters, random_moves(side.parameters))
    if case.learning_rate:
        gradient = parameter_gradient(loss_of, side.parameters)
        values.update({f"gradient of {name}": g for name, g in gradient.items()})
        side.parameters = {name: v - case.learning_rate * gradient[name] for name, v in side.parameters.items()}
    return Outcome(values, slope)


def loss_after_step(side, batch, deltas, draws):
    """The loss of a step by the parameters. The banks it read are those of before, which the step has written over."""
    before = getattr(side, "banks_before", None)

    def loss_of(parameters):
        if before is None:
            return side.loss(batch, deltas, draws, parameters)
        after, side.banks = side.banks, before
        try:
            return side.loss(batch, deltas, draws, parameters)
        finally:
            side.banks = after

    return loss_of


def random_negatives(side, batch, mode, seed):
    """Rows of other classes that were written, a list an example, as METHODS.md has them drawn."""
    rng, of_class, found = np.random.default_rng(seed), {}, []
    for example in batch:
        others = [r for r in range(NUM_ROWS) if side.written[r] and LABELS[r] != example.label]
        if mode == "per_row" or example.label not in of_class:
            drawn = list(rng.choice(others, size=side.options.num_negatives)) if others else None
            of_class[example.label] = drawn
        found.append(of_class[example.label])
    return found


def self_draws(case, number, batch, side):
    """Draws of step ``number`` (from 0), where no torch side makes them."""
    draws = random_draws(batch, seed=number, with_dropout=case.has_dropout)
    if case.kind != "carl" or number < NUM_FILLING:
        return draws
    negatives = random_negatives(side, batch, case.negatives, seed=number)
    return Draws(draws.uniform, draws.clean, draws.passes, negatives)


def relative_gap(ours, theirs, scale=0.0):
    """The largest gap over the largest entry or ``scale``; infinite for numbers that cannot be compared."""
    ours, theirs = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if ours.shape != theirs.shape or (np.isnan(ours) != np.isnan(theirs)).any():
        return np.inf
    ours, theirs = np.nan_to_num(ours), np.nan_to_num(theirs)
    gap = np.abs(ours - theirs).max(initial=0.0)
    return 0.0 if gap == 0 else gap / max(np.abs(ours).max(initial=0.0), scale, 1e-12)


def gaps(ours, theirs):
    """Relative gaps by name of two outcomes of one step."""
    found = {name: relative_gap(value, theirs.values[name]) for name, value in ours.values.items()}
    found["slope"] = relative_gap(ours.slope, theirs.slope, theirs.slope_scale)
    return found
