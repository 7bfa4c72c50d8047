"""The text study: its tables, from rows made by hand, and what fools one model tried on others."""

import pytest
import torch

from bench.studies.text_study import PARTS, Study, main
from bench.studies.text_study_report import Attacked, plot, report
from bench.studies.text_study_transfer import transferred
from fastadv import load_config
from fastadv.errors import UserError
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text_report.report import summary
from tests.evaluation.attacked import CLASSES, TEXTS, make_classifier
from tests.evaluation.attacked_rows import LABELS, made_row

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


def rows_of(num_fooled, num_words_changed, num_right=40):
    """50 texts: the first ones fooled, then those that withstand, then those that are wrong as they are."""
    outcomes = num_fooled * ["succeeded"] + (num_right - num_fooled) * ["failed"] + (50 - num_right) * ["skipped"]
    return [
        made_row(i, outcome, num_words_changed=num_words_changed * (outcome == "succeeded"))
        for i, outcome in enumerate(outcomes)
    ]


def attacked(num_fooled, num_fooled_of_control):
    """By DeepWordBug: fine-tuning falls on 36 of 40, 9 in 10; the robust model and its control as asked."""
    facts = {"labels": list(LABELS)}
    names = {"baseline": "fine-tuning", "robust": "robust"}
    control = {**facts, "control": {**names, "bias": [0.0] * 4, "target": [0.25] * 4, "share": [0.25] * 4}}
    rows = {"fine-tuning": rows_of(36, 5), "robust": rows_of(num_fooled, 2)}
    runs = [AttackedModel(name, of_model, facts) for name, of_model in rows.items()]
    runs.append(AttackedModel("fine-tuning, bias of robust", rows_of(num_fooled_of_control, 5), control))
    tried = {"robust": {"num_tried": 30, "num_fooled": 12}}
    return Attacked(summary(runs, {"recipe": "deepwordbug"}), rows, tried)


def test_a_gain_is_marked_where_it_goes_beyond_the_control(tmp_path):
    text, numbers = report({"sentiment": {"deepwordbug": attacked(10, 36)}})
    # Of 40, 10 are fooled, all by two words; the control falls on 36, by more.
    assert "| robust | 80.0 [+0.0: +0.0, +0.0] | 25.0 (90.0) **gain** | 25.0 (0.0) **loss** |" in text
    assert "| fine-tuning | 80.0 | 90.0 | 0.0 |" in text and "| robust | 40.0 of 30 |" in text
    assert numbers["faults"] == []
    plot(numbers, tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 1000
    text, _ = report({"sentiment": {"deepwordbug": attacked(10, 10)}})
    assert "| 25.0 (25.0) |" in text and "**gain**" not in text


def test_an_attack_that_hardly_succeeds_is_a_fault():
    run = AttackedModel("fine-tuning", rows_of(31, 5), {"labels": list(LABELS)})
    weak = Attacked(summary([run], {}), {run.name: run.rows}, {})
    text, numbers = report({"sentiment": {"deepwordbug": weak}})
    assert numbers["faults"] == ["deepwordbug succeeds on 77.5% of the fine-tuned model's texts; expected 80%"]
    assert numbers["faults"][0] in text
    # Of paraphrases nothing is expected.
    assert report({"paraphrase": {"deepwordbug": weak}})[1]["faults"] == []


def test_every_classifier_of_the_variants_part_has_settings_that_load(tmp_path):
    study = Study(tmp_path, tmp_path / "sets.json", None, encoders=tmp_path / "encoders", **PARTS["variants"])
    loaded = {}
    for arm in study.arms:
        _, _, config, *flags = study.training(arm)
        loaded[arm.name] = load_config(config, flags)
    assert loaded["text-both"].data.word_sets == str(tmp_path / "sets.json")
    assert loaded["text-typos"].data.word_sets is None
    assert loaded["text-typos+freelb"].perturbation.method == "freelb"
    on_top = [name for name, config in loaded.items() if str(tmp_path / "encoders") in config.encoder.model]
    assert on_top == [name for name in loaded if " on " in name]


def test_an_encoder_that_is_not_there_is_named_before_anything_trains(tmp_path):
    with pytest.raises(UserError, match="its encoder worst8-typos-seed0 is not in --encoders None"):
        main(["--part", "variants", "--out", str(tmp_path / "out"), "--word_sets", str(tmp_path / "sets.json")])
    assert not (tmp_path / "out").exists()
