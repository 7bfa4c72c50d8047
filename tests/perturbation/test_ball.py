"""Radii and steps, absolute and relative, and the refusal of balls below the dtype's resolution."""

import pytest
import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.errors import UserError
from fastadv.perturbation import check_resolution, sentence_sizes
from fastadv.perturbation.ball import active_tokens

BATCH = PackedBatch.from_token_lists([[1, 5, 2], [1, 2]], [[True, False, True], [True, True]])
X = torch.tensor([[1.0, 1.0], [3.0, 3.0], [1.0, 1.0], [2.0, 2.0], [4.0, 4.0]], dtype=torch.float64)


@pytest.mark.parametrize("norm, power", [("linf", 0), ("l2", 0.5), ("l1", 1)])
def test_relative_radii_are_kappa_times_rms_times_the_root_of_the_entries(norm, power):
    config = PerturbationConfig(norm=norm, epsilon_relative=0.1, alpha=2.0, beta=3.0, gamma=4.0).resolve()
    sizes = sentence_sizes(X, BATCH, config)
    rms = torch.tensor([(22 / 6) ** 0.5, 10**0.5], dtype=torch.float64)
    epsilon = 0.1 * rms * torch.tensor([6.0, 4.0], dtype=torch.float64) ** power
    epsilon_token = 0.1 * rms * 2.0**power
    torch.testing.assert_close(sizes.epsilon, epsilon)
    torch.testing.assert_close(sizes.epsilon_token, epsilon_token)
    torch.testing.assert_close(sizes.alpha, 2 * epsilon)
    torch.testing.assert_close(sizes.beta, 3 * epsilon)
    torch.testing.assert_close(sizes.gamma, 4 * epsilon_token)


def test_special_tokens_leave_the_size_where_they_are_not_perturbed():
    config = PerturbationConfig(epsilon_relative=0.1, norm="l1", perturb_special_tokens=False).resolve()
    sizes = sentence_sizes(X, BATCH, config, active_tokens(BATCH, config))
    # Sentence 0 keeps one token of RMS 3 and two entries; sentence 1 keeps none.
    torch.testing.assert_close(sizes.epsilon, torch.tensor([0.1 * 3 * 2, 0.0], dtype=torch.float64))


def test_absolute_sizes_are_the_numbers_given():
    config = PerturbationConfig(epsilon=0.5, alpha=1e-3, beta=2e-3, gamma=3e-3).resolve()
    sizes = sentence_sizes(X, BATCH, config)
    assert sizes.epsilon.tolist() == [0.5, 0.5] == sizes.epsilon_token.tolist()
    assert (
        sizes.alpha.tolist() == [1e-3] * 2 and sizes.beta.tolist() == [2e-3] * 2 and sizes.gamma.tolist() == [3e-3] * 2
    )


def test_no_ball_and_a_token_ball_of_its_own():
    sizes = sentence_sizes(X, BATCH, PerturbationConfig(epsilon=None, epsilon_token=0.2, alpha=0.1, beta=0.1).resolve())
    assert sizes.epsilon is None and sizes.epsilon_token.tolist() == [0.2, 0.2]
    sizes = sentence_sizes(X, BATCH, PerturbationConfig(epsilon=0.1, epsilon_token=None, gamma=0.1).resolve())
    assert sizes.epsilon_token is None


def test_absolute_radius_with_relative_steps():
    sizes = sentence_sizes(
        X, BATCH, PerturbationConfig(epsilon=0.5, step_relative=True, alpha=0.5, beta=0.25, gamma=2.0).resolve()
    )
    assert (
        sizes.alpha.tolist() == [0.25] * 2 and sizes.beta.tolist() == [0.125] * 2 and sizes.gamma.tolist() == [1.0] * 2
    )


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_ball_below_the_resolution_is_refused(norm):
    x = 0.6 * torch.ones(5, 64)
    entries = {"linf": 1, "l2": 192**0.5, "l1": 192}[norm]
    # Half a unit in the last place at 0.6 is 2^-25 in float32, 2^-9 in bfloat16.
    batch = PackedBatch.from_token_lists([[1, 5, 2], [1, 2, 3][:2]], [[False] * 3, [False] * 2])
    check_resolution(x, batch, PerturbationConfig(norm=norm, epsilon=1.01 * entries * 2.0**-25).resolve())
    with pytest.raises(UserError, match="perturbation.epsilon: a radius of .* below the resolution of float32"):
        check_resolution(x, batch, PerturbationConfig(norm=norm, epsilon=0.99 * 2.0**-25).resolve())
    with pytest.raises(UserError, match="bfloat16"):
        check_resolution(x, batch, PerturbationConfig(norm=norm, epsilon=0.99 * 2.0**-9).resolve(), torch.bfloat16)


def test_no_ball_and_a_zero_ball_have_no_resolution_to_check():
    check_resolution(X, BATCH, PerturbationConfig(epsilon=None, alpha=0.1, beta=0.1, gamma=0.1).resolve())
    check_resolution(X, BATCH, PerturbationConfig(epsilon=0.0).resolve())
