"""The search itself, on a loss whose gradient is known."""

import pytest
import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.perturbation import Adversary
from fastadv_kernels import row_norm, segment_norm

NORMS = ["linf", "l2", "l1"]


@pytest.fixture
def batch():
    return PackedBatch.from_token_lists(
        [[1, 5, 6, 2], [1, 2], [1, 7, 2]], [[True, False, False, True], [True, True], [True, False, True]]
    )


@pytest.fixture
def x(batch):
    return torch.randn(batch.num_tokens, 6, dtype=torch.float64)


def curved(points):
    """A loss without a stationary point nearby: its gradient turns with the point."""
    return (points + 0.1 * points.pow(3)).sin().sum()


def count_passes(x, batch, config):
    """How often a search evaluates its loss."""
    counted = []
    Adversary(config).search(x, batch, lambda points: counted.append(1) or curved(points))
    return len(counted)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gradient", ["shared", "separate"])
def test_stays_in_the_balls_and_raises_the_loss(batch, x, norm, gradient):
    config = PerturbationConfig(
        norm=norm, epsilon_relative=0.2, alpha=0.5, beta=0.3, gamma=0.5, gradient=gradient, eta_scaling="none"
    )
    found = Adversary(config).search(x, batch, curved)
    rms = torch.stack([part.square().mean().sqrt() for part in x.split(batch.lengths.tolist())])
    power = {"linf": 0.0, "l2": 0.5, "l1": 1.0}[norm]
    epsilon = 0.2 * rms * (batch.lengths * 6).double() ** power
    epsilon_token = 0.2 * rms * 6.0**power
    for delta in (found.delta, found.state.pgd, found.state.fgsm):
        assert (segment_norm(delta, batch.cu_seqlens, norm) <= epsilon * (1 + 1e-12)).all()
    assert (row_norm(found.eta, norm) <= epsilon_token[batch.token_sentence] * (1 + 1e-12)).all()
    assert found.gain > 0
    assert curved(x + found.delta + found.eta) > curved(x)


def test_a_chain_past_its_own_count_stands_still(batch, x):
    def end_of(**counts):
        torch.manual_seed(0)
        config = PerturbationConfig(
            epsilon=0.5,
            alpha=0.05,
            beta=0.03,
            gamma=0.02,
            gradient="separate",
            use_eta=False,
            sigma=0.1,
            **counts,
        )
        return Adversary(config).search(x, batch, curved)

    long, short = end_of(num_pgd_steps=2, num_fgsm_steps=5), end_of(num_pgd_steps=2, num_fgsm_steps=2)
    # Separate gradients: the PGD chain does not see the other one.
    assert torch.equal(long.state.pgd, short.state.pgd)
    assert not torch.equal(long.state.fgsm, short.state.fgsm)
    still = end_of(num_pgd_steps=0, num_fgsm_steps=3)
    start = end_of(num_pgd_steps=0, num_fgsm_steps=0)
    assert torch.equal(still.state.pgd, start.state.pgd)
    assert torch.equal(still.delta, 0.5 * still.state.pgd + 0.5 * still.state.fgsm)


@pytest.mark.parametrize("rho, calls", [(0.0, 3), (0.5, 5), (1.0, 5)])
def test_a_chain_of_no_weight_is_not_run(batch, x, rho, calls):
    config = PerturbationConfig(epsilon=0.5, rho=rho, num_pgd_steps=5, num_fgsm_steps=3)
    assert count_passes(x, batch, config) == calls


@pytest.mark.parametrize("reuse, calls", [("exact", 2), ("none", 4)])
def test_separate_gradients_and_the_reference_take_more_passes(batch, x, reuse, calls):
    for gradient, factor in (("shared", 1), ("separate", 2)):
        assert count_passes(x, batch, PerturbationConfig(epsilon=0.5, num_steps=2, reuse=reuse, gradient=gradient)) == (
            calls * factor
        )


