"""TaiChi as `Step` runs it in float64, against its numpy transcription, which shares nothing with it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fastadv.objectives.needs import Needs
from fastadv.objectives.texts.taichi import TaiChi, kl_divergence
from tests.oracle.comparison import FAR_ABOVE_ROUNDING, RELATIVE_TOLERANCE, random_moves
from tests.oracle.mutants import planting
from tests.oracle.texts import taichi
from tests.oracle.texts.taichi import ADVERSARIAL, CLEAN, TERMS, TaiChiOptions, make_parameters
from tests.oracle.texts.taichi_cases import BATCHES, CASES, Case
from tests.oracle.texts.taichi_torch import TaiChiRun, batch_of, torch_steps
from tests.oracle.transcription import parameter_gradient, parameter_slope

NAMES = {
    "ce_clean": "loss_clean",
    "ctr_clean": "loss_contrast_clean",
    "ce_adversarial": "loss_adversarial",
    "ctr_adversarial": "loss_contrast_adversarial",
    "kl_clean": "loss_kl_clean",
    "kl_adversarial": "loss_kl_adversarial",
    "kl_self": "loss_kl",
}


def gap(ours, theirs, scale=None):
    """Of the largest entry."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return np.abs(ours - theirs).max() / max(np.abs(ours).max() if scale is None else scale, 1e-4)


def gaps(name, kind=taichi.TaiChi, seed=0):
    """Relative gaps of loss, terms and slope along one move of all parameters, by batch and name."""
    case, found = CASES[name], {}
    side = kind(case.options, make_parameters())
    moves = random_moves(side.parameters)
    for batch, step in torch_steps(case, seed).items():
        rows = BATCHES[batch]
        masks = step.masks if case.has_dropout else None
        found[batch, "loss"] = gap(side.loss(rows, masks), step.loss)
        for term, value in side.terms(rows, masks).items():
            found[batch, term] = gap(value, step.terms[NAMES[term]])
        slope = parameter_slope(lambda p, r=rows, m=masks: side.loss(r, m, p), side.parameters, moves)
        parts = np.concatenate([(grad * moves[n]).ravel() for n, grad in step.gradients.items()])
        found[batch, "slope"] = gap(slope, parts.sum(), np.abs(parts).sum())
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_with_the_transcription(name, seed):
    assert {what: size for what, size in gaps(name, seed=seed).items() if size > RELATIVE_TOLERANCE} == {}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_by_every_parameter_of_both_networks_agrees(name):
    case, rows = CASES[name], BATCHES["mixed"]
    step = torch_steps(case)["mixed"]
    side = taichi.TaiChi(case.options, make_parameters())
    masks = step.masks if case.has_dropout else None
    expected = parameter_gradient(lambda p: side.loss(rows, masks, p), side.parameters)
    largest = max(np.abs(grad).max() for grad in expected.values())
    for parameter, grad in expected.items():
        assert gap(grad, step.gradients[parameter], largest) <= RELATIVE_TOLERANCE, parameter
    networks = {parameter.split(".")[0] for parameter, grad in step.gradients.items() if np.abs(grad).max() > 1e-3}
    one = {"no_adv": {CLEAN}, "clean": {CLEAN}, "adversarial": {ADVERSARIAL}}
    assert networks == one.get(case.options.ablation, {CLEAN, ADVERSARIAL})


@planting.parametrized("taichi")
def test_mutant_of_the_transcription_is_seen(mutant, name):
    assert max(gaps(name, planting.transcribed(mutant, taichi.TaiChi)).values()) > FAR_ABOVE_ROUNDING


@pytest.mark.parametrize("name", CASES)
def test_every_term_is_logged_and_counts_once(name):
    case = CASES[name]
    for step in torch_steps(case).values():
        assert set(step.terms) == {NAMES[term] for term in TERMS[case.options.ablation]}
        assert step.loss == pytest.approx(sum(step.terms.values()), rel=1e-14)


