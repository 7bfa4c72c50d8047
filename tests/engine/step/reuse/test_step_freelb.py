"""FreeLB on cross-entropy: a step has the mean of the gradients of n separate ones, at every ZeRO stage."""

import pytest
import torch
from deepspeed.utils import safe_get_full_grad

from fastadv.distributed import processes, zero
from fastadv.perturbation.search import perturbed
from tests.engine.step.watching import assert_same_gradients, shifts_of
from tests.ranks.cases.steps import everything_cut, make_config

LABELS = [3, 0, 4, 1, 2, 2, 0]
NUM_PASSES = 3
FREELB = {"method": "freelb", "num_steps": NUM_PASSES, "sigma": 0.6, "epsilon": None, "alpha": 0.3}


@pytest.fixture
def make_freelb(make_step):
    """A step, and its batch."""

    def make(sentences, weight_clean=0.0, dropout=0.2, dtype=torch.float64, **changes):
        options = {"weight_clean": weight_clean}
        recorded = make_step("adversarial_training", options, dropout=dropout, dtype=dtype, **{**FREELB, **changes})
        return recorded.step, recorded.step.encoder.pack(sentences, LABELS)

    return make


def mean_of_separate_steps(step, batch, shifts, seed):
    """Loss and gradients of plain torch, a pass at a time, each under the same random numbers."""
    step.zero_grad(set_to_none=True)
    w, losses = step.objective.weight_clean, []
    for shift in shifts:
        torch.manual_seed(seed)
        x = step.encoder.embed(batch)
        clean = step.encoder.encode(x, batch) if w else None
        # What the start has drawn.
        torch.empty_like(x).uniform_(-1, 1)
        logits = step.objective.classifier(step.encoder.encode(perturbed(x, shift), batch))
        loss = (1 - w) * torch.nn.functional.cross_entropy(logits, batch.labels)
        if w:
            loss = loss + w * torch.nn.functional.cross_entropy(step.objective.classifier(clean), batch.labels)
        (loss / len(shifts)).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean(), {n: p.grad.clone() for n, p in step.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("weight_clean", [0.0, 0.3])
def test_gradients_are_the_mean_of_separate_steps(make_freelb, sentences, weight_clean, dropout):
    step, batch = make_freelb(sentences, weight_clean, dropout)
    shifts = shifts_of(step)
    torch.manual_seed(7)
    loss = step(batch)
    loss.backward()
    grads = {n: p.grad.clone() for n, p in step.named_parameters() if p.grad is not None}
    assert len(shifts) == NUM_PASSES and all(bool(shift.any()) for shift in shifts)
    expected, expected_grads = mean_of_separate_steps(step, batch, list(shifts), 7)
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-12, atol=0)
    assert_same_gradients(grads, expected_grads)


@pytest.mark.parametrize("num_steps", [1, NUM_PASSES])
@pytest.mark.parametrize("weight_clean", [0.0, 0.3])
def test_the_last_pass_may_keep_its_graph(make_freelb, sentences, weight_clean, num_steps):
    """As it does at stage 3: the same loss, delta and gradients."""
    found = []
    for is_kept in (False, True):
        step, batch = make_freelb(sentences, weight_clean, num_steps=num_steps)
        if is_kept:
            # As DeepSpeed marks a parameter that it has cut up.
            next(step.parameters()).ds_id = 0
        record, kept = step.search.record, []
        step.search.record = lambda found, batch, record=record, kept=kept: kept.append(found) or record(found, batch)
        torch.manual_seed(7)
        loss = step(batch)
        loss.backward()
        grads = {n: p.grad for n, p in step.named_parameters() if p.grad is not None}
        found.append((loss.detach(), kept[0].delta, grads))
    (loss, delta, grads), (other_loss, other_delta, other_grads) = found
    torch.testing.assert_close(loss, other_loss, rtol=1e-14, atol=0)
    assert torch.equal(delta, other_delta)
    assert_same_gradients(other_grads, grads)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_through_deepspeed_too(make_freelb, sentences, stage):
    """In float32, where a gradient is a sum of some hundred terms of 6e-8 each; two steps, so that stage 3 also
    prefetches."""
    processes.init_distributed()
    step, batch = make_freelb(sentences, 0.0, dtype=torch.float32)
    plain, _ = make_freelb(sentences, 0.0, dtype=torch.float32)
    shifts = shifts_of(step)
    with everything_cut():
        engine = zero.initialise(step, make_config(stage), 10)
    try:
        for seed in (7, 8):
            shifts.clear()
            plain.load_state_dict(zero.full_precision_weights(step))
            torch.manual_seed(seed)
            loss = engine(batch)
            engine.backward(loss)
            grads = {n: safe_get_full_grad(p).clone() for n, p in step.named_parameters()}
            expected, expected_grads = mean_of_separate_steps(plain, batch, list(shifts), seed)
            torch.testing.assert_close(loss.detach(), expected, rtol=1e-6, atol=0)
            largest = max(grad.norm() for grad in expected_grads.values())
            for name, grad in expected_grads.items():
                # A key's bias adds the same to all logits of a query: its gradient is rounding.
                norm = largest if "key.bias" in name else grad.norm()
                assert (grads[name] - grad).norm() <= 2e-6 * norm, name
            engine.step()
            step.commit()
    finally:
        zero.destroy(engine)
