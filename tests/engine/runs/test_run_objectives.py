"""Whole runs of USCAL and of replaced token detection: what is logged, saved and exported."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fastadv import UserError
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from tests.quick_trainer import Trainer
from tests.small_runs import lines_of

RTD = {"objective_options": {"rtd_generator": "unigram", "weight_rtd": 0.5}}
USCAL = {"objective": "uscal", "perturbation.method": "fgm"}


def test_generator_and_discriminator_stay_out_of_the_export(make_config, step_lines):
    plain = Trainer(make_config("plain")).fit()
    folder = Trainer(make_config("rtd", **RTD)).fit()
    names, plain_names = (set(load_file(f / "model" / "model.safetensors")) for f in (folder, plain))
    assert names == plain_names
    assert all({"loss_rtd", "rtd_replaced_share"} <= line.keys() for line in step_lines(folder))
    assert not any("rtd" in key for line in step_lines(plain) for key in line)
    state = torch.load(
        newest_checkpoint(folder) / "engine" / "mp_rank_00_model_states.pt", map_location="cpu", weights_only=False
    )
    saved = state["module"]
    assert "detection.head.weight" in saved and any(name.startswith("detection.discriminator.hf.") for name in saved)
    assert not any("generator" in name for name in saved)


def test_a_run_trains_the_discriminator(make_config):
    config = make_config("rtd", **RTD)
    trainer = Trainer(config)
    trainer.fit()
    step = trainer.run.step
    ours, theirs = dict(step.encoder.named_parameters()), dict(step.detection.discriminator.named_parameters())
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_generator_of_another_vocabulary_ends_the_run_before_it_begins(make_config, tmp_path):
    from transformers import BertConfig, BertTokenizerFast

    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    BertConfig(vocab_size=6).save_pretrained(folder)
    config = make_config("refused", objective_options={"rtd_generator": str(folder)})
    with pytest.raises(UserError, match="vocabulary of 6 tokens"):
        Trainer(config).fit()
    assert not (tmp_path / "refused").exists()


def test_detection_refuses_word_perturbations(make_config):
    config = make_config("refused", **RTD, **{"perturbation.perturb_at": "word"})
    with pytest.raises(UserError, match="perturb_at = word: expected embedding"):
        Trainer(config).fit()


def test_triplets_of_a_table_reach_the_loss(make_config, tmp_path, step_lines):
    rows = ["it is dull,the plot is slow,a sharp plot", "a good film,a great movie,a bad film", "never,not ever,always"]
    table = tmp_path / "triplets.csv"
    table.write_text("\n".join(["sent0,sent1,hard_neg", *rows, *rows[:1]]) + "\n", encoding="utf-8")
    columns = {"data.train": str(table), "data.field": "sent0", "train.max_steps": 1, "encoder.dropout": 0.0}
    losses = {}
    for name, given in {
        "triplets": {"data.positive_field": "sent1", "data.negative_field": "hard_neg"},
        "pairs": {"data.positive_field": "sent1"},
        "sentences": {},
    }.items():
        folder = Trainer(make_config(name, objective="simcse", **columns, **given)).fit()
        losses[name] = step_lines(folder)[0]["loss"]
    # Without dropout a sentence is its own perfect positive; hard negatives only add to a denominator.
    assert losses["sentences"] < losses["pairs"] < losses["triplets"]


def test_the_card_says_which_attack(make_config):
    folder = Trainer(make_config("uscal", **USCAL)).fit()
    card = (folder / "model" / "README.md").read_text()
    assert "fgm, one step to the l2 ball's surface" in card
    lines = lines_of(folder)
    assert all(line["inner_gain"] > 0 and line["delta_rms"] > 0 for line in lines if "loss" in line)
