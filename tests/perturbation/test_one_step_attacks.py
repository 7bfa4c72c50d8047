"""FGM and FGSM: one step from zero, as long as the radius, whatever the settings of the mixed search say."""

import pytest
import torch

from fastadv import UserError, load_config
from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.perturbation import Adversary, check_resolution

NOT_THEIRS = {"norm": "l1", "num_steps": 7, "rho": 0.5, "sigma": 0.3, "alpha": 9.0, "beta": 9.0, "step_relative": False}


@pytest.fixture
def batch():
    return PackedBatch.from_token_lists(
        [[1, 5, 6, 2], [1, 2], [1, 7, 2]], [[True, False, False, True], [True, True], [True, False, True]]
    )


@pytest.fixture
def x(batch):
    return torch.randn(batch.num_tokens, 6, dtype=torch.float64)


def curved(points):
    return (points + 0.1 * points.pow(3)).sin().sum()


def gradient(x):
    point = x.clone().requires_grad_()
    return torch.autograd.grad(curved(point), point)[0]


def sentences_of(values, batch):
    return values.split(batch.lengths.tolist())


def attack(x, batch, method, **options):
    return Adversary(PerturbationConfig(method=method, **{**NOT_THEIRS, **options})).search(x, batch, curved)


def test_fgm_is_epsilon_times_the_sentences_unit_gradient(batch, x):
    found = attack(x, batch, "fgm", epsilon=0.3)
    expected = torch.cat([0.3 * g / g.norm() for g in sentences_of(gradient(x), batch)])
    torch.testing.assert_close(found.delta, expected, rtol=1e-14, atol=0)
    assert found.eta is None


def test_fgsm_is_epsilon_times_the_sign(batch, x):
    assert torch.equal(attack(x, batch, "fgsm", epsilon=0.3).delta, 0.3 * gradient(x).sign())


def test_relative_radii_follow_each_attacks_own_norm(batch, x):
    rms = [part.square().mean().sqrt() for part in sentences_of(x, batch)]
    fgm = attack(x, batch, "fgm", epsilon_relative=0.2).delta
    fgsm = attack(x, batch, "fgsm", epsilon_relative=0.2).delta
    for size, of_fgm, of_fgsm in zip(rms, sentences_of(fgm, batch), sentences_of(fgsm, batch), strict=True):
        torch.testing.assert_close(of_fgm.norm(), 0.2 * size * of_fgm.numel() ** 0.5, rtol=1e-14, atol=0)
        torch.testing.assert_close(of_fgsm.abs(), (0.2 * size).expand_as(of_fgsm), rtol=1e-14, atol=0)


@pytest.mark.parametrize("method", ["fgm", "fgsm"])
def test_one_gradient_at_x_itself_and_nothing_drawn(batch, x, method):
    points = []
    state = torch.get_rng_state()
    config = PerturbationConfig(method=method, epsilon=0.3, **NOT_THEIRS)
    Adversary(config).search(x, batch, lambda p: points.append(p.detach()) or curved(p))
    assert len(points) == 1 and torch.equal(points[0], x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", ["fgm", "fgsm"])
def test_special_tokens_are_spared_and_enter_no_norm(batch, x, method):
    delta = attack(x, batch, method, epsilon=0.3, perturb_special_tokens=False).delta
    assert not delta[batch.is_special].any() and delta[~batch.is_special].all()
    if method == "fgm":
        assert delta[:4].norm() == pytest.approx(0.3, rel=1e-14)


def test_radius_zero_and_zero_gradients_perturb_nothing(batch, x):
    for method in ("fgm", "fgsm"):
        assert not attack(x, batch, method, epsilon=0.0).delta.any()
        config = PerturbationConfig(method=method, epsilon=0.3)
        assert not Adversary(config).search(x, batch, lambda p: (0 * p).sum()).delta.any()


def test_a_plan_is_explicit():
    for method, norm in (("fgm", "l2"), ("fgsm", "linf")):
        config = PerturbationConfig(method=method, epsilon=0.3, norm="l1").resolve()
        assert (config.norm, config.num_steps, config.use_eta, config.inner_dropout) == (norm, 1, False, "frozen")
    assert PerturbationConfig().resolve().inner_dropout == "off"
    assert PerturbationConfig(method="fgm", inner_dropout="off").resolve().inner_dropout == "off"


def test_a_ball_below_the_resolution_is_refused_by_the_attacks_own_norm(batch, x):
    # In the l2 ball of 24 entries an entry moves by a fifth of the radius; half a unit in bfloat16 is 0.004 at 1.
    check_resolution(
        torch.ones_like(x), batch, PerturbationConfig(method="fgm", epsilon=0.04).resolve(), torch.bfloat16
    )
    with pytest.raises(UserError, match="below the resolution of bfloat16"):
        check_resolution(
            torch.ones_like(x), batch, PerturbationConfig(method="fgm", epsilon=0.01).resolve(), torch.bfloat16
        )


@pytest.mark.parametrize("method", ["fgm", "fgsm"])
def test_a_one_step_attack_without_a_radius_is_one_line(method):
    with pytest.raises(UserError) as caught:
        load_config(overrides=["--objective=uscal", f"--perturbation.method={method}", "--perturbation.epsilon=null"])
    line = str(caught.value)
    assert line.isprintable() and "perturbation.epsilon = null" in line and method in line


def test_an_unknown_method_is_one_line():
    with pytest.raises(UserError, match="mixed, fgm, fgsm"):
        load_config(overrides=["--perturbation.method=fgmm"])
