"""`reuse: exact` computes what `reuse: none` computes, and does less for it."""

import pytest
import torch

from tests.engine.step.watching import assert_same_gradients

NORMS = ["linf", "l2", "l1"]


def both(make_step, sentences, **options):
    outcomes = []
    for reuse in ("none", "exact"):
        recorded = make_step(reuse=reuse, **options)
        batch = recorded.step.encoder.pack(sentences)
        torch.manual_seed(5)
        outcomes.append((recorded, *recorded.run(batch)))
    return outcomes


def assert_equal_outcomes(none, exact, tolerance=1e-12):
    """Perturbations and gradients equal to ``tolerance`` times their own largest magnitude."""
    ours, theirs = exact[0].found[0], none[0].found[0]
    parts = {"delta": (ours.delta, theirs.delta), **dict(zip(ours.state._fields, zip(ours.state, theirs.state)))}
    for name, (ours, theirs) in parts.items():
        if theirs is None:
            assert ours is None
            continue
        assert theirs.abs().max() > 0
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max(), name
    assert_same_gradients(exact[2], none[2], tolerance)
    torch.testing.assert_close(exact[1], none[1], rtol=tolerance, atol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sigma", [0.0, 0.1])
@pytest.mark.parametrize("gradient", ["shared", "separate"])
def test_exact_equals_none_in_float64(make_step, sentences, norm, sigma, gradient):
    assert_equal_outcomes(*both(make_step, sentences, norm=norm, sigma=sigma, gradient=gradient))


@pytest.mark.parametrize(
    "options",
    [
        {"use_eta": False},
        {"rho": 1.0},
        {"rho": 0.0, "num_fgsm_steps": 2},
        {"num_pgd_steps": 1, "num_fgsm_steps": 4},
        {"perturb_special_tokens": False},
        {"eta_scaling": "before", "epsilon": 0.3, "alpha": 0.1, "beta": 0.05, "gamma": 0.2},
        {"eta_scaling": "none", "norm": "l2"},
        {"pooling": "mean", "objective_options": {"head": "bn_mlp"}},
        {"objective_options": {"multi_positive": "separate", "mask_duplicates": False}},
        {"pooling": "first_last", "perturb_at": "embedding"},
    ],
    ids=str,
)
def test_exact_equals_none_under_every_option(make_step, sentences, options):
    assert_equal_outcomes(*both(make_step, sentences, **options))


@pytest.mark.parametrize("inner_dropout", ["off", "frozen"])
def test_exact_equals_none_with_dropout(make_step, sentences, inner_dropout):
    """`none` encodes the keys anew under z+'s masks: replayed, they give the same keys."""
    assert_equal_outcomes(*both(make_step, sentences, dropout=0.2, inner_dropout=inner_dropout))


def count_calls(recorded):
    """(embeds, [(rows encoded, whether gradients reach parameters, inner)]) of one forward."""
    encoder, calls, embeds = recorded.step.encoder, [], []
    embedder, encode = encoder.embedder, encoder.encode

    def counted_embedder(batch, dropout=None):
        embed = embedder(batch, dropout)
        return lambda: embeds.append(batch.num_sentences) or embed()

    def counted_encode(x, batch, dropout=None):
        calls.append((batch.num_sentences, any(p.requires_grad for p in recorded.step.parameters())))
        return encode(x, batch, dropout)

    encoder.embedder, encoder.encode = counted_embedder, counted_encode
    return embeds, calls


@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_exact_encodes_clean_views_once_and_the_perturbed_one_n_times(make_step, sentences, num_steps):
    recorded = make_step(num_steps=num_steps)
    batch = recorded.step.encoder.pack(sentences)
    embeds, calls = count_calls(recorded)
    loss = recorded.step(batch)
    rows = len(sentences)
    assert embeds == [rows, rows]
    # z and z+ with parameters, N inner forwards without, z_adv with.
    assert calls == [(rows, True)] * 2 + [(rows, False)] * num_steps + [(rows, True)]
    assert all(p.grad is None for p in recorded.step.parameters())
    loss.backward()
    assert any(p.grad is not None for p in recorded.step.parameters())


def test_no_parameter_gradient_in_the_inner_loop(make_step, sentences):
    """A hook on every parameter's gradient stays silent until the outer backward."""
    recorded = make_step()
    fired = []
    for name, parameter in recorded.step.named_parameters():
        parameter.register_hook(lambda grad, name=name: fired.append(name))
    loss = recorded.step(recorded.step.encoder.pack(sentences))
    assert fired == []
    loss.backward()
    assert fired


def test_none_runs_two_full_passes_an_inner_step(make_step, sentences):
    recorded = make_step(reuse="none", num_steps=3)
    batch = recorded.step.encoder.pack(sentences)
    embeds, calls = count_calls(recorded)
    recorded.step(batch)
    # Two clean views; then for delta and for eta, N times each: the keys anew and the perturbed pass; then z_adv.
    assert len(embeds) == 2 + 2 * 3
    assert len(calls) == 2 + 2 * 3 * 2 + 1


def test_parameters_ask_for_gradients_again_even_when_the_search_fails(make_step, sentences):
    recorded = make_step()
    batch = recorded.step.encoder.pack(sentences)
    recorded.step.objective.inner_loss = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        recorded.step(batch)
    assert all(p.requires_grad for p in recorded.step.parameters())
