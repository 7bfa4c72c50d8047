"""The attack at an epoch's start: which texts it takes, when it stops, what it gives back, what it refuses."""

import importlib.util
import os
from dataclasses import dataclass, replace

import pytest
import torch

from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.text import training_attack
from fastadv.evaluation.text.rows import TextAttackRow
from fastadv.evaluation.text.training_attack import check_attack, find_texts
from fastadv.objectives.needs import EpochAttack

NAMES = ("bad", "fair", "good", "great")
TEXTS = [(f"text number {'abcdefghij'[i]}",) for i in range(10)]
LABELS = [NAMES[i % 4] for i in range(10)]
ORDER = [7, 2, 9, 4, 0, 5, 1, 8, 3, 6]


@dataclass
class Row:
    first: str
    outcome: str
    second: str = None

    texts, texts_adversarial = TextAttackRow.texts, TextAttackRow.texts_adversarial

    @property
    def first_adversarial(self):
        return self.first.upper()

    @property
    def second_adversarial(self):
        return None if self.second is None else self.second + "!"


class Model:
    label_map = LabelMap(NAMES)


@pytest.fixture
def attacked(monkeypatch):
    """``attacked(outcome_of)``: stands for the attack; the rows it was asked for, in order, and the job."""
    asked = []

    def stand_in(outcome_of):
        def attack_here(job, texts, classifier):
            asked.append(job)
            for text in texts:
                asked.append(text)
                yield Row(text.texts[0], outcome_of(text.row), *text.texts[1:])

        monkeypatch.setattr(training_attack, "attack_here", attack_here)
        return asked

    return stand_in


def run(tmp_path, texts=TEXTS, labels=LABELS, order=ORDER, **plan):
    return find_texts(EpochAttack("deepwordbug", **plan), Model(), texts, labels, order, 5, tmp_path / "log")


def test_texts_are_attacked_in_order_until_enough_are_fooled(attacked, tmp_path):
    asked = attacked(lambda row: "succeeded" if row % 2 else "failed")
    found = run(tmp_path, share=0.25, max_queries=30)
    # Three of ten texts: 7, 9 and 5.
    assert found == {TEXTS[row]: (TEXTS[row][0].upper(),) for row in (7, 9, 5)}
    assert [(text.row, NAMES[text.label]) for text in asked[1:]] == [(row, LABELS[row]) for row in ORDER[:6]]
    settings = asked[0].settings
    assert (settings.recipe, settings.max_queries, settings.seed, settings.goal) == ("deepwordbug", 30, 5, "untargeted")


def test_fewer_are_given_where_fewer_are_fooled(attacked, tmp_path):
    asked = attacked(lambda row: {3: "succeeded", 8: "error"}.get(row, "skipped"))
    assert set(run(tmp_path, share=1.0)) == {TEXTS[3]}
    assert len(asked) == 1 + len(TEXTS)
    attacked(lambda row: "failed")
    assert run(tmp_path) == {}


def test_a_text_that_occurs_twice_is_attacked_once(attacked, tmp_path):
    asked = attacked(lambda row: "succeeded")
    found = run(tmp_path, [*TEXTS, TEXTS[7]], [*LABELS, LABELS[7]], [10, *ORDER], share=1.0)
    assert len(found) == 10 and [text.row for text in asked[1:]] == [10, 2, 9, 4, 0, 5, 1, 8, 3, 6]


def test_pairs_of_texts(attacked, tmp_path):
    attacked(lambda row: "succeeded")
    pairs = [(first, f"second {i}") for i, (first,) in enumerate(TEXTS)]
    assert run(tmp_path, pairs, share=0.1) == {pairs[7]: (pairs[7][0].upper(), "second 7!")}


def test_an_attack_that_only_fails_is_no_attack(attacked, tmp_path):
    attacked(lambda row: "error")
    with pytest.raises(UserError, match="deepwordbug ended in an error on all 10 texts that it tried: .*log"):
        run(tmp_path)


def test_what_cannot_be_attacked_is_refused(tmp_path):
    with pytest.raises(UserError, match="the attack at epochs' starts: recipe 'a2tt': expected one of"):
        check_attack(EpochAttack("a2tt"))
    with pytest.raises(UserError, match="the attack at epochs' starts: a2t needs objective_options.word_vectors"):
        check_attack(EpochAttack())
    with pytest.raises(UserError, match="the attack at epochs' starts: max_queries 0"):
        check_attack(EpochAttack("deepwordbug", max_queries=0))
    # The folder, or the package where that is missing.
    with pytest.raises(UserError, match="the attack at epochs' starts: .*(nowhere|not installed)"):
        check_attack(EpochAttack("deepwordbug", attack_data=str(tmp_path / "nowhere")))


@pytest.fixture
def classifier(tiny_bert_dir):
    torch.manual_seed(2)
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), "cls", dtype=torch.float32)
    head = ClassificationHead(encoder.hidden_size, len(NAMES))
    return Classifier(encoder, head, LabelMap(NAMES)).eval()


SENTENCES = [
    "the film is good",
    "a wonderful story was not dull",
    "it is a slow scene",
    "the ending was great",
    "never",
]


def test_an_attack_for_real(classifier, tmp_path, capfd):
    """By the recipe that needs no data: every text that its change leaves where it was."""
    texts = [(text,) for text in SENTENCES]
    labels = [NAMES[i] for i in classifier.classify_texts(SENTENCES).argmax(1)]
    plan = EpochAttack("negation", share=1.0)
    found = find_texts(plan, classifier, texts, labels, range(5), 0, tmp_path / "log")
    assert found and set(found) < set(texts)
    assert all(("not" in after) != ("not" in before) or "n't" in after for (before,), (after,) in found.items())
    assert found == find_texts(plan, classifier, texts, labels, [4, 2, 0, 1, 3], 0, tmp_path / "log")
    # What is wrong before is not attacked.
    others = [NAMES[(NAMES.index(label) + 1) % 4] for label in labels]
    assert find_texts(replace(plan, share=0.2), classifier, texts, others, range(5), 0, tmp_path / "log") == {}
    assert capfd.readouterr().out == ""


@pytest.mark.skipif(
    "FASTADV_ATTACK_DATA" not in os.environ or importlib.util.find_spec("textattack") is None,
    reason="needs textattack and the folder of fastadv prepare-attack-data",
)
def test_a_recipe_of_textattack(classifier, tmp_path):
    texts = [(text,) for text in SENTENCES]
    labels = [NAMES[i] for i in classifier.classify_texts(SENTENCES).argmax(1)]
    found = find_texts(EpochAttack("deepwordbug", share=0.4), classifier, texts, labels, range(5), 0, tmp_path / "log")
    assert len(found) == 2
    for given, changed in found.items():
        before, after = (classifier.classify_texts([text]).argmax() for (text,) in (given, changed))
        assert NAMES[before] == labels[texts.index(given)] and before != after
