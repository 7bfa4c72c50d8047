"""Checks of an attack: each fires on a model made for it, and none on a plain one."""

import numpy as np
import pytest
import torch
from torch import nn

from fastadv.config.embedding_attack import AttackSettings
from fastadv.evaluation.embeddings.checks import check_attack, warnings_of
from fastadv.evaluation.embeddings.classifier_attack import attack_classifier
from tests.evaluation.attacked import Constant, Rounded, Scaled, make_classifier, own_labels

SETTINGS = AttackSettings(epsilons=(0.1, 0.5), num_steps=4)


def checked(classifier, settings=SETTINGS, transfer_from=None, data=None):
    data = own_labels(classifier) if data is None else data
    result = attack_classifier(classifier, data, settings, transfer_from)
    checks = check_attack(classifier, data, result)
    for check in checks:
        assert "\n" not in check.text and all(np.isfinite(value) for value in check.numbers.values())
        # Only a warning says what follows.
        assert (": " in check.text) == check.is_warning
    assert warnings_of(checks) == [check.text for check in checks if check.is_warning]
    return {check.name: check for check in checks}


def fired(checks):
    return {name for name, check in checks.items() if check.is_warning}


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        AttackSettings(method="apgd", epsilons=(0.5,), num_steps=4),
        AttackSettings(method="fgm", epsilons=(0.1, 0.5)),
        AttackSettings(method="fgsm", epsilons=(0.01,)),
        AttackSettings(norm="linf", epsilons=(0.01,), num_steps=4, perturb_special_tokens=False),
        AttackSettings(epsilons=(0.1, 0.5), num_steps=4, measure_distances=False),
        # Radii at which nothing happens, and one at which nothing is left: checks look elsewhere.
        AttackSettings(epsilons=(1e-6,), num_steps=4),
        AttackSettings(epsilons=(20.0,), num_steps=4),
    ],
)
def test_a_plain_model_gives_no_warning(tiny_bert_dir, settings):
    other = make_classifier(tiny_bert_dir, seed=3)
    checks = checked(make_classifier(tiny_bert_dir), settings, transfer_from=other)
    assert list(checks) == ["gradients", "more_steps", "random_direction", "transfer", "large_radius"]
    assert not fired(checks), [checks[name].text for name in fired(checks)]
    assert checks["large_radius"].numbers["accuracy"] == 0
    assert checks["more_steps"].numbers["num_steps"] == (20 if settings.method in ("fgm", "fgsm") else 8)


def test_a_head_that_rounds_hides_its_gradients(tiny_bert_dir):
    plain, masked = make_classifier(tiny_bert_dir), make_classifier(tiny_bert_dir)
    masked.head = Rounded(masked.head, 0.5)
    checks = checked(masked, transfer_from=plain)
    assert fired(checks) == {"gradients", "more_steps", "random_direction", "transfer", "large_radius"}
    assert checks["gradients"].numbers == {"share_without_gradient": 1.0}
    assert "100.0%" in checks["gradients"].text
    transfer = checks["transfer"].numbers
    assert transfer["accuracy_own"] == 1 and transfer["accuracy_transferred"] < 0.5 and transfer["epsilon"] == 0.5
    random = checks["random_direction"].numbers
    assert random["accuracy_random"] < random["accuracy_attack"] == 1


def test_saturated_logits_hide_their_gradients(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32)
    classifier.head = Scaled(classifier.head, 1e4)
    assert fired(checked(classifier)) >= {"gradients", "more_steps", "large_radius"}


def test_a_model_that_says_one_thing_cannot_be_attacked(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir)
    data = own_labels(classifier)
    classifier.head = Constant([0.0, 1.0, 5.0, 2.0])
    checks = checked(classifier, data=data)
    assert fired(checks) == {"gradients", "more_steps", "random_direction", "large_radius"}
    assert checks["large_radius"].numbers["num_texts"] == sum(label == 2 for label in data.labels) > 0


class Backwards(nn.Module):
    """A head whose gradient points the other way: the attack makes its answers surer, and noise is stronger."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, pooled):
        return self.head(2 * pooled.detach() - pooled)


def test_a_gradient_that_misleads_is_noticed(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir)
    classifier.head = Backwards(classifier.head)
    checks = checked(classifier, AttackSettings(epsilons=(0.5, 2.0), num_steps=4))
    assert not checks["gradients"].is_warning
    assert fired(checks) >= {"more_steps", "random_direction", "large_radius"}


def test_a_few_texts_without_gradient_are_no_warning(tiny_bert_dir):
    from dataclasses import replace

    from fastadv.evaluation.embeddings.checks import MAX_VANISHED

    classifier = make_classifier(tiny_bert_dir)
    data = own_labels(classifier)
    result = attack_classifier(classifier, data, SETTINGS)
    for share, is_warning in ((MAX_VANISHED, False), (2 * MAX_VANISHED, True)):
        has_vanished = np.arange(1000) < share * 1000
        check = check_attack(classifier, data, replace(result, has_vanished=has_vanished))[0]
        assert check.is_warning == is_warning and check.numbers["share_without_gradient"] == pytest.approx(share)


def test_with_nothing_right_only_the_gradient_is_checked(tiny_bert_dir):
    from dataclasses import replace

    classifier = make_classifier(tiny_bert_dir)
    data = own_labels(classifier)
    wrong = replace(data, labels=[(label + 1) % 4 for label in data.labels])
    assert list(checked(classifier, data=wrong)) == ["gradients"]
