"""Runs of TaiChi: from a CSV of pairs to two networks that classify, resumed, at every stage, in bfloat16, averaged."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastadv.cli.main import main
from fastadv.config.schema import to_yaml
from fastadv.encoder import Encoder
from fastadv.encoder.weights.averaging import average_classifiers
from fastadv.encoder.classifier.classification_head import HEAD_FILE
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.engine.build import build_step
from fastadv.engine.training_data import TrainingData
from tests.quick_trainer import Trainer
from fastadv.distributed.optimizer import build_optimizer
from fastadv.errors import UserError
from fastadv.planning.costs import find_costs
from fastadv.dry_run import describe_plan
from tests.engine.systems import ATTACKED, CLASSES
from tests.small_runs import SENTENCES, lines_of


@pytest.fixture
def make(make_system):
    """``make("run", **changes)``: a run on twelve sentences of four classes, seven of them with a pair."""
    return lambda name="run", **changes: make_system("taichi", name, **changes)


def networks_of(folder):
    return [Classifier.from_pretrained(str(path)) for path in (folder / "model", folder / "model" / "second")]


def test_from_a_csv_of_pairs_to_two_networks_that_classify(make, tmp_path, capsys):
    """The clean network knows the texts by heart, the other one what an attack made of them: chance is 25."""
    config = make(**{"train.max_steps": 60, "optimizer.lr": 5e-3, "dev.data": str(tmp_path / "train.tsv")})
    config.dev.split = "dev"
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    assert main(["train", "--config", str(tmp_path / "run.yaml")]) == 0
    assert "7 of 12 training texts have a pair" in capsys.readouterr().out
    folder = tmp_path / "run"
    clean, adversarial = networks_of(folder)
    labels = np.arange(len(SENTENCES)) % 4
    assert (clean.classify_texts(SENTENCES).argmax(1) == labels).mean() > 0.9
    found = adversarial.classify_texts(list(ATTACKED.values())).argmax(1)
    assert (found == labels[list(ATTACKED)]).mean() > 0.9
    assert clean.label_map.names == adversarial.label_map.names == CLASSES
    assert clean.encoder.pooling == adversarial.encoder.pooling == "mean"
    lines = lines_of(folder)
    parts = ("clean", "adversarial", "contrast_clean", "contrast_adversarial", "kl_clean", "kl_adversarial")
    assert {name for name in lines[0] if name.startswith("loss_")} == {f"loss_{part}" for part in parts}
    assert "trained beside" in (folder / "model" / "second" / "README.md").read_text()
    # SentenceTransformer's and AutoModel's reader finds the clean network's encoder.
    vectors = Encoder.from_pretrained(str(folder / "model")).encode_texts(SENTENCES)
    np.testing.assert_array_equal(vectors, clean.encoder.encode_texts(SENTENCES))


@pytest.mark.parametrize("stage", [0, 1])
def test_bfloat16_trains_both_and_leaves_what_is_frozen(make, stage):
    changes = {"engine.precision": "bf16", "engine.zero_stage": stage, "encoder.num_frozen_layers": 1}
    config = make(**changes, **{"train.max_steps": 3})
    trainer = Trainer(config)
    folder = trainer.fit()
    before = Encoder.from_pretrained(config.encoder.model).hf.state_dict()
    for model in networks_of(folder):
        after = model.encoder.hf.state_dict()
        # In full precision, where a run's own copies were rounded.
        frozen = [name for name in after if name.startswith(("embeddings", "encoder.layer.0"))]
        assert all(torch.equal(after[name], before[name]) for name in frozen)
        assert not torch.equal(
            after["encoder.layer.1.output.dense.weight"], before["encoder.layer.1.output.dense.weight"]
        )
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert all(np.isfinite(json.loads(line)["loss"]) for line in lines if "loss" in json.loads(line))


@pytest.mark.parametrize("ablation", ["no_kl", "no_ctr", "no_adv", "clean", "adversarial"])
def test_ablations_run_and_export_what_they_have(ablation, make):
    folder = Trainer(make(objective_options={"ablation": ablation, "similarity": "neg_l2"})).fit()
    assert Classifier.from_pretrained(str(folder / "model")).label_map.names == CLASSES
    assert (folder / "model" / "second").exists() == (ablation in ("no_kl", "no_ctr"))


def test_without_what_has_no_pair_there_are_seven_rows(make):
    trainer = Trainer(make(**{"data.unpaired": "drop", "train.max_steps": None}))
    trainer.fit()
    assert len(trainer.run.data.text) == 7 and trainer.total_steps == 1


def test_both_networks_start_alike_and_are_trained_at_the_same_rates(make):
    config = make(**{"optimizer.layer_lr_decay": 0.5})
    encoder = Encoder.from_pretrained(config.encoder.model, "mean")
    data = TrainingData(config, encoder, progress=False)
    step = build_step(config, encoder, data.text, data.label_map)
    rates = {
        id(p): group["lr"] for group in build_optimizer(step, config.optimizer).param_groups for p in group["params"]
    }
    pairs = [*zip(step.encoder.parameters(), step.second.parameters(), strict=True)]
    pairs += zip(step.objective.classifier.parameters(), step.objective.second_classifier.parameters(), strict=True)
    for one, other in pairs:
        assert one is not other and torch.equal(one, other) and rates[id(one)] == rates[id(other)]
    assert len(set(rates.values())) == 4


def test_the_ends_of_the_average_are_the_two_networks(make, tmp_path):
    """w/o KL they are the paper's CLEAN and ADVERSARIAL."""
    folder = Trainer(make(objective_options={"ablation": "no_kl"})).fit()
    ends = [folder / "model", folder / "model" / "second"]
    ones, half, zeros = average_classifiers(*map(str, ends), [1.0, 0.5, 0.0], tmp_path / "average")
    logits = {
        path: Classifier.from_pretrained(str(path)).classify_texts(SENTENCES) for path in (*ends, ones, half, zeros)
    }
    np.testing.assert_array_equal(logits[ones], logits[ends[0]])
    np.testing.assert_array_equal(logits[zeros], logits[ends[1]])
    assert all(np.abs(logits[half] - logits[end]).max() > 1e-4 for end in ends)


def test_a_dry_run_counts_both_networks_and_reads_the_pairs(make, tmp_path):
    config = make()
    plan = describe_plan(config)
    assert "second encoder" in plan and "pairs       7 of" in plan
    one = find_costs(make(objective_options={"ablation": "no_adv"}))
    two = find_costs(config)
    assert two.parameters.total == 2 * one.parameters.total
    config.data.pairs = str(tmp_path / "nowhere.csv")
    with pytest.raises(UserError, match="nowhere.csv cannot be read: No such file"):
        describe_plan(config)


def test_a_run_without_pairs_is_refused_in_one_line(make):
    with pytest.raises(UserError, match=r"^data.pairs = null: expected a CSV of `fastadv attack --write-pairs` where"):
        Trainer(make(**{"data.pairs": None})).fit()
