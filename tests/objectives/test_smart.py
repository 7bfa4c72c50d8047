"""SMART's loss in plain torch, and laws of the symmetric divergence."""

import pytest
import torch
from torch import nn

from fastadv.errors import UserError
from fastadv.launch.load import load_config
from fastadv.objectives.base import RunFacts, Views
from fastadv.objectives.classes.smart import SMART, symmetric_kl
from fastadv.objectives.needs import Needs

LABELS = torch.tensor([3, 0, 4, 1, 2, 2])


def make(**options):
    torch.manual_seed(0)
    return SMART(8, nn.Linear(8, 5).double(), **options)


def make_views(**changes):
    torch.manual_seed(1)
    pooled, adversarial, average = torch.randn(3, 6, 8, dtype=torch.float64)
    views = {"pooled": pooled, "adversarial_pooled": adversarial, "average_logits": average[:, :5], "labels": LABELS}
    return Views(pooled, torch.arange(6), **{**views, **changes})


def kl(logits, others):
    """Of probabilities, by torch's own divergence: sum p (log p - log q)."""
    return nn.functional.kl_div(others.log_softmax(1), logits.softmax(1), reduction="none").sum(1)


@pytest.mark.parametrize("smoothness, momentum", [(1.0, 1.0), (0.5, 3.0)])
def test_loss_is_cross_entropy_and_two_divergences(smoothness, momentum):
    objective, views = make(weight_smoothness=smoothness, weight_momentum=momentum), make_views()
    loss, terms = objective.loss(views)
    logits, adversarial = objective.classifier(views.pooled), objective.classifier(views.adversarial_pooled)
    average = views.average_logits
    parts = {
        "loss_clean": nn.functional.cross_entropy(logits, LABELS),
        "loss_smoothness": (kl(adversarial, logits) + kl(logits, adversarial)).mean(),
        "loss_momentum": (kl(logits, average) + kl(average, logits)).mean(),
    }
    weights = {"loss_clean": 1.0, "loss_smoothness": smoothness, "loss_momentum": momentum}
    torch.testing.assert_close(terms, {name: part.detach() for name, part in parts.items()}, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss, sum(weights[name] * part for name, part in parts.items()), rtol=1e-12, atol=0)


def test_a_weight_of_zero_leaves_a_part_out():
    views = make_views(adversarial_pooled=None, average_logits=None)
    objective = make(weight_smoothness=0.0, weight_momentum=0.0)
    loss, terms = objective.loss(views)
    assert objective.needs == Needs(labels=True)
    assert list(terms) == ["loss_clean"] and loss == terms["loss_clean"]


def test_inner_loss_sums_over_rows_and_holds_the_anchor_constant():
    objective, views = make(), make_views()
    anchor = views.adversarial_pooled.clone().requires_grad_()
    pooled = views.pooled.clone().requires_grad_()
    loss = objective.inner_loss(Views(None, torch.arange(6), pooled=pooled, anchor=anchor))
    rows = symmetric_kl(objective.classifier(pooled), objective.classifier(anchor))
    torch.testing.assert_close(loss, rows.sum(), rtol=1e-14, atol=0)
    loss.backward()
    assert pooled.grad.any() and anchor.grad is None


def test_symmetric_kl_is_a_divergence():
    torch.manual_seed(2)
    one, other = torch.randn(2, 50, 5, dtype=torch.float64) * 3
    assert (symmetric_kl(one, other) > 0).all()
    torch.testing.assert_close(symmetric_kl(one, other), symmetric_kl(other, one), rtol=1e-13, atol=0)
    # Nothing but differences of logits counts.
    torch.testing.assert_close(symmetric_kl(one + 7, other - 2), symmetric_kl(one, other), rtol=1e-12, atol=1e-13)
    assert not symmetric_kl(one, one).any()
    point = one.clone().requires_grad_()
    symmetric_kl(point, one).sum().backward()
    assert not point.grad.any()


def test_symmetric_kl_is_squared_for_small_differences():
    """Of logits that differ by eps d: eps^2 times the variance of d under p, to the next order."""
    torch.manual_seed(3)
    one, moves = torch.randn(2, 20, 5, dtype=torch.float64)
    p = one.softmax(1)
    variance = (p * moves**2).sum(1) - (p * moves).sum(1) ** 2
    torch.testing.assert_close(symmetric_kl(one + 1e-4 * moves, one) / 1e-8, variance, rtol=1e-3, atol=0)


def test_symmetric_kl_of_bfloat16_is_that_of_its_values():
    torch.manual_seed(4)
    one, other = torch.randn(2, 10, 5).bfloat16()
    found = symmetric_kl(one, other)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, symmetric_kl(one.double(), other.double()).float(), rtol=1e-4, atol=1e-6)


def test_the_average_slows_down_after_a_tenth_of_the_run():
    objective = make()
    with pytest.raises(RuntimeError, match="begin"):
        objective.decay_of_average(1)
    objective.begin(RunFacts(num_rows=6, batches_per_epoch=1, total_steps=35))
    assert [objective.decay_of_average(step) for step in (1, 3, 4, 35)] == [0.99, 0.99, 0.999, 0.999]


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["--perturbation.sigma", "0.0"], ["perturbation.sigma = 0", "above 0", "smart"]),
        (["--perturbation.method", "fgm"], ["perturbation.method = fgm", "expected pgd", "smart"]),
        (["--data.label_field", "null"], ["data.label_field = null", "smart"]),
    ],
)
def test_what_smart_cannot_run_with_is_named(overrides, words):
    with pytest.raises(UserError) as caught:
        load_config("configs/smart.yaml", overrides)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)
