"""What counts as a gain: less than the baseline and less than the baseline with the model's class shares."""

import numpy as np
import pytest

from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.errors import UserError
from fastadv.evaluation.text.class_bias import class_share
from fastadv.evaluation.text.control import AttackedModel, control_biases, control_name, control_runs
from fastadv.evaluation.text_report.findings import comparisons, findings, sentence
from fastadv.evaluation.text_report.rates import paired
from tests.evaluation.attacked_rows import LABELS, drawn_rows, made_row

NUM_TEXTS = 80


def run_of(name, num_fooled, first=0, changed=1, **facts):
    """A model that is right everywhere, of whose texts ``num_fooled`` fall from text ``first`` on."""
    rows = [
        made_row(
            row,
            "succeeded" if first <= row < first + num_fooled else "failed",
            LABELS[row % len(LABELS)],
            num_words_changed=changed if first <= row < first + num_fooled else 0,
        )
        for row in range(NUM_TEXTS)
    ]
    return AttackedModel(name, rows, facts)


def control_of(model, num_fooled, **where):
    return run_of(control_name("base", model), num_fooled, control={"baseline": "base", "robust": model}, **where)


@pytest.mark.parametrize(
    "base,model,control,verdict",
    [
        (60, 30, 60, "gain"),
        (60, 30, 30, "lean"),
        (60, 30, 20, "lean"),
        (60, 30, 33, "lean"),
        (60, 30, None, "uncontrolled"),
        (60, 60, 70, "no gain"),
        # 2 of 2 differ one way: p = 0.5.
        (60, 58, 70, "no gain"),
        (60, 75, 60, "loss"),
        (60, 75, None, "loss"),
        # A control that falls more than the baseline makes no gain.
        (30, 30, 70, "no gain"),
        # Five texts that differ one way: 2 / 32 = 0.0625; six: 2 / 64 = 0.03125.
        (35, 30, None, "no gain"),
        (36, 30, None, "uncontrolled"),
    ],
)
def test_verdicts(base, model, control, verdict):
    runs = [run_of("base", base), run_of("m", model)] + ([control_of("m", control)] if control else [])
    assert findings(runs)[0]["verdict"] == verdict


def test_a_gain_may_hold_for_any_change_and_not_at_a_cap():
    base, model, control = run_of("base", 60), run_of("m", 20, changed=1), control_of("m", 60, changed=5)
    found = {one["cap"]: one["verdict"] for one in findings([base, model, control])}
    # What fools the control takes 5 of 10 words: within no cap does it fall.
    assert found == {"any": "gain", "words_2": "lean", "share_20": "lean"}


def test_where_no_text_is_right_for_both_nothing_is_said():
    base = AttackedModel("base", [made_row(0, "failed"), made_row(1, "skipped")])
    model = AttackedModel("m", [made_row(0, "skipped"), made_row(1, "failed")])
    found = findings([base, model])[0]
    assert found["verdict"] == "n/a" and "right on no text" in sentence(found)
    assert findings([]) == [] and findings([base]) == [] and comparisons([], LABELS) == []


def test_the_sentence_says_both_rates_and_the_control():
    said = sentence(findings([run_of("base", 60), run_of("m", 30), control_of("m", 50)])[0])
    assert "m falls on 37.5% of the 80 texts that it and base get right, base on 75.0%" in said
    assert "The control, base with its class shares, falls on 62.5% where it falls on 37.5%" in said
    assert said.endswith("This is a gain beyond the control.")
    assert "+37.5 points" in said and "+25.0 points" in said


def test_each_model_has_its_own_control():
    runs = [run_of("base", 60), run_of("a", 20), run_of("b", 20), control_of("a", 60), control_of("b", 20)]
    found = {one["model"]: one["verdict"] for one in findings(runs) if one["cap"] == "any"}
    assert found == {"a": "gain", "b": "lean"}


