"""Whole runs of CARL and RAR on labelled texts: gone on from bit for bit, at every place of CARL's course; exported."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.engine.checkpoints.checkpoint import EXTRA_STATE, newest_checkpoint
from fastadv.engine.loop import Trainer
from fastadv.evaluation.embeddings.reconstruct import load_reconstructor

from tests.small_runs import SENTENCES

FREELB = {
    "perturbation.method": "freelb",
    "perturbation.epsilon_relative": None,
    "perturbation.epsilon": None,
    "perturbation.alpha": 0.1,
    "perturbation.sigma": 0.3,
}
CARL = {"objective": "carl", "train.max_steps": 6, **FREELB}
RAR = {"objective": "rar", **FREELB}
CLASSES = ("bad", "good", "mixed", "other")


@pytest.fixture
def make_labelled_config(make_config, tmp_path):
    """`make_config` over twelve texts of four classes: 2 batches an epoch."""
    table = tmp_path / "texts.jsonl"
    rows = [{"text": text, "label": CLASSES[i % 4]} for i, text in enumerate(SENTENCES)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def make(name, objective_options=None, **changes):
        given = {"data.train": str(table), "data.field": "text", "data.label_field": "label", "encoder.pooling": "cls"}
        config = make_config(name, **given, **changes)
        config.objective_options = dict(objective_options or {})
        return config

    return make


def weights_of(folder):
    return load_file(folder / "model" / "model.safetensors")


def extra_state_of(folder):
    return load_file(newest_checkpoint(folder) / EXTRA_STATE)


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name].nan_to_num(), theirs[name].nan_to_num()) for name in ours)


OF_CARL = {"num_negatives": 9}


@pytest.mark.parametrize("stop_at", [1, 3, 4], ids=lambda step: f"stopped at {step}")
@pytest.mark.parametrize(
    ("options", "changes"),
    [
        # The first epoch fills; from step 3 on there is a contrast.
        ({**OF_CARL}, {}),
        ({**OF_CARL, "estimator": "softmax", "negatives": "per_row", "start_step": 1}, {"engine.zero_stage": 2}),
        # Nothing is written before step 3.
        ({**OF_CARL, "start_step": 4}, {"engine.zero_stage": 1}),
        ({**OF_CARL, "start_step": 3}, {"engine.zero_stage": 3}),
        ({**OF_CARL, "start_step": 1}, {"train.accumulation_steps": 2, "train.max_steps": 5}),
    ],
    ids=["second epoch", "per row", "late", "stage 3", "accumulated"],
)
def test_carl_stopped_and_gone_on_from_is_the_run_that_was_never_stopped(
    make_labelled_config, step_lines, stop_after, options, changes, stop_at
):
    settings = {**CARL, **changes}
    whole = Trainer(make_labelled_config("whole", options, **settings)).fit()
    Trainer(make_labelled_config("cut", options, **settings), [stop_after(stop_at)]).fit()
    cut = Trainer(make_labelled_config("cut", options, **settings)).fit()
    assert step_lines(cut) == step_lines(whole)
    assert_equal(weights_of(cut), weights_of(whole))
    assert_equal(extra_state_of(cut), extra_state_of(whole))


def test_carls_log_says_when_the_contrast_begins(make_labelled_config, step_lines):
    folder = Trainer(make_labelled_config("run", OF_CARL, **CARL)).fit()
    has_contrast = ["loss_contrast_original" in line for line in step_lines(folder) if "loss" in line]
    assert has_contrast == [False, False, True, True, True, True]
    for line in step_lines(folder):
        if "loss_contrast_original" in line:
            parts = ("loss_classification", "loss_contrast_original", "loss_contrast_adversarial")
            assert line["loss"] == pytest.approx(sum(line[part] for part in parts), rel=1e-5)
    assert extra_state_of(folder)["carl_is_written"].all()


def test_a_checkpoint_without_a_bank_goes_on(make_labelled_config, step_lines, stop_after):
    """Saved before the first write."""
    options = {**OF_CARL, "start_step": 5}
    Trainer(make_labelled_config("cut", options, **CARL), [stop_after(2)]).fit()
    cut = Trainer(make_labelled_config("cut", options, **CARL)).fit()
    whole = Trainer(make_labelled_config("whole", options, **CARL)).fit()
    assert step_lines(cut) == step_lines(whole)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_rar_stopped_and_gone_on_from_is_the_run_that_was_never_stopped(
    make_labelled_config, step_lines, stop_after, stage
):
    settings = {**RAR, "engine.zero_stage": stage}
    whole = Trainer(make_labelled_config("whole", **settings)).fit()
    Trainer(make_labelled_config("cut", **settings), [stop_after(2)]).fit()
    cut = Trainer(make_labelled_config("cut", **settings)).fit()
    assert step_lines(cut) == step_lines(whole)
    assert_equal(weights_of(cut), weights_of(whole))
    assert all("loss_reconstruction" in line for line in step_lines(cut) if "loss" in line)


@pytest.mark.parametrize("settings", [CARL, RAR], ids=["carl", "rar"])
def test_the_export_is_a_classifier_and_nothing_more(make_labelled_config, settings):
    folder = Trainer(make_labelled_config("run", **settings)).fit()
    assert not any("reconstructor" in name or "bank" in name for name in weights_of(folder))
    classifier = Classifier.from_pretrained(str(folder / "model"))
    assert tuple(classifier.label_map.names) == CLASSES
    assert classifier.classify_texts(list(SENTENCES[:3])).shape == (3, 4)
    # What `fastadv attack --method reconstruct` reads.
    assert (load_reconstructor(folder / "model", classifier.encoder) is not None) == (settings is RAR)


@pytest.mark.parametrize("settings", [CARL, RAR], ids=["carl", "rar"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_runs_in_bfloat16(make_labelled_config, step_lines, settings, stage):
    changes = {"engine.zero_stage": stage, "engine.precision": "bf16", "train.max_steps": 4}
    options = OF_CARL if settings is CARL else {}
    folder = Trainer(make_labelled_config("bf16", options, **{**settings, **changes})).fit()
    for line in step_lines(folder):
        assert all(value is not None for value in line.values())
    if settings is CARL:
        assert extra_state_of(folder)["carl_banks"].dtype == torch.float32
