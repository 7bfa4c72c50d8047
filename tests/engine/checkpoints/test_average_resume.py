"""A run of SMART that is stopped and gone on from is the run that never was: weights and average bit for bit."""

import pytest
import torch
from safetensors.torch import load_file

from fastadv.engine.checkpoints.checkpoint import newest_checkpoint
from tests.quick_trainer import Trainer
from tests.small_runs import SENTENCES

NUM_STEPS = 5
OPTIONS = {
    "objective": "smart",
    "data.label_field": "label",
    "encoder.pooling": "cls",
    "perturbation.method": "pgd",
    "perturbation.start": "normal",
    "perturbation.sigma": 0.02,
    "perturbation.num_steps": 1,
    "perturbation.inner_dropout": "frozen",
    "train.max_steps": NUM_STEPS,
}


@pytest.fixture
def labelled(make_config, tmp_path):
    """``labelled("name", **changes)``: sentences of five classes."""
    table = tmp_path / "labelled.tsv"
    lines = [f"{sentence}\t{'abcde'[i % 5]}" for i, sentence in enumerate(SENTENCES)]
    table.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    return lambda name, **changes: make_config(name, **{**OPTIONS, "data.train": str(table), **changes})


def states(run_folder):
    """The exported weights, and what the last checkpoint has beside DeepSpeed's files."""
    exported = load_file(run_folder / "model" / "model.safetensors")
    return exported, load_file(newest_checkpoint(run_folder) / "extra_state.safetensors")


@pytest.mark.parametrize("stage, precision", [(0, "fp32"), (1, "bf16"), (3, "fp32")], ids=str)
def test_stopped_and_resumed(labelled, step_lines, stop_after, stage, precision):
    options = {"engine.zero_stage": stage, "engine.precision": precision}
    whole = Trainer(labelled("whole", **options)).fit()
    stopped = labelled("stopped", **options)
    first = Trainer(stopped, [stop_after(2)])
    first.fit()
    assert not first.is_finished and first.position.step == 2
    early = load_file(newest_checkpoint(first.run_folder) / "extra_state.safetensors")
    Trainer(stopped).fit()
    assert step_lines(whole) == step_lines(first.run_folder)
    for found, expected in zip(states(first.run_folder), states(whole), strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    late = states(whole)[1]
    assert int(early["average_model.num_updates"]) == 2 and int(late["average_model.num_updates"]) == NUM_STEPS
    kept = [name for name in late if name.startswith("average_model.") and late[name].is_floating_point()]
    assert len(kept) > 30 and all(late[name].dtype == torch.float32 for name in kept)
    assert any(not torch.equal(early[name], late[name]) for name in kept)


def test_an_average_that_is_not_loaded_shows(labelled, step_lines, stop_after, monkeypatch):
    """Otherwise nothing here would look at it."""
    from fastadv.engine.step.average import AverageModel

    whole = Trainer(labelled("whole")).fit()
    stopped = labelled("stopped")
    Trainer(stopped, [stop_after(3)]).fit()
    monkeypatch.setattr(AverageModel, "load_state_dict", lambda self, state: None)
    resumed = Trainer(stopped).fit()
    assert step_lines(whole)[:3] == step_lines(resumed)[:3] and step_lines(whole) != step_lines(resumed)
