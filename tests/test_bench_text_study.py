"""The text study: what fools one model tried on others."""

import torch

from bench.text_study_transfer import transferred
from tests.evaluation.attacked import CLASSES, TEXTS, make_classifier
from tests.evaluation.attacked_rows import made_row

ADVERSARIAL = [text.replace("a", "aa").replace("o", "0") for text in TEXTS]


def test_what_fools_the_first_is_tried_where_the_other_is_right(tiny_bert_dir, tmp_path):
    other = make_classifier(tiny_bert_dir, dtype=torch.float32, seed=1)
    other.save_pretrained(tmp_path / "other")
    before, after = ([CLASSES[c] for c in other.classify_texts(texts).argmax(axis=1)] for texts in (TEXTS, ADVERSARIAL))
    # The other model is wrong on every fourth text as it is.
    labels = [before[i] if i % 4 else CLASSES[CLASSES.index(before[i]) - 1] for i in range(len(TEXTS))]
    outcomes = ["succeeded" if i % 3 else "failed" for i in range(len(TEXTS))]
    rows = [
        made_row(i, outcomes[i], labels[i], first=TEXTS[i], first_adversarial=ADVERSARIAL[i]) for i in range(len(TEXTS))
    ]
    tried = [i for i in range(len(TEXTS)) if i % 3 and i % 4]
    num_changed = sum(after[i] != labels[i] for i in tried)
    assert 0 < num_changed < len(tried)
    found = transferred(rows, {"other": tmp_path / "other"}, tmp_path / "fooled.json")
    assert found == {"other": {"num_tried": len(tried), "num_fooled": num_changed}}
    # An antonym fools where nothing changes.
    remained = transferred(rows, {"other": tmp_path / "other"}, tmp_path / "remained.json", remains=True)
    assert remained == {"other": {"num_tried": len(tried), "num_fooled": len(tried) - num_changed}}
    # The second time no model is read.
    assert transferred(rows, {"other": tmp_path / "nowhere"}, tmp_path / "fooled.json") == found


def test_nothing_is_tried_where_nothing_fooled_the_first(tmp_path):
    found = transferred([made_row(0, "failed")], {"other": tmp_path / "nowhere"}, tmp_path / "fooled.json")
    assert found == {"other": {"num_tried": 0, "num_fooled": 0}}