@pytest.mark.parametrize("name", ["no-dropout", "distance", "no_adv"])
def test_pieces_are_the_whole_batch(name):
    case = Case(CASES[name].options, has_dropout=False)
    whole, pieces = (TaiChiRun(case, micro_batch_size=size).step(BATCHES["mixed"]) for size in (None, 2))
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-13)
    for name, grad in whole.gradients.items():
        np.testing.assert_allclose(pieces.gradients[name], grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("similarity", ["cosine", "neg_l2"])
@pytest.mark.parametrize("batch", BATCHES)
def test_small_batches_have_finite_losses_and_gradients(batch, similarity):
    """One row, no pair at all, one pair, and an attack that changed nothing: there x' lies on x."""
    run = TaiChiRun(Case(TaiChiOptions(similarity=similarity), has_dropout=False))
    step = run.step(BATCHES[batch])
    assert np.isfinite(step.loss)
    assert all(np.isfinite(grad).all() for grad in step.gradients.values())
    assert (np.abs(step.gradients["adversarial.out_weight"]).max() > 0) == (batch != "unpaired")


def test_float32_distances_of_near_vectors_keep_their_digits():
    """Vectors a millionth of their length apart, as an attack of one letter leaves them."""
    torch.manual_seed(0)
    anchors = 30 * torch.randn(3, 64)
    keys = anchors + 3e-5 * torch.randn(3, 64)
    objective = TaiChi(64, nn.Linear(64, 5), similarity="neg_l2")
    expected = -(anchors.double()[:, None] - keys.double()[None]).norm(dim=-1)
    torch.testing.assert_close(objective._scores(anchors, keys).double(), expected, rtol=1e-5, atol=0)


def test_divergence_is_that_of_torch_distributions():
    """Also of logits so far apart that a probability is 0 in float32."""
    torch.manual_seed(0)
    p, q = torch.randn(2, 6, 5, dtype=torch.float64).unbind()
    p[0, 0] = 300.0
    distributions = (torch.distributions.Categorical(logits=logits) for logits in (p, q))
    expected = torch.distributions.kl_divergence(*distributions)
    torch.testing.assert_close(kl_divergence(p, q), expected)
    found = kl_divergence(p.float(), q.float())
    assert found.isfinite().all() and kl_divergence(p.bfloat16(), q.bfloat16()).dtype == torch.float32


def test_views_of_half_precision_give_a_float32_contrast():
    torch.manual_seed(0)
    vectors = torch.randn(2, 4, 8, dtype=torch.bfloat16).unbind()
    objective = TaiChi(8, nn.Linear(8, 5))
    assert objective._scores(*vectors).dtype == torch.float32


@pytest.mark.parametrize("ablation", TERMS)
def test_a_second_network_where_the_loss_has_one(ablation):
    objective = TaiChi(4, nn.Linear(4, 5), ablation=ablation)
    assert objective.needs.second_network == (ablation in ("none", "no_kl", "no_ctr"))
    assert replace(objective.needs, second_network=False) == Needs(labels=True, variants=("adversarial",))


def test_the_order_of_rows_has_no_say():
    case = Case(TaiChiOptions(temperature=0.3), has_dropout=False)
    losses = [TaiChiRun(case).step(rows).loss for rows in (BATCHES["mixed"], BATCHES["mixed"][::-1])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-14)


def test_a_text_that_stands_for_a_missing_one_has_no_say():
    """Whatever it is; and the sentence it stands for is nobody's key."""
    case, rows = Case(TaiChiOptions(), has_dropout=False), BATCHES["mixed"]
    run, losses = TaiChiRun(case), []
    for stand_in in (rows[0].text, rows[1].text):
        batch = batch_of([rows[0].__class__(row.text, row.attacked or stand_in, row.label) for row in rows])
        is_present = torch.tensor([row.attacked is not None for row in rows])
        object.__setattr__(batch.variants["adversarial"], "is_present", is_present)
        losses.append(run.module(batch).item())
    assert losses[0] == losses[1]
