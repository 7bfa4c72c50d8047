"""The first inner gradient out of the clean pass's own graph, where the search starts at X itself."""

import pytest
import torch

from tests.engine.step.watching import assert_same_gradients, encodes_of

ONE_STEP = [{"method": "fgm", "epsilon_relative": 0.1}, {"method": "fgsm", "epsilon_relative": 0.1}]
FROM_ZERO = [
    *ONE_STEP,
    {"sigma": 0.0, "use_eta": False, "inner_dropout": "frozen", "num_steps": 3},
    {"sigma": 0.0, "use_eta": False, "inner_dropout": "frozen", "gradient": "separate", "norm": "l2"},
    {"method": "fgm", "epsilon_relative": 0.1, "perturb_special_tokens": False},
]


def run(make_step, sentences, is_shared=True, seed=5, **options):
    """One forward and backward; ``is_shared`` False takes every gradient by a pass of its own."""
    recorded = make_step("uscal", **options)
    search = recorded.step.search.adversary.search
    offered = []

    def watched(x, batch, loss, eta, at_clean, *rest):
        offered.append(at_clean is not None)
        return search(x, batch, loss, eta, at_clean if is_shared else None, *rest)

    recorded.step.search.adversary.search = watched
    calls = encodes_of(recorded.step)
    torch.manual_seed(seed)
    loss, grads = recorded.run(recorded.step.encoder.pack(sentences))
    return recorded.found[0], loss, grads, len(calls), offered == [True]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("options", FROM_ZERO, ids=str)
def test_equals_a_pass_of_its_own_and_encodes_once_less(make_step, sentences, options, dropout):
    found, loss, grads, num_encodes, is_offered = run(make_step, sentences, dropout=dropout, **options)
    own, own_loss, own_grads, num_own, _ = run(make_step, sentences, is_shared=False, dropout=dropout, **options)
    # Separate gradients at one point are one gradient.
    num_spared = 2 if options.get("gradient") == "separate" else 1
    assert is_offered and num_encodes == num_own - num_spared
    assert own.delta.any()
    assert (found.delta - own.delta).abs().max() <= 1e-12 * own.delta.abs().max()
    torch.testing.assert_close(found.gain, own.gain, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(loss, own_loss, rtol=1e-12, atol=0)
    assert_same_gradients(grads, own_grads)


@pytest.mark.parametrize(
    "options",
    [
        {"objective_options": {"head": "bn_mlp"}},
        {"pooling": "first_last"},
        {"pooling": "mean", "path": "generic"},
        {"perturb_at": "word"},
    ],
    ids=str,
)
@pytest.mark.parametrize("attack", ONE_STEP, ids=str)
def test_equals_a_pass_of_its_own_by_every_route(make_step, sentences, attack, options):
    found, _, _, num_encodes, _ = run(make_step, sentences, dropout=0.2, **attack, **options)
    own, _, _, num_own, _ = run(make_step, sentences, is_shared=False, dropout=0.2, **attack, **options)
    assert num_encodes == num_own - 1
    assert (found.delta - own.delta).abs().max() <= 1e-12 * own.delta.abs().max()


@pytest.mark.parametrize("attack", ONE_STEP, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_equals_the_reference_that_does_everything_anew(make_step, sentences, attack, dropout):
    found, loss, grads, num_encodes, _ = run(make_step, sentences, dropout=dropout, **attack)
    none, none_loss, none_grads, num_none, _ = run(make_step, sentences, dropout=dropout, reuse="none", **attack)
    # z, z+, z_adv; the reference also the keys and the attacked point.
    assert (num_encodes, num_none) == (3, 5)
    assert (found.delta - none.delta).abs().max() <= 1e-12 * none.delta.abs().max()
    torch.testing.assert_close(loss, none_loss, rtol=1e-12, atol=0)
    assert_same_gradients(grads, none_grads)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fgm", "epsilon_relative": 0.1, "inner_dropout": "off"},
        {"sigma": 0.1, "use_eta": False, "inner_dropout": "frozen"},
        {"sigma": 0.0, "use_eta": True, "inner_dropout": "frozen"},
        {"method": "fgm", "epsilon_relative": 0.1, "reuse": "none"},
    ],
    ids=str,
)
def test_is_not_taken_where_the_point_or_the_masks_differ(make_step, sentences, options):
    *_, num_encodes, _ = run(make_step, sentences, dropout=0.2, **options)
    *_, num_own, _ = run(make_step, sentences, is_shared=False, dropout=0.2, **options)
    assert num_encodes == num_own


def test_no_dropout_to_switch_off_is_as_good_as_frozen(make_step, sentences):
    options = {"method": "fgm", "epsilon_relative": 0.1, "inner_dropout": "off"}
    *_, num_encodes, is_offered = run(make_step, sentences, dropout=0.0, **options)
    assert is_offered and num_encodes == 3


def test_no_gradient_of_a_parameter_is_computed(make_step, sentences):
    recorded = make_step("uscal", method="fgm", epsilon_relative=0.1)
    fired = []
    for name, parameter in recorded.step.named_parameters():
        parameter.register_hook(lambda grad, name=name: fired.append(name))
    loss = recorded.step(recorded.step.encoder.pack(sentences))
    assert fired == [] and all(p.grad is None for p in recorded.step.parameters())
    loss.backward()
    assert fired


def test_frozen_embeddings_take_a_pass_of_their_own(make_step, sentences):
    recorded = make_step("uscal", method="fgm", epsilon_relative=0.1)
    recorded.step.encoder.hf.embeddings.requires_grad_(False)
    recorded.step(recorded.step.encoder.pack(sentences)).backward()
    assert recorded.found[0].delta.any()
