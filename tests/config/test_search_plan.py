"""Radii and steps that are left to the search: relative to the embeddings, and shares of the radius."""

import pytest

from fastadv.config.schema import PerturbationConfig
from fastadv.errors import UserError


def test_the_defaults_are_relative_to_the_embeddings():
    plan = PerturbationConfig().resolve()
    assert (plan.epsilon, plan.epsilon_token, plan.epsilon_relative) == (None, None, 0.1)
    assert plan.steps_are_relative and (plan.alpha, plan.beta, plan.gamma) == (1.0, 0.4, 0.7)


@pytest.mark.parametrize("method", ["fgm", "fgsm", "pgd", "freelb"])
def test_every_method_has_a_radius_of_its_own(method):
    plan = PerturbationConfig(method=method).resolve()
    assert plan.epsilon_relative == 0.1 and plan.epsilon is None


def test_a_given_radius_is_the_one_that_counts():
    plan = PerturbationConfig(epsilon_relative=0.3).resolve()
    assert (plan.epsilon, plan.epsilon_relative, plan.alpha) == (None, 0.3, 1.0)
    plan = PerturbationConfig(epsilon=0.5, epsilon_token=0.25).resolve()
    assert plan.epsilon_relative is None and not plan.steps_are_relative
    assert (plan.alpha, plan.beta, plan.gamma) == pytest.approx((0.5, 0.2, 0.175))
    assert PerturbationConfig(epsilon=0.5, step_relative=True).resolve().beta == 0.4


def test_files_of_earlier_versions_mean_what_they_meant():
    """They name every setting; null and null is no ball."""
    printed = {"alpha": 1e-5, "beta": 1e-3, "gamma": 2e-2, "step_relative": None, "epsilon_relative": None}
    plan = PerturbationConfig(epsilon=None, **printed).resolve()
    assert plan.epsilon is None and plan.epsilon_relative is None and not plan.steps_are_relative
    assert (plan.alpha, plan.beta, plan.gamma) == (1e-5, 1e-3, 2e-2)


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"epsilon": None}, "alpha"),
        ({"epsilon": None, "alpha": 0.1}, "beta"),
        ({"epsilon": None, "alpha": 0.1, "beta": 0.1}, "gamma"),
        ({"epsilon": 0.1, "epsilon_token": None}, "gamma"),
        ({"step_relative": False}, "alpha"),
    ],
)
def test_a_share_of_no_radius_is_one_line(settings, name):
    with pytest.raises(UserError, match=f"perturbation.{name} = auto: expected a number .* no radius"):
        PerturbationConfig(**settings).resolve()


def test_steps_that_are_not_taken_need_no_size():
    PerturbationConfig(method="pgd", epsilon=None, alpha=0.1).resolve()
    PerturbationConfig(method="freelb", epsilon=None, alpha=0.1).resolve()
    PerturbationConfig(epsilon=None, rho=0.0, beta=0.1, use_eta=False).resolve()
