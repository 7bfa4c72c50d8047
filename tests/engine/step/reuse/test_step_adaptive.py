"""``reuse: adaptive`` in a step: what is encoded, what is logged, what is saved."""

import pytest
import torch

from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.views import keys_of
from fastadv.objectives.base import Views
from tests.engine.step.watching import encodes_of

WIDE = {"epsilon_relative": 0.3, "alpha": 0.5, "beta": 0.4, "gamma": 0.7}
# Steps so small that the tiny encoder's gradients hardly turn.
NARROW = {"epsilon_relative": 0.3, "alpha": 0.01, "beta": 0.01, "gamma": 0.01, "sigma": 0.0}


def run(recorded, batch):
    """(views encoded, metrics) of one step and its commit."""
    encode, calls = recorded.step.encoder.encode, encodes_of(recorded.step)
    recorded.run(batch)
    recorded.step.encoder.encode = encode
    recorded.step.commit()
    return len(calls), dict(recorded.step.metrics)


def test_probes_first_and_then_takes_as_few_as_agree(make_step, sentences):
    recorded = make_step(reuse="adaptive", probe_every=3, agreement=0.8, **NARROW)
    batch = recorded.step.encoder.pack(sentences)
    calls = [run(recorded, batch) for _ in range(5)]
    # z, z+, z_adv; N gradients in a probe and the loss where 1 to N of them lead; else one gradient.
    assert [count for count, _ in calls] == [3 + 5 + 5, 4, 4, 3 + 5 + 5, 4]
    assert [metrics["num_gradients"] for _, metrics in calls] == [5, 1, 1, 5, 1]
    assert ["reuse_gain_share" in metrics for _, metrics in calls] == [True, False, False, True, False]
    assert all(metrics["reuse_num_gradients"] == 1 for _, metrics in calls[::3])


def test_the_probe_itself_trains_on_the_exact_perturbation(make_step, sentences):
    grads = {}
    for reuse in ("exact", "adaptive"):
        recorded = make_step(reuse=reuse, sigma=0.1, **WIDE)
        torch.manual_seed(4)
        grads[reuse] = recorded.run(recorded.step.encoder.pack(sentences))
    assert torch.equal(grads["exact"][0], grads["adaptive"][0])
    for name, grad in grads["exact"][1].items():
        assert torch.equal(grads["adaptive"][1][name], grad), name


@pytest.mark.parametrize("gradient", ["shared", "separate"])
def test_the_share_of_the_gain_is_that_of_both_searches(make_step, sentences, gradient):
    """Against two searches of their own, and the loss at their ends."""
    options = {"sigma": 0.0, "gradient": gradient, "use_eta": False, "agreement": 0.3, **WIDE}
    recorded = make_step(reuse="adaptive", **options)
    batch = recorded.step.encoder.pack(sentences)
    recorded.run(batch)
    share, num_gradients = recorded.step.metrics["reuse_gain_share"], recorded.step.metrics["reuse_num_gradients"]
    assert num_gradients < 5
    step = make_step(**options).step
    encoder, objective = step.encoder, step.objective
    with torch.no_grad():
        x = encoder.embed(batch)
        step.whole = GlobalBatch(batch)
        keys = keys_of(step.objective, step.whole, batch, step.encoder(batch), None)

        def loss_at(points):
            query = objective.project(encoder.encode(points, batch))
            return objective.inner_loss(Views(query, batch.sentence_ids, keys))

        start = loss_at(x)
        gains = []
        for count in (int(num_gradients), 5):
            found = step.search.adversary.search(x, batch, loss_at, num_gradients=count)
            gains.append(loss_at(x + found.delta) - start)
    assert share == pytest.approx(float(gains[0] / gains[1]), rel=1e-9)
    assert 0 < share < 1


def test_a_skipped_batch_teaches_nothing(make_step, sentences):
    recorded = make_step(reuse="adaptive", on_nonfinite="skip", agreement=0.3, **WIDE)
    batch = recorded.step.encoder.pack(sentences)
    inner_loss = recorded.step.objective.inner_loss
    recorded.step.objective.inner_loss = lambda *arguments: inner_loss(*arguments) * torch.nan
    recorded.step(batch)
    assert recorded.step.is_skipped and "reuse_gain_share" not in recorded.step.metrics
    recorded.step.discard()
    recorded.step.objective.inner_loss = inner_loss
    assert run(recorded, batch)[0] == 3 + 5 + 5


def test_what_was_learned_is_saved_and_restored(make_step, sentences):
    first = make_step(reuse="adaptive", probe_every=4, agreement=0.8, **NARROW)
    batch = first.step.encoder.pack(sentences)
    run(first, batch)
    again = make_step(reuse="adaptive", probe_every=4, agreement=0.8, **NARROW)
    again.step.load_extra_state_dict(first.step.extra_state_dict())
    assert [run(again, batch)[0] for _ in range(4)] == [4, 4, 4, 3 + 5 + 5]


def test_no_inner_steps_no_reuse(make_step, sentences):
    recorded = make_step(reuse="adaptive", num_steps=0)
    assert recorded.step.search.adaptive is None
    recorded.run(recorded.step.encoder.pack(sentences))
