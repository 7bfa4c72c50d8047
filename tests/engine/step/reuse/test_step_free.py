"""``reuse: free``: the passes of the search are the passes of the training."""

from contextlib import nullcontext

import pytest
import torch

from fastadv.engine.step.dropout_replay import DropoutReplay
from fastadv.engine.step.views import keys_of
from fastadv.objectives.base import Views
from fastadv.perturbation.search import perturbed
from tests.engine.step.watching import assert_same_gradients, shifts_of

WIDE = {"epsilon_relative": 0.3, "alpha": 0.5, "beta": 0.4, "gamma": 0.7}
OBJECTIVES = [
    ("robustsentembed", {"weight_adversarial": 0.5}),
    ("robustsentembed", {"head": "bn_mlp", "multi_positive": "separate"}),
    ("uscal", {}),
]


def mean_of_separate_steps(step, batch, shifts, seed):
    """Each pass as a whole step of its own with a given shift: loss and gradients averaged here."""
    step.zero_grad(set_to_none=True)
    losses = []
    for shift in shifts:
        torch.manual_seed(seed)
        x = step.encoder.embed(batch)
        query = step.objective.project(step.encoder.encode(x, batch))
        keys = keys_of(step.objective, step.whole, batch, step.encoder(batch), None)
        adversarial = step.objective.project(step.encoder.encode(perturbed(x, shift), batch))
        views = Views(
            query, batch.sentence_ids, keys, adversarial, step.whole.gather_keys(adversarial, batch.sentence_ids)
        )
        loss, _ = step.objective.loss(views)
        (loss / len(shifts)).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean(), {n: p.grad for n, p in step.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("objective, options", OBJECTIVES, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("use_eta", [True, False])
def test_gradients_are_the_mean_of_separate_steps(make_step, sentences, objective, options, dropout, use_eta):
    """One dropout mask serves all passes, so every separate step is made from the same seed."""
    # sigma 0 in all: the start draws nothing, so that the generator stands where the separate steps' does.
    recorded = make_step(
        objective, options, dropout=dropout, reuse="free", num_steps=3, use_eta=use_eta, sigma=0.0, **WIDE
    )
    batch = recorded.step.encoder.pack(sentences)
    shifts = shifts_of(recorded.step)
    torch.manual_seed(7)
    loss, grads = recorded.run(batch)
    assert len(shifts) == 3 and not shifts[0].any() and not torch.equal(shifts[1], shifts[2])
    expected, expected_grads = mean_of_separate_steps(recorded.step, batch, list(shifts), 7)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_same_gradients(grads, expected_grads)


def test_moves_after_every_pass_but_the_last(make_step, sentences):
    """Along the gradient of the loss that trains: one PGD step by hand."""
    options = {"sigma": 0.0, "use_eta": False, "rho": 1.0, "norm": "l2", "epsilon": None, "alpha": 0.1}
    recorded = make_step(reuse="free", num_steps=2, **options)
    batch = recorded.step.encoder.pack(sentences)
    shifts = shifts_of(recorded.step)
    recorded.run(batch)
    step = recorded.step
    x = step.encoder.embed(batch).detach().requires_grad_()
    with torch.no_grad():
        query = step.objective.project(step.encoder.encode(x, batch))
        keys = keys_of(step.objective, step.whole, batch, step.encoder(batch), None)
    adversarial = step.objective.project(step.encoder.encode(x, batch))
    adversarial_keys = step.whole.gather_keys(adversarial, batch.sentence_ids)
    loss, _ = step.objective.loss(Views(query, batch.sentence_ids, keys, adversarial, adversarial_keys))
    (grad,) = torch.autograd.grad(loss, x)
    for b, rows in enumerate(grad.split(batch.lengths.tolist())):
        moved = shifts[1][batch.token_sentence == b]
        assert (moved - 0.1 * rows / rows.norm()).abs().max() <= 1e-12


@pytest.mark.parametrize("num_steps", [1, 4])
def test_encodes_clean_views_once_and_every_pass_once(make_step, sentences, num_steps):
    recorded = make_step(reuse="free", num_steps=num_steps)
    encode, embedder, calls = recorded.step.encoder.encode, recorded.step.encoder.embedder, []
    recorded.step.encoder.encode = lambda *a, **k: calls.append("encode") or encode(*a, **k)
    recorded.step.encoder.embedder = lambda *a, **k: calls.append("embedder") or embedder(*a, **k)
    loss, _ = recorded.run(recorded.step.encoder.pack(sentences))
    assert calls.count("embedder") == 1 and calls.count("encode") == 2 + num_steps
    assert recorded.step.metrics["loss"] == loss


def test_no_gradient_before_the_backward_and_each_hook_once(make_step, sentences):
    """Engines that reduce gradients hang on the parameters' hooks."""
    recorded = make_step(reuse="free", num_steps=3)
    fired = []
    for name, parameter in recorded.step.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: fired.append(name))
    loss = recorded.step(recorded.step.encoder.pack(sentences))
    assert fired == [] and all(p.grad is None for p in recorded.step.parameters())
    loss.backward()
    assert sorted(fired) == sorted({n for n, p in recorded.step.named_parameters() if p.grad is not None})


def test_token_detection_stands_beside_the_passes(make_step, sentences):
    """Its gradients add to those of the passes, with its weight."""
    rtd = {"rtd_generator": "unigram", "weight_rtd": 0.5}
    with_rtd = make_step(objective_options=rtd, reuse="free", num_steps=2, use_eta=True, **WIDE)
    batch = with_rtd.step.encoder.pack(sentences)
    torch.manual_seed(3)
    loss, grads = with_rtd.run(batch)
    without = make_step(reuse="free", num_steps=2, **WIDE)
    without.step.encoder.load_state_dict(with_rtd.step.encoder.state_dict())
    without.step.objective.load_state_dict(with_rtd.step.objective.state_dict())
    without.step.load_extra_state_dict(with_rtd.step.extra_state_dict())
    torch.manual_seed(3)
    plain, plain_grads = without.run(batch)
    loss_rtd = with_rtd.step.metrics["loss_rtd"]
    torch.testing.assert_close(loss, plain + 0.5 * loss_rtd, rtol=1e-12, atol=0)
    assert any(name.startswith("detection.") and grad.any() for name, grad in grads.items())
    name = "encoder.hf.embeddings.LayerNorm.weight"
    assert not torch.equal(grads[name], plain_grads[name])


def test_backward_scales_what_it_delivers(make_step, sentences):
    """Accumulation divides the loss before the backward."""
    found = {}
    for scale in (1.0, 0.25):
        recorded = make_step(reuse="free", num_steps=2, sigma=0.0, **WIDE)
        loss = recorded.step(recorded.step.encoder.pack(sentences))
        (loss * scale).backward()
        found[scale] = {n: p.grad for n, p in recorded.step.named_parameters() if p.grad is not None}
    for name, grad in found[1.0].items():
        assert (found[0.25][name] - 0.25 * grad).abs().max() <= 1e-15 + 1e-14 * grad.abs().max()


def test_masks_are_one_for_all_passes_and_not_those_of_z(make_step, sentences):
    recorded = make_step(reuse="free", num_steps=2, dropout=0.3, epsilon=0.0)
    batch = recorded.step.encoder.pack(sentences)
    project, seen = recorded.step.objective.project, []
    recorded.step.objective.project = lambda *a, **k: seen.append(project(*a, **k)) or seen[-1]
    recorded.run(batch)
    z, z_plus, first, second = seen
    # Without a perturbation the passes differ by their masks alone.
    assert torch.equal(first, second) and not torch.equal(first, z) and not torch.equal(first, z_plus)


def test_a_fault_is_found(make_step, sentences):
    recorded = make_step(reuse="free", num_steps=2, on_nonfinite="skip")
    loss_of = recorded.step.objective.loss

    def broken(views):
        loss, terms = loss_of(views)
        return loss + (views.adversarial[1] * torch.nan).sum(), terms

    recorded.step.objective.loss = broken
    recorded.step(recorded.step.encoder.pack(sentences))
    assert recorded.step.is_skipped and recorded.found == []


@pytest.mark.parametrize("is_replayed", [True, False])
def test_the_generator_goes_on_as_after_one_pass(is_replayed):
    masks = DropoutReplay(torch.device("cpu"))
    first = torch.rand(3)
    after = torch.get_rng_state()
    with masks.again() if is_replayed else nullcontext():
        again = torch.rand(3)
    assert torch.equal(first, again) == is_replayed
    assert torch.equal(torch.get_rng_state(), after) == is_replayed
