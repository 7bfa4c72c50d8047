"""A classifier under attack: what accuracy means at a radius, whom a run attacks, and what has no say in it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastadv.config.embedding_attack import AttackSettings
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import Texts, attack_classifier, labels_of, search, with_rows
from fastadv.evaluation.embeddings.search import Target, attacking
from tests.evaluation.attacked import CLASSES, TEXTS, Rounded, make_classifier, own_labels

EPSILONS = (0.0, 0.1, 0.3, 1.0)
FAST = AttackSettings(epsilons=EPSILONS, num_steps=4)


@pytest.fixture
def classifier(tiny_bert_dir):
    return make_classifier(tiny_bert_dir)


def with_some_wrong(data, *rows):
    """The same texts, some labelled as the next class."""
    labels = [(label + (row in rows)) % 4 for row, label in enumerate(data.labels)]
    return replace(data, labels=labels)


def test_accuracy_falls_from_the_clean_one(classifier):
    data = with_some_wrong(own_labels(classifier), 0, 5)
    result = attack_classifier(classifier, data, FAST)
    clean = classifier.classify_texts(TEXTS).argmax(axis=1)
    np.testing.assert_array_equal(result.predicted, clean)
    np.testing.assert_array_equal(result.is_right_clean, clean == np.array(data.labels))
    assert result.is_right_clean.sum() == 10
    # Nothing is perturbed at a radius of 0.
    np.testing.assert_array_equal(result.is_right[0], result.is_right_clean)
    assert not result.distance_l2[0].any() and result.distance_cosine[0] == pytest.approx(np.zeros(12), abs=1e-15)
    assert (result.is_right[1:] <= result.is_right[:-1]).all()
    counts = result.is_right.sum(axis=1)
    assert counts[0] == 10 > counts[1] > counts[3] and counts[2] > counts[3]
    # The further a text may go, the further its vector goes.
    assert (np.diff(result.distance_l2, axis=0) > 0).all() and (np.diff(result.distance_cosine, axis=0) > 0).all()
    assert not result.has_vanished.any()
    assert len(set(result.labels.tolist())) == 4


def test_the_radius_that_fools_each_text(classifier):
    data = with_some_wrong(own_labels(classifier), 3)
    result = attack_classifier(classifier, data, FAST)
    expected = []
    for text in range(len(TEXTS)):
        fooling = [0.0] * (not result.is_right_clean[text])
        fooling += [epsilon for epsilon, is_right in zip(EPSILONS, result.is_right[:, text]) if not is_right]
        expected.append(min(fooling, default=np.inf))
    assert result.fooling_epsilon.tolist() == expected
    assert result.fooling_epsilon[3] == 0 and np.isinf(expected).any()


def test_distances_are_those_of_the_end_of_the_first_run(classifier):
    data = own_labels(classifier)
    settings = replace(FAST, epsilons=(0.3,))
    result = attack_classifier(classifier, data, settings)
    row = 4
    texts = Texts(classifier, with_rows(data, [row]))
    target = Target(classifier, texts.pack([0]), torch.as_tensor(texts.labels))
    with attacking(classifier):
        end = search(target, settings, 0.3, settings.step_sizes[0], 0, [row]).end.vectors[0].numpy()
    clean = classifier.encoder.encode_texts([TEXTS[row]])[0]
    assert result.distance_l2[0, row] == pytest.approx(np.linalg.norm(end - clean), rel=1e-5)
    cosine = end @ clean / np.linalg.norm(end) / np.linalg.norm(clean)
    assert result.distance_cosine[0, row] == pytest.approx(1 - cosine, rel=1e-4)


def test_batch_size_and_company_have_no_say(classifier):
    data = own_labels(classifier)
    settings = AttackSettings(epsilons=(0.1, 0.5), num_steps=3, num_restarts=2)
    together, apart = (attack_classifier(classifier, data, settings, batch_size=size) for size in (12, 1))
    for name in ("is_right", "predicted", "is_right_first_run"):
        np.testing.assert_array_equal(getattr(together, name), getattr(apart, name))
    # float64, in another order of summation.
    np.testing.assert_allclose(together.distance_l2, apart.distance_l2, rtol=0, atol=1e-9)
    again = attack_classifier(classifier, data, settings, batch_size=5)
    np.testing.assert_array_equal(again.is_right, together.is_right)


def test_every_run_more_only_takes_away(classifier):
    data = own_labels(classifier)

    def right(**options):
        return attack_classifier(classifier, data, AttackSettings(epsilons=(0.1, 0.2), **options)).is_right

    alone = right(num_steps=2, step_sizes=(0.2,))
    assert (right(num_steps=2, step_sizes=(0.2,), num_restarts=3) <= alone).all()
    both = right(num_steps=2, step_sizes=(0.2, 1.0))
    assert (both <= alone).all() and (both <= right(num_steps=2, step_sizes=(1.0,))).all()
    # Steps of a fifth do not reach the end of the ball, those of the whole radius do.
    assert both.sum() < alone.sum()


def test_only_who_is_right_is_attacked_again(classifier, monkeypatch):
    data, attacked = own_labels(classifier), []
    from fastadv.evaluation.embeddings import classifier_attack

    def recorded(target, settings, radius, size, restart, draws):
        attacked.append((radius, restart, sorted(draws)))
        return search(target, settings, radius, size, restart, draws)

    monkeypatch.setattr(classifier_attack, "search", recorded)
    settings = AttackSettings(epsilons=(0.1, 0.3), num_steps=3, num_restarts=2)
    result = attack_classifier(classifier, data, settings)
    everyone = list(range(len(TEXTS)))
    first = np.flatnonzero(result.is_right_first_run[0]).tolist()
    assert attacked[0] == (0.1, 0, everyone) and attacked[1] == (0.1, 1, first) and len(first) < 12
    assert attacked[2] == (0.3, 0, everyone)  # for the distances
    left = np.flatnonzero(result.is_right[0] & result.is_right_first_run[1]).tolist()
    assert attacked[3] == (0.3, 1, left)
    attacked.clear()
    fast = attack_classifier(classifier, data, replace(settings, measure_distances=False))
    assert attacked[2] == (0.3, 0, np.flatnonzero(result.is_right[0]).tolist())
    np.testing.assert_array_equal(fast.is_right, result.is_right)
    assert fast.distance_l2 is None and fast.distance_cosine is None
    assert (fast.is_right_first_run[1] <= fast.is_right[0]).all()


def test_a_transferred_attack_is_what_fools_there_tried_here(tiny_bert_dir, classifier):
    other = make_classifier(tiny_bert_dir, seed=3)
    data = own_labels(classifier)
    settings = AttackSettings(epsilons=(0.3, 1.0), num_steps=3)
    alone = attack_classifier(classifier, data, settings)
    assert alone.is_right_transferred is None
    result = attack_classifier(classifier, data, settings, transfer_from=other)
    np.testing.assert_array_equal(result.is_right_first_run, alone.is_right_first_run)
    # The same by hand: points found on the other model, in its own words.
    ids = [0, 5, 9]
    texts = Texts(classifier, with_rows(data, ids))
    batch, labels = texts.pack(range(3)), torch.as_tensor(texts.labels)
    with attacking(classifier, other):
        there = search(Target(other, batch, labels), settings, 1.0, settings.step_sizes[0], 0, ids)
        here = Target(classifier, batch, labels).at(there.end.delta).is_right.numpy()
    np.testing.assert_array_equal(result.is_right_transferred[1, ids], here)
    expected = np.logical_and.accumulate(result.is_right_first_run & result.is_right_transferred, axis=0)
    np.testing.assert_array_equal(result.is_right, expected)
    # On itself the transferred attack is the attack at its end.
    itself = attack_classifier(classifier, data, settings, transfer_from=classifier)
    assert (itself.is_right_first_run <= itself.is_right_transferred).all()
    np.testing.assert_array_equal(itself.is_right, alone.is_right)


def test_a_transferred_attack_fools_a_model_without_gradients(tiny_bert_dir, classifier):
    masked = make_classifier(tiny_bert_dir)
    masked.head = Rounded(masked.head, 0.5)
    data = own_labels(masked)
    settings = AttackSettings(epsilons=(1.0,), num_steps=3)
    alone = attack_classifier(masked, data, settings)
    assert alone.is_right.all() and alone.has_vanished.all()
    assert attack_classifier(masked, data, settings, transfer_from=classifier).is_right.mean() < 0.3


@pytest.mark.parametrize(
    "options, named", [({"max_length": 16}, "max_length (16 and 64)"), ({"perturb_at": "word"}, "perturb_at")]
)
def test_models_of_two_shapes_do_not_mix(tiny_bert_dir, classifier, options, named):
    other = make_classifier(tiny_bert_dir, **options)
    with pytest.raises(UserError) as caught:
        attack_classifier(classifier, own_labels(classifier), FAST, transfer_from=other)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_labels_go_by_name(classifier):
    data = own_labels(classifier)
    shuffled = LabelMap(("great", "bad", "good", "fair"))
    renamed = LabelledTexts(shuffled, data.first, None, [shuffled.label2id[CLASSES[i]] for i in data.labels])
    assert labels_of(classifier, renamed).tolist() == data.labels
    unknown = LabelledTexts(LabelMap(("bad", "awful")), ["never", "it is dull"], None, [0, 1])
    with pytest.raises(UserError, match="'awful'.*'bad', 'fair'"):
        attack_classifier(classifier, unknown, FAST)


def test_pairs_are_attacked_as_pairs(classifier):
    encoder = classifier.encoder
    pairs = LabelledTexts(LabelMap(CLASSES), TEXTS[:6], TEXTS[6:], [0, 1, 2, 3, 0, 1])
    texts = Texts(classifier, pairs)
    tokens, _, types = encoder.tokenize_pairs(TEXTS[:6], TEXTS[6:])
    batch = texts.pack([2, 0])
    assert batch.input_ids.tolist() == tokens[2] + tokens[0] and batch.token_type_ids.tolist() == types[2] + types[0]
    expected = classifier.classify_texts(TEXTS[:6], TEXTS[6:]).argmax(axis=1)
    result = attack_classifier(classifier, pairs, replace(FAST, epsilons=(0.3,)))
    np.testing.assert_array_equal(result.predicted, expected)
    assert (result.distance_l2 > 0).all()


def test_perturbed_words_are_another_layer(tiny_bert_dir, classifier):
    at_words = make_classifier(tiny_bert_dir, perturb_at="word")
    data, settings = own_labels(classifier), AttackSettings(epsilons=(0.05,), num_steps=2)
    here, there = attack_classifier(classifier, data, settings), attack_classifier(at_words, data, settings)
    np.testing.assert_array_equal(here.predicted, there.predicted)
    # Word rows are smaller than the normed output: the same radius moves more.
    assert there.distance_l2.mean() > 2 * here.distance_l2.mean()


def test_a_broken_model_is_told(classifier):
    data = own_labels(classifier)
    with torch.no_grad():
        classifier.head.out.bias[2] = float("nan")
    with pytest.raises(UserError, match="row [0-9]+ are not finite"):
        attack_classifier(classifier, data, FAST)


class Kept:
    """Parts in memory."""

    def __init__(self):
        self.parts, self.num_saved = {}, 0

    def __call__(self, number, make):
        if number not in self.parts:
            self.parts[number], self.num_saved = make(), self.num_saved + 1
        return self.parts[number]


def test_finished_parts_are_not_made_again(classifier, monkeypatch):
    data, kept = own_labels(classifier), Kept()
    first = attack_classifier(classifier, data, FAST, kept=kept)
    assert kept.num_saved == 1 + len(EPSILONS)
    del kept.parts[len(EPSILONS) - 1]
    again = attack_classifier(classifier, data, FAST, kept=kept)
    assert kept.num_saved == 2 + len(EPSILONS)
    from fastadv.evaluation.embeddings import classifier_attack

    monkeypatch.setattr(classifier_attack, "search", None)
    third = attack_classifier(classifier, data, FAST, kept=kept)
    for result in (again, third):
        np.testing.assert_array_equal(result.is_right, first.is_right)
        np.testing.assert_array_equal(result.distance_cosine, first.distance_cosine)
