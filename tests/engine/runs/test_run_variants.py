"""Runs on other texts of their sentences, and of two networks: in pieces, attacked at epochs' starts, exported."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastadv.launch.checks_objective import check_objective
from fastadv.data.variants.text_pairs import write_pairs
from fastadv.data.variants.word_sets import WordSets
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.engine.build import build_step
from fastadv.engine.training_data import TrainingData
from tests.quick_trainer import Trainer
from fastadv.errors import UserError
from fastadv.objectives.base import resolve_objective
from fastadv.objectives.needs import EpochAttack
from tests.engine.systems import CLASSES
from tests.small_runs import SENTENCES
from tests.engine.runs.toy_variants import Found

TOYS = "tests.engine.runs.toy_variants"
FOUND = f"{TOYS}:Found"


@pytest.fixture
def make(make_system):
    """``make("run", **changes)``: a run of `TwoNetworks` on twelve sentences of four classes."""
    return lambda name="run", **changes: make_system("two networks", name, **changes)


def build(config):
    encoder = Encoder.from_pretrained(config.encoder.model, "cls", dropout=config.encoder.dropout)
    data = TrainingData(config, encoder, progress=False)
    step = build_step(config, encoder, data.text, data.label_map)
    data.use_variants(step.objective, encoder)
    return step, data


def test_both_networks_are_exported(make):
    trainer = Trainer(make(**{"train.max_steps": 6, "optimizer.lr": 3e-3}))
    folder = trainer.fit()
    first = Classifier.from_pretrained(str(folder / "model"))
    second = Classifier.from_pretrained(str(folder / "model" / "second"))
    logits = [model.classify_texts(SENTENCES) for model in (first, second)]
    trained = Classifier(trainer.run.step.second, trainer.run.step.objective.second_classifier, first.label_map).eval()
    np.testing.assert_array_equal(logits[0], trainer.run.model.eval().classify_texts(SENTENCES))
    np.testing.assert_array_equal(logits[1], trained.classify_texts(SENTENCES))
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    assert second.label_map.names == CLASSES


def test_one_network_alone_has_no_second(make):
    folder = Trainer(make(**{"objective_options": {"second": False}, "train.max_steps": 2})).fit()
    assert not (folder / "model" / "second").exists()


@pytest.mark.parametrize("second, tokens", [(False, False), (True, False), (True, True)])
def test_pieces_give_what_the_whole_batch_gives(make, second, tokens):
    config = make(**{"objective_options": {"second": second, "tokens": tokens}, "encoder.dropout": 0.0})
    found = []
    for size in (None, 3):
        config.train.micro_batch_size = size
        step, data = build(config)
        step.double().train()
        batch = next(data.batches(0, 0))
        loss = step(batch)
        loss.backward()
        found.append((loss.detach(), {name: p.grad for name, p in step.named_parameters()}))
    (loss, grads), (loss_of_pieces, grads_of_pieces) = found
    assert loss_of_pieces.item() == pytest.approx(loss.item(), abs=1e-12)
    names = {name for name, grad in grads.items() if grad is not None}
    assert {name.split(".")[0] for name in names} == {"encoder", "objective", *(["second"] if second else [])}
    for name in names:
        torch.testing.assert_close(grads_of_pieces[name], grads[name], rtol=1e-10, atol=1e-12)


def test_a_missing_text_has_no_say(make):
    step, data = build(make(**{"encoder.dropout": 0.0, "objective_options": {"second": False}}))
    step.double().train()
    batch = next(batch for batch in data.batches(0, 0) if not batch.variants["obstinate"].is_present.all())
    losses = []
    for is_present in (batch.variants["obstinate"].is_present, torch.zeros(batch.num_sentences, dtype=torch.bool)):
        variants = {**batch.variants, "obstinate": replace(batch.variants["obstinate"], is_present=is_present)}
        losses.append(step(replace(batch, variants=variants)).item())
    assert losses[0] != losses[1] and np.isfinite(losses).all()


def test_epochs_begin_with_an_attack_and_go_on_with_its_texts(make, attack, stop_after):
    config = make(**{"objective": f"{TOYS}:Attacked", "data.word_sets": None, "train.max_steps": 6})
    Trainer(config, callbacks=[stop_after(3)]).fit()
    # Two batches an epoch: none in the first, and one at the start of the second, which keeps its texts.
    assert len(attack) == 1
    folder = Trainer(config).fit()
    assert len(attack) == 2 and attack[0] != attack[1]
    assert sorted(path.name for path in (folder / "adversarial").iterdir()) == ["epoch-1.csv", "epoch-2.csv"]


def test_a_run_cannot_go_on_without_its_epochs_texts(make, attack, stop_after):
    changes = {"objective": f"{TOYS}:Attacked", "data.word_sets": None, "train.max_steps": 6}
    config = make(**changes, **{"train.save_every": 1})
    folder = Trainer(config, callbacks=[stop_after(3)]).fit()
    (folder / "adversarial" / "epoch-1.csv").unlink()
    with pytest.raises(UserError, match=r"epoch-1.csv is not there, with the texts of the epoch"):
        Trainer(config).fit()


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"data.word_sets": None},
            r"data.word_sets = null: expected a JSON file of `fastadv word-sets` where objective",
        ),
        ({"data.pairs": "p.csv"}, r"data.pairs = \"p.csv\": expected null where objective is tests"),
        ({"objective": FOUND, "data.word_sets": None}, r"data.pairs = null: expected a CSV of `fastadv attack"),
        ({"objective": "fine_tuning"}, r"data.word_sets = .*: expected null where objective is fine_tuning"),
    ],
)
def test_texts_and_objective_must_fit(make, changes, message):
    config = make(**changes)
    with pytest.raises(UserError, match=message):
        check_objective(config, resolve_objective(config.objective))


def test_pairs_train(make, tmp_path):
    pairs = {(SENTENCES[i],): ("it is so dull",) for i in (0, 4, 7)}
    write_pairs(tmp_path / "pairs.csv", pairs, dict.fromkeys(pairs, "bad"))
    changes = {"objective": FOUND, "data.word_sets": None, "data.pairs": str(tmp_path / "pairs.csv")}
    assert (Trainer(make(**changes, **{"train.max_steps": 2})).fit() / "model" / "model.safetensors").exists()