def test_comparisons_are_those_of_the_rows_of_each_class():
    base, model = AttackedModel("base", drawn_rows(200, 1)), AttackedModel("m", drawn_rows(200, 2))
    control = AttackedModel("c", drawn_rows(200, 3), {"control": {"baseline": "base", "robust": "m"}})
    found = comparisons([base, model, control], LABELS)
    assert [(one["first"], one["second"]) for one in found] == [("base", "m"), ("c", "m"), ("base", "c")]
    assert found[1]["all"]["any"] == paired(control.rows, model.rows)
    of_class = [[row for row in run.rows if row.label == "science"] for run in (control, model)]
    assert found[1]["per_class"]["science"]["any"] == paired(*of_class)
    assert list(found[0]["per_class"]) == list(LABELS)


class Says:
    """A classifier of fixed logits, in the order of its own classes."""

    def __init__(self, names, logits):
        self.label_map, self.logits = LabelMap(tuple(names)), np.asarray(logits, dtype=np.float32)
        self.calls = []

    def classify_texts(self, texts, pairs=None, batch_size=64):
        self.calls.append((list(texts), pairs))
        return self.logits[: len(texts)]


def texts_of(num_texts, is_pair=False):
    texts = [f"text {i}" for i in range(num_texts)]
    return LabelledTexts(LabelMap(LABELS), texts, list(reversed(texts)) if is_pair else None, [0] * num_texts)


def test_the_control_predicts_each_class_as_often_as_the_robust_model_by_name():
    rng = np.random.default_rng(0)
    baseline = Says(LABELS, rng.normal(size=(60, 4)))
    # The robust model has its classes in another order, and mostly says "sports".
    other = ("science", "sports", "world", "business")
    robust = Says(other, rng.normal(size=(60, 4)) + [0.0, 2.0, 0.0, -1.0])
    models = {"baseline": baseline, "robust": robust}
    ((name, found),) = control_biases(models.__getitem__, list(models), texts_of(60, is_pair=True))
    assert name == "robust"
    said = [other[i] for i in robust.logits.argmax(axis=1)]
    shares = class_share(baseline.logits, found.bias)
    assert shares.tolist() == pytest.approx([said.count(name) / 60 for name in LABELS])
    assert found.largest_miss == pytest.approx(0, abs=1e-12) and found.labels == list(LABELS)
    assert baseline.calls[0][1] == texts_of(60, is_pair=True).second


def test_one_control_run_for_each_model_after_the_first():
    rng = np.random.default_rng(1)
    models = {name: Says(LABELS, rng.normal(size=(40, 4)) + 0.5 * i) for i, name in enumerate(("base", "a", "b"))}
    asked = []

    def attack(name, bias):
        asked.append((name, bias.bias))
        return [made_row(0, "failed")]

    runs = list(control_runs(list(models), models.__getitem__, texts_of(40), attack))
    assert [run.name for run in runs] == ["base, bias of a", "base, bias of b"] == [name for name, _ in asked]
    for run, robust, (_, bias) in zip(runs, ("a", "b"), asked):
        assert run.facts["control"]["robust"] == robust and run.facts["control"]["baseline"] == "base"
        wanted = class_share(models[robust].logits)
        assert class_share(models["base"].logits, bias).tolist() == pytest.approx(wanted.tolist())
        assert list(run.facts["control"]["share_wanted"].values()) == pytest.approx(wanted.tolist())
    assert len(models["base"].calls) == 1


def test_models_of_other_classes_have_no_control():
    models = {"base": Says(LABELS, np.zeros((3, 4))), "a": Says((*LABELS[:3], "health"), np.zeros((3, 4)))}
    with pytest.raises(UserError, match="the models know different classes: .*health; a control needs the same"):
        next(control_runs(list(models), models.__getitem__, texts_of(3), lambda *_: []))


@pytest.mark.parametrize("broken", ["base", "a"])
def test_a_model_without_numbers_is_refused_by_its_name(broken):
    models = {name: Says(LABELS, np.full((3, 4), np.nan if name == broken else 1.0)) for name in ("base", "a")}
    with pytest.raises(UserError, match=f"^{broken} gave logits with NaN or infinity for 3 of 3 texts"):
        next(control_runs(list(models), models.__getitem__, texts_of(3), lambda *_: []))