def test_special_tokens_are_left_alone_when_asked(batch, x):
    config = PerturbationConfig(epsilon_relative=0.2, alpha=0.5, beta=0.3, gamma=0.5, perturb_special_tokens=False)
    found = Adversary(config).search(x, batch, curved)
    assert not found.delta[batch.is_special].any() and not found.eta[batch.is_special].any()
    assert found.delta[~batch.is_special].all() and found.eta[~batch.is_special].all()
    # The second sentence is nothing but special tokens: no radius, no perturbation, nothing non-finite.
    assert found.delta.isfinite().all() and found.eta.isfinite().all()
    assert not found.nonfinite_step.any()


def test_a_gradient_that_is_not_finite_at_special_tokens_alone_is_no_fault(batch, x):
    config = PerturbationConfig(epsilon=0.5, perturb_special_tokens=False)
    slope = torch.where(batch.is_special[:, None], float("nan"), 0.0).double()
    found = Adversary(config).search(x, batch, lambda p: curved(p) + (p * slope).sum())
    assert not found.nonfinite_step.any()
    assert found.delta.isfinite().all()


def test_the_first_bad_step_of_each_sentence_is_recorded(batch, x):
    calls = []

    def loss(points):
        calls.append(1)
        poison = torch.zeros_like(points)
        if len(calls) >= 2:
            poison[4:6] = float("inf")
        return curved(points) + (points * poison).sum()

    found = Adversary(PerturbationConfig(epsilon=0.5, num_steps=4)).search(x, batch, loss)
    assert found.nonfinite_step.tolist() == [0, 2, 0]
    assert found.delta.isfinite().all() and found.eta.isfinite().all()


def test_low_precision_embeddings_get_float32_perturbations(batch, x):
    config = PerturbationConfig(epsilon_relative=0.2, alpha=0.5, beta=0.3, gamma=0.5)
    seen = []
    found = Adversary(config).search(x.bfloat16(), batch, lambda p: seen.append(p.dtype) or curved(p))
    assert set(seen) == {torch.bfloat16}
    assert found.delta.dtype == found.eta.dtype == torch.float32


def test_eta_without_use_eta_is_a_mistake(batch, x):
    with pytest.raises(ValueError, match="use_eta is false"):
        Adversary(PerturbationConfig(use_eta=False)).search(x, batch, curved, torch.zeros_like(x))


@pytest.mark.parametrize("gradient", ["shared", "separate"])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_the_gain_is_a_sentence_s_share_of_what_the_gradients_saw(batch, x, gradient, num_steps):
    """A linear loss without a ball: each step but the last, whose end no gradient sees, adds the same."""
    weight = torch.randn_like(x)
    config = PerturbationConfig(
        epsilon=None, alpha=0.05, beta=0.02, rho=0.25, sigma=0, use_eta=False, gradient=gradient, num_steps=num_steps
    )
    found = Adversary(config).search(x, batch, lambda points: (weight * points).sum())
    # PGD moves by alpha w / max|w| of the sentence, FGSM by beta sign(w).
    parts = weight.split(batch.lengths.tolist())
    rise = sum(0.25 * 0.05 * w.square().sum() / w.abs().max() + 0.75 * 0.02 * w.abs().sum() for w in parts)
    # A difference of two losses near sum(w x), about 10: float64's 2e-16 of that, and the rounding of each sum.
    torch.testing.assert_close(found.gain, max(num_steps - 1, 0) * rise / 3, rtol=0, atol=1e-13)


@pytest.mark.parametrize("reuse", ["exact", "none"])
def test_the_gain_is_of_the_losses_the_search_evaluated(batch, x, reuse):
    """With eta and a curved loss: the last loss less the first, over three sentences."""
    seen = []

    def loss(points):
        value = 5 + curved(points)
        seen.append(value.item())
        return value

    config = PerturbationConfig(
        epsilon_relative=0.2, alpha=0.5, beta=0.3, gamma=0.5, num_steps=4, eta_scaling="none", reuse=reuse
    )
    found = Adversary(config).search(x, batch, loss)
    # The reference evaluates each point twice, for delta and for eta.
    assert len(seen) == {"exact": 4, "none": 8}[reuse]
    assert found.gain.item() == pytest.approx((seen[-1] - seen[0]) / 3, rel=1e-12)
