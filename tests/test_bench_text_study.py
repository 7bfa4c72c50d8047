"""The text study: what fools one model tried on others."""

import pytest
import torch

from bench.text_study_transfer import transferred
from tests.evaluation.attacked import CLASSES, TEXTS, make_classifier
from tests.evaluation.attacked_rows import made_row

ADVERSARIAL = [text.replace("a", "aa").replace("o", "0") for text in TEXTS]


@pytest.fixture
def other(tiny_bert_dir, tmp_path):
    """A classifier that no attack has asked, and what it says of the attacked texts."""
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32, seed=1)
    classifier.save_pretrained(tmp_path / "other")
    return classifier, [CLASSES[c] for c in classifier.classify_texts(ADVERSARIAL).argmax(axis=1)]


def test_what_fools_the_first_is_tried_where_the_other_is_right(other, tmp_path):
    said = other[1]
    after = {name: CLASSES[(i + 1) % len(CLASSES)] for i, name in enumerate(CLASSES)}
    labels = [said[i] if i % 3 == 2 else after[said[i]] for i in range(len(TEXTS))]
    first = ["succeeded" if i % 3 else "failed" for i in range(len(TEXTS))]
    second = [("failed", "skipped", "succeeded", "error")[i % 4] for i in range(len(TEXTS))]
    rows = {
        "first": [made_row(i, first[i], labels[i], first_adversarial=ADVERSARIAL[i]) for i in range(len(TEXTS))],
        "other": [made_row(i, second[i], labels[i], first_adversarial="another text") for i in range(len(TEXTS))],
    }
    tried = [i for i in range(len(TEXTS)) if first[i] == "succeeded" and second[i] in ("failed", "succeeded")]
    num_fooled = sum(said[i] != labels[i] for i in tried)
    assert 0 < num_fooled < len(tried)
    folders = {"first": tmp_path / "nowhere", "other": tmp_path / "other"}
    found = transferred(rows, folders, tmp_path / "transferred.json")
    assert found == {"other": {"num_tried": len(tried), "num_fooled": num_fooled}}
    # The second time no model is read.
    folders["other"] = tmp_path / "nowhere"
    assert transferred(rows, folders, tmp_path / "transferred.json") == found


def test_nothing_is_tried_where_nothing_fooled_the_first(tmp_path):
    rows = {"first": [made_row(0, "failed")], "other": [made_row(0, "failed")]}
    found = transferred(rows, {"first": tmp_path, "other": tmp_path / "nowhere"}, tmp_path / "transferred.json")
    assert found == {"other": {"num_tried": 0, "num_fooled": 0}}
