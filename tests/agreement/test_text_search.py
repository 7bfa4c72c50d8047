"""The search over texts against a numpy transcription of METHODS.md 8: what is chosen, the loss, its gradient."""

import random
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from tests.oracle.comparison import FAR_ABOVE_ROUNDING, RELATIVE_TOLERANCE, random_moves
from tests.oracle.mutants import planting
from tests.oracle.sentences.cases import framed
from tests.oracle.sentences.text_search import TextOptions, TextSearch
from tests.oracle.sentences.text_search_torch import run_step
from tests.oracle.toy_encoder import make_parameters
from tests.oracle.transcription import parameter_slope

CASES = {
    "instead": TextOptions(),
    "instead-random": TextOptions(choose="random"),
    "beside": TextOptions(text_positive="beside"),
    "beside-mean-anchor": TextOptions(text_positive="beside", multi_positive="mean", weight_text=0.5),
    "anchor": TextOptions(text_positive="none", weight_text=0.7, temperature=0.3),
    "flip": TextOptions(weight_flip=0.8, flip_margin=0.05, temperature=0.5),
    "flip-alone": TextOptions(text_positive="none", weight_flip=2.0, flip_margin=0.3, temperature=0.5),
    "keep": TextOptions(weight_keep=0.6, temperature=0.5),
}
ORIGINAL = make_parameters(seed=1)
"""The encoder before training."""


def drawn(seed, num_rows=5, num_proposals=4):
    """A batch whose last row is a copy of the first, and proposals, some missing and two of them equal."""
    draw = random.Random(seed)

    def words():
        return [draw.randrange(2, 12) for _ in range(draw.randrange(1, 5))]

    batch = [framed(words(), 10 + i) for i in range(num_rows - 1)]
    batch.append(batch[0])
    sides = {}
    for side in ("text", "flip"):
        rows = []
        for row in range(num_rows):
            texts = [framed(words(), 100 + k) if draw.random() < 0.8 else None for k in range(num_proposals)]
            # Equal texts are equally bad but for rounding, which differs by place in a batch: either may be taken.
            texts[-1] = texts[0]
            rows.append([None] * num_proposals if row == 1 else texts)
        sides[side] = rows
    return batch, sides


@lru_cache(maxsize=None)
def torch_step(name, has_dropout, seed):
    batch, sides = drawn(seed)
    return run_step(CASES[name], make_parameters(), batch, sides, has_dropout, seed, ORIGINAL)


def largest_gap(name, has_dropout, seed, step=None, kind=TextSearch):
    """The largest relative difference between both sides; infinite where they choose differently."""
    options, (batch, sides), parameters = CASES[name], drawn(seed), make_parameters()
    step = torch_step(name, has_dropout, seed) if step is None else step
    ours = kind(options, parameters, ORIGINAL)
    numbers = ours.search(batch, sides["text"], sides["flip"], step.masks)
    for side, chosen in zip(("text", "flip"), numbers, strict=True):
        if side not in step.texts:
            continue
        if [s.identity for s in ours.texts(batch, sides[side], chosen)] != step.texts[side]:
            return np.inf
        if [k is not None for k in chosen] != step.is_present[side]:
            return np.inf

    def loss_of(values):
        return ours.loss(batch, sides["text"], sides["flip"], numbers, step.masks, values)

    loss, gaps = loss_of(parameters), []
    gaps.append(abs(loss - step.loss) / max(abs(loss), 1e-3))
    for move in range(2):
        moves = random_moves(parameters, move)
        slope = parameter_slope(loss_of, parameters, moves)
        parts = np.concatenate([(step.grads[name] * moves[name]).ravel() for name in step.grads])
        gaps.append(abs(slope - parts.sum()) / np.abs(parts).sum())
    return max(gaps)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("has_dropout", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_with_transcription(name, has_dropout, seed):
    assert largest_gap(name, has_dropout, seed) <= RELATIVE_TOLERANCE


def test_the_choice_is_one():
    """Some rows take another proposal than the first, by both searches: else a wrong choice would show nowhere."""
    taken = set()
    for seed in range(6):
        batch, sides = drawn(seed)
        step = torch_step("flip", False, seed)
        ours = TextSearch(CASES["flip"], make_parameters())
        for side, numbers in enumerate(ours.search(batch, sides["text"], sides["flip"], step.masks)):
            taken |= {(side, number) for number in numbers}
    assert {(side, number) for side in (0, 1) for number in (None, 0, 1, 2)} <= taken


@pytest.mark.parametrize("name", [name for name, options in CASES.items() if options.choose == "worst"])
def test_no_gradient_goes_through_the_choice(name):
    """A step on the chosen texts alone, K = 1, has the same loss and the same gradients, bit for bit."""
    for seed in range(3):
        batch, sides = drawn(seed)
        step = torch_step(name, True, seed)
        ours = TextSearch(CASES[name], make_parameters())
        numbers = ours.search(batch, sides["text"], sides["flip"], step.masks)
        alone = {
            side: [[None if k is None else texts[k]] for texts, k in zip(sides[side], of_side, strict=True)]
            for side, of_side in zip(("text", "flip"), numbers, strict=True)
        }
        again = run_step(replace(CASES[name]), make_parameters(), batch, alone, True, seed, ORIGINAL)
        assert again.loss == step.loss
        assert all(np.array_equal(again.grads[key], step.grads[key]) for key in step.grads)


@planting.parametrized("text_search")
def test_mutant_of_the_transcription_is_seen(mutant, name):
    kind = planting.transcribed(mutant, TextSearch)
    assert (
        max(largest_gap(name, dropout, seed, kind=kind) for dropout in (0, 1) for seed in range(6)) > FAR_ABOVE_ROUNDING
    )


@planting.parametrized("torch_text_search")
def test_mutant_of_the_torch_code_is_seen(mutant, name):
    gaps = []
    for seed in range(6):
        batch, sides = drawn(seed)
        with planting.in_torch(mutant):
            try:
                step = run_step(CASES[name], make_parameters(), batch, sides, True, seed, ORIGINAL)
            except AssertionError:
                # A pass too many with a graph, or with a mask.
                return
        gaps.append(largest_gap(name, True, seed, step))
    assert max(gaps) > FAR_ABOVE_ROUNDING
