"""What must hold of a step whatever the encoder: order, padding, zero radii, zero and huge gradients."""

import copy
from dataclasses import replace

import pytest
import torch

from fastadv.engine.step.micro_batch import MicroBatch
from fastadv.perturbation import NonFiniteGradient

NORMS = ["linf", "l2", "l1"]


def assert_close_to_scale(actual, expected, what):
    """Equal to 1e-10 times the largest magnitude: an entry that cancels keeps the error of its terms."""
    assert expected.abs().max() > 0, what
    assert (actual - expected).abs().max() <= 1e-10 * expected.abs().max(), what


def assert_same_step(one, other, batches, order):
    """Two recorded steps agree in loss, gradients, delta, eta and the table V; ``other`` has sentences in ``order``."""
    outcomes = []
    for recorded, batch in zip((one, other), batches, strict=True):
        torch.manual_seed(5)
        outcomes.append(recorded.run(batch))
    (loss, grads), (other_loss, other_grads) = outcomes
    torch.testing.assert_close(other_loss, loss, rtol=1e-12, atol=0)
    assert other_grads.keys() == grads.keys()
    for name in grads:
        # A key bias shifts all scores of a query alike, so that its true gradient is 0: hence the absolute floor.
        torch.testing.assert_close(other_grads[name], grads[name], rtol=1e-10, atol=1e-12)
    for name in ("delta", "eta"):
        pieces = getattr(one.found[0], name).split(batches[0].lengths.tolist())
        assert_close_to_scale(getattr(other.found[0], name), torch.cat([pieces[i] for i in order]), name)
    start = one.step.eta_table.table.clone()
    assert torch.equal(other.step.eta_table.table, start)
    one.step.commit()
    other.step.commit()
    assert not torch.equal(one.step.eta_table.table, start)
    assert_close_to_scale(other.step.eta_table.table, one.step.eta_table.table, "eta table")


@pytest.mark.parametrize("norm", NORMS)
def test_order_of_sentences_never_matters(make_step, sentences, norm):
    order = [3, 0, 6, 5, 1, 4, 2]
    straight, shuffled = make_step(norm=norm, sigma=0.0), make_step(norm=norm, sigma=0.0)
    pack = straight.step.encoder.pack
    assert_same_step(straight, shuffled, (pack(sentences), pack([sentences[i] for i in order])), order)


