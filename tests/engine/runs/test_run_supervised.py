"""Runs of the supervised systems: what they score, when they end, and what they export."""

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from fastadv.data.labelled.find import read_labelled
from fastadv.encoder.classifier.text_classifier import Classifier
from tests.quick_trainer import Trainer
from fastadv.errors import UserError
from fastadv.dry_run import PlanOptions, describe_plan
from tests.engine.systems import CLASSES
from tests.small_runs import SENTENCES

SYSTEMS = ("fine_tuning", "fgsm", "fgm", "pgd", "freelb", "scal")


@pytest.fixture
def make_supervised(make_system, tmp_path):
    """``make_supervised("freelb", "run", **changes)``: a run that is scored on the first eight of its sentences."""
    scored = {"dev.data": str(tmp_path / "dev.tsv"), "train.eval_every": 2}
    return lambda system, name="run", **changes: make_system(system, name, **{**scored, **changes})


@pytest.fixture
def scripted(monkeypatch):
    """``scripted([50.0, 60.0, ...])``: dev scores to be given in this order."""

    def script(scores):
        left = iter(scores)

        def score(logits, labels, metric):
            return next(left)

        monkeypatch.setattr("fastadv.evaluation.vectors.accuracy.classification_score", score)

    return script


@pytest.mark.parametrize(
    "system, stage, pooling",
    [*((system, 0, "cls") for system in SYSTEMS), *zip(("fine_tuning", "fgm", "freelb"), (0, 1, 3), 3 * ("mean",))],
)
def test_the_export_is_what_was_trained(system, stage, pooling, make_supervised):
    steps = {"train.max_steps": 30, "train.eval_every": 15, "optimizer.lr": 3e-3}
    trainer = Trainer(make_supervised(system, **{"encoder.pooling": pooling, "engine.zero_stage": stage, **steps}))
    folder = trainer.fit()
    exported = Classifier.from_pretrained(str(folder / "model"))
    assert exported.encoder.pooling == pooling and exported.label_map.names == CLASSES
    logits = exported.classify_texts(SENTENCES)
    np.testing.assert_array_equal(logits, trainer.run.model.eval().classify_texts(SENTENCES))
    dev = read_labelled(trainer.config.dev.data, label_map=exported.label_map)
    predicted = exported.classify_texts(dev.first).argmax(axis=1)
    assert trainer.position.best_score == pytest.approx(100 * np.mean(predicted == np.array(dev.labels)))
    # Twelve sentences are learnt by heart, whatever the system: chance is 25.
    assert trainer.position.best_score > 30
    if pooling == "cls":
        theirs = AutoModelForSequenceClassification.from_pretrained(folder / "model")
        assert list(theirs.config.id2label.values()) == list(CLASSES)
        return
    card = ModelCard.load(folder / "model" / "README.md")
    assert "AutoModelForSequenceClassification" in card.text and "A text classifier started from" in card.text
    assert all(f"`{name}`" in card.text for name in CLASSES)
    # Transformers would draw a head of its own, and vectors are not what a classifier is for.
    assert (card.data.library_name, card.data.pipeline_tag) == ("fastadv", "text-classification")
    assert "parameters" in describe_plan(trainer.config, PlanOptions.parse({}))


@pytest.mark.parametrize(
    "scores, patience, last_step, best_step",
    [
        ([50, 60, 60, 55, 70], 2, 8, 4),
        ([50, 60, 60, 55, 70], 3, 10, 10),
        ([50, float("nan"), float("nan"), 60, 70], 2, 6, 2),
        ([50, 60, 70, 80, 90], 1, 10, 10),
    ],
    ids=str,
)
def test_patience_ends_the_run(make_supervised, scripted, scores, patience, last_step, best_step):
    scripted(scores)
    config = make_supervised("fine_tuning", **{"train.max_steps": 10, "dev.patience": patience})
    trainer = Trainer(config)
    trainer.fit()
    assert trainer.is_finished and trainer.position.step == last_step and trainer.position.best_step == best_step
    best = load_file(trainer.run_folder / "checkpoints" / f"best-step-{best_step}.safetensors")
    exported = load_file(trainer.run_folder / "model" / "model.safetensors")
    assert torch.equal(exported["classifier.weight"], best["head.out.weight"])
    # Asked to go on, it has nothing to do.
    scripted([])
    again = Trainer(config)
    again.fit()
    assert again.position.step == last_step


@pytest.mark.parametrize("system", ["scal", "fgm"])
def test_zero_stages_train_alike(system, make_supervised, step_lines):
    losses = []
    for stage in range(4):
        options = {"engine.zero_stage": stage, "dev.data": "none", "train.eval_every": None}
        folder = Trainer(make_supervised(system, f"stage-{stage}", **options)).fit()
        losses.append([line["loss"] for line in step_lines(folder)])
    for others in losses[1:]:
        assert others == pytest.approx(losses[0], rel=1e-5)


def test_a_clean_pass_is_made_only_where_the_loss_has_it(make_supervised):
    """z_adv alone is watched where FreeLB makes no clean pass; dev scores and the collapse watch go on."""
    trainer = Trainer(make_supervised("freelb"))
    trainer.fit()
    assert set(trainer.run.step.watch.vectors) == {"z_adv"}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"data.label_field": None, "dev.data": "none"}, "data.label_field = null: expected the column of the classes"),
        (
            {"objective": "simcse"},
            "data.label_field = .label.: expected null where objective is simcse, .* fine_tuning, adversarial_training",
        ),
        ({"encoder.pooling": "first_last"}, "encoder.pooling = first_last: expected cls or mean"),
        ({"dev.patience": 2, "dev.data": "none"}, "dev.patience = 2: expected null where dev.data is none"),
        ({"dev.patience": 2, "train.eval_every": None}, "dev.patience = 2: .* train.eval_every is null"),
    ],
    ids=str,
)
def test_contradictions_are_refused(changes, message, make_supervised):
    with pytest.raises(UserError, match=message):
        Trainer(make_supervised("fine_tuning", **changes)).fit()


def test_an_unknown_dev_label_is_named(make_supervised, tmp_path):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nit is dull\tawful\n")
    with pytest.raises(UserError, match="awful.*known are"):
        Trainer(make_supervised("fine_tuning")).fit()


def test_a_dry_run_reads_the_dev_data_as_training_does(make_supervised, tmp_path, capsys):
    config = make_supervised("scal")
    plan = describe_plan(config, PlanOptions.parse({}))
    assert f"the best on {config.dev.data}" in plan
    config.dev.data = str(tmp_path / "nowhere.tsv")
    with pytest.raises(UserError, match="nowhere.tsv"):
        describe_plan(config, PlanOptions.parse({}))
