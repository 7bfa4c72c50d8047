"""Runs of the text-level systems: what they learn and export at every stage, and what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastadv.cli.main import main
from fastadv.config.schema import to_yaml
from fastadv.data.variants.text_pairs import write_pairs
from fastadv.data.variants.word_sets import WordSets
from fastadv.encoder.classifier.text_classifier import Classifier
from tests.quick_trainer import Trainer
from fastadv.errors import UserError
from fastadv.planning.costs import find_costs
from fastadv.dry_run import describe_plan
from tests.engine.systems import ATTACKED, CLASSES
from tests.small_runs import SENTENCES, lines_of

SYSTEMS = ("safer", "ada", "ada_soft", "base_adv", "base_adv_soft", "a2t", "bat_pairwise", "bat_triplet")


@pytest.fixture
def make(make_system, attack):
    """A run on twelve texts, or BAT's on twelve pairs, of four classes."""
    return make_system


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_export_is_what_was_trained(system, make):
    """Twelve texts are learnt by heart, or what an attack made of them: chance is 25."""
    trainer = Trainer(make(system, **{"train.max_steps": 60, "optimizer.lr": 4e-3}))
    folder = trainer.fit()
    exported = Classifier.from_pretrained(str(folder / "model"))
    assert exported.label_map.names == CLASSES
    texts, labels, pairs = SENTENCES, np.arange(len(SENTENCES)) % 4, None
    if system.startswith("bat"):
        pairs = SENTENCES[::-1]
    logits = exported.classify_texts(texts, pairs)
    np.testing.assert_array_equal(logits, trainer.run.model.eval().classify_texts(texts, pairs))
    if system == "base_adv":
        logits, labels = exported.classify_texts(list(ATTACKED.values())), labels[list(ATTACKED)]
    if not system.endswith("_soft"):
        assert (logits.argmax(1) == labels).mean() > 0.7
    # The victim is no part of the run.
    state = load_file(folder / "model" / "model.safetensors")
    assert not any("victim" in name for name in state)


def test_soft_targets_are_the_victims(make, victim):
    """What is trained on attacked texts alone comes to say of them what the victim says."""
    config = make("base_adv_soft", **{"train.max_steps": 80, "optimizer.lr": 4e-3, "data.unpaired": "drop"})
    folder = Trainer(config).fit()
    texts = list(ATTACKED.values())
    ours, theirs = (
        torch.tensor(Classifier.from_pretrained(model).classify_texts(texts)).softmax(1)
        for model in (str(folder / "model"), victim)
    )
    assert (ours - theirs).abs().max() < 0.1
    assert config.train.max_steps == lines_of(folder)[-1]["step"]


@pytest.mark.parametrize("system", ["bat_triplet", "ada_soft", "taichi"])
def test_stages_and_pieces_train_alike(system, make, step_lines):
    losses = {}
    for name, changes in {
        **{f"stage {stage}": {"engine.zero_stage": stage} for stage in range(4)},
        "in pieces": {"train.micro_batch_size": 3},
    }.items():
        folder = Trainer(make(system, name, **changes, **{"encoder.dropout": 0.0})).fit()
        losses[name] = [line["loss"] for line in step_lines(folder)]
    for name, others in losses.items():
        assert others == pytest.approx(losses["stage 0"], rel=1e-5), name


def test_the_first_epoch_of_a2t_is_clean(make, attack, step_lines):
    """Two batches an epoch, and an attack at the start of the second and the third."""
    lines = step_lines(Trainer(make("a2t", **{"train.max_steps": 6})).fit())
    assert [("loss_adversarial" in line) for line in lines] == [False, False, True, True, True, True]
    assert len(attack) == 2 and sorted(attack[0]) == sorted(attack[1]) == list(range(12)) and attack[0] != attack[1]


@pytest.mark.parametrize(
    ("system", "changes", "message"),
    [
        ("bat_pairwise", {"objective_options": {"obstinate_labels": ["duplicate"]}}, "'duplicate' is none of the cl"),
        ("safer", {"data.word_sets": None}, "data.word_sets = null: expected a JSON file"),
        ("a2t", {"data.pairs": "PAIRS"}, "data.pairs = .*: expected null where objective is a2t"),
        ("ada", {"data.pairs": None}, "data.pairs = null: expected a CSV"),
        ("ada", {"objective_options": {"targets": "soft"}}, "objective_options.victim = null: expected a trained"),
    ],
)
def test_contradictions_are_refused(system, changes, message, make, tmp_path):
    if changes.get("data.pairs") == "PAIRS":
        changes = {"data.pairs": str(tmp_path / "pairs.csv")}
    with pytest.raises(UserError, match=message):
        Trainer(make(system, **changes)).fit()


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_victim_that_cannot_serve_is_refused_before_training(is_dry, make, tmp_path, capsys):
    config = make("ada_soft")
    config.objective_options["victim"] = "demo:minilm"
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    capsys.readouterr()
    assert main(["train", "--config", str(tmp_path / "run.yaml"), *(["--dry_run"] if is_dry else [])]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "objective_options.victim = demo:minilm: its vocabulary of 30522" in said


def test_a_dry_run_reads_what_training_reads(make, tmp_path):
    plan = describe_plan(make("safer"))
    assert "word sets   5 words with synonyms, 5 with antonyms" in plan and "other texts" in plan
    config = make("ada_soft")
    plan, costs = describe_plan(config), find_costs(config)
    assert "victim, frozen" in plan and costs.victim.parameters.total == costs.encoder.parameters.total
    for key in ("word_sets", "pairs"):
        config = make("safer" if key == "word_sets" else "ada", **{f"data.{key}": str(tmp_path / "nowhere")})
        with pytest.raises(UserError, match="nowhere"):
            describe_plan(config)