@pytest.mark.parametrize("norm", NORMS)
def test_padding_never_matters(make_step, tiny_encoder, sentences, norm):
    """The padded path and the packed one take one and the same step, from the same random start of delta and of V."""
    from fastadv.engine.step.step import Step

    packed = make_step(norm=norm)
    encoder = tiny_encoder(path="generic", dropout=0.0)
    generic = type(packed)(Step(encoder, copy.deepcopy(packed.step.objective), packed.step.plan).train())
    generic.step.eta_table.load_state_dict(packed.step.eta_table.state_dict())
    assert (packed.step.encoder.path, generic.step.encoder.path) == ("packed", "generic")
    batch = packed.step.encoder.pack(sentences)
    assert_same_step(packed, generic, (batch, batch), range(len(sentences)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("options", [{"epsilon": 0.0}, {"num_steps": 0, "sigma": 0.0, "epsilon": 0.5}], ids=str)
def test_no_perturbation_is_bit_equal_to_the_clean_pass(make_step, sentences, norm, options):
    recorded = make_step(norm=norm, dtype=torch.float32, **options)
    batch = recorded.step.encoder.pack(sentences)
    vectors = []
    project = recorded.step.objective.project
    recorded.step.objective.project = lambda h, is_inner=False: vectors.append(project(h, is_inner)) or vectors[-1]
    recorded.step(batch)
    assert not recorded.found[0].delta.any() and not recorded.found[0].eta.any()
    for other in vectors[1:]:
        assert torch.equal(other, vectors[0])


def scaled_search(x, batch, config, scale):
    """A search whose loss is a fixed smooth function of the points times ``scale``."""
    from fastadv.perturbation import Adversary

    torch.manual_seed(3)
    weight = torch.randn(x.shape, dtype=x.dtype)
    torch.manual_seed(4)
    return Adversary(config).search(x, batch, lambda p: scale * (weight * p).sin().sum(), torch.zeros_like(x))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("exponent", [-40, -7, 14])
def test_gradients_scaled_by_powers_of_two_give_bit_equal_steps(tiny_encoder, sentences, norm, exponent):
    from fastadv.config.schema import PerturbationConfig

    encoder = tiny_encoder(dtype=torch.float32)
    batch = encoder.pack(sentences)
    x = encoder.embed(batch).detach()
    config = PerturbationConfig(norm=norm, epsilon_relative=0.1, alpha=0.5, beta=0.4, gamma=0.7)
    plain, scaled = (scaled_search(x, batch, config, s) for s in (1.0, 2.0**exponent))
    assert plain.delta.any()
    assert torch.equal(plain.delta, scaled.delta) and torch.equal(plain.eta, scaled.eta)


@pytest.mark.parametrize("norm", NORMS)
def test_zero_gradients_leave_delta_and_follow_eta_s_formula(tiny_encoder, sentences, norm):
    from fastadv.config.schema import PerturbationConfig
    from fastadv.perturbation import Adversary
    from fastadv_kernels import project, row_norm

    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    x = encoder.embed(batch).detach()
    config = PerturbationConfig(
        norm=norm, epsilon_relative=0.1, alpha=0.5, beta=0.4, gamma=0.7, num_steps=1, sigma=0.01
    )
    eta = 0.01 * torch.randn_like(x)
    torch.manual_seed(0)
    found = Adversary(config).search(x, batch, lambda p: (0 * p).sum(), eta)
    still = Adversary(PerturbationConfig(**{**vars(config), "num_steps": 0}))
    torch.manual_seed(0)
    start = still.search(x, batch, lambda p: p.sum(), eta)
    # Projecting a point inside the ball again may move it by a rounding.
    torch.testing.assert_close(found.delta, start.delta, rtol=1e-14, atol=0)
    radius = found.epsilon_token[batch.token_sentence]
    kept = project(eta, radius, norm)
    norms = row_norm(kept, norm)
    largest = torch.stack([part.max() for part in norms.split(batch.lengths.tolist())])
    expected = project(kept * (norms / largest[batch.token_sentence])[:, None], radius, norm)
    torch.testing.assert_close(found.eta, expected, rtol=1e-12, atol=1e-15)
    assert found.eta.isfinite().all() and found.delta.isfinite().all()


def plant_nan(recorded, batch, row):
    """The inner loss of sentence ``row`` becomes NaN."""
    inner_loss = recorded.step.objective.inner_loss

    def poisoned(views):
        bad = torch.zeros_like(views.query)
        bad[row] = float("nan")
        return inner_loss(views) + (views.query * bad).sum()

    recorded.step.objective.inner_loss = poisoned


def test_a_non_finite_gradient_is_named_with_its_sentence(make_step, sentences):
    recorded = make_step()
    batch = recorded.step.encoder.pack(sentences)
    plant_nan(recorded, batch, 2)
    with pytest.raises(NonFiniteGradient, match=r"1 of 7 sentences \(rows 2\), first at inner step 1") as caught:
        recorded.step(batch)
    assert caught.value.sentences == [2]


def test_a_skipped_step_says_so_keeps_the_others_and_writes_nothing(make_step, sentences):
    clean, poisoned = make_step(on_nonfinite="skip"), make_step(on_nonfinite="skip")
    batch = clean.step.encoder.pack(sentences)
    torch.manual_seed(5)
    clean.step(batch)
    plant_nan(poisoned, batch, 2)
    torch.manual_seed(5)
    poisoned.step(batch)
    assert poisoned.step.is_skipped and not clean.step.is_skipped
    assert poisoned.step.metrics["num_nonfinite_sentences"] == 1
    elsewhere = batch.token_sentence != 2
    assert torch.equal(poisoned.found[0].delta[elsewhere], clean.found[0].delta[elsewhere])
    assert poisoned.found[0].delta.isfinite().all()
    before = poisoned.step.eta_table.table.clone()
    poisoned.step.discard()
    poisoned.step.commit()
    assert torch.equal(poisoned.step.eta_table.table, before)


def test_passes_follow_needs_that_change_from_step_to_step(make_step, sentences):
    """As CARL's do, which reads no clean pass before its contrast begins."""
    step = make_step(objective="simcse").step
    piece = MicroBatch(step.encoder.pack(sentences), 0, True, ())
    assert step.passes.encode_clean(piece).pooled is not None
    step.objective.needs = replace(step.objective.needs, clean=False, positive=False)
    clean = step.passes.encode_clean(piece)
    assert clean.pooled is None and clean.positive is None and clean.x().shape[0] == piece.batch.num_tokens
