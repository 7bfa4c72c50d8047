"""Every system trains on a GPU, is stopped and goes on; norms, passes, dev scores and the measurements around a run."""

import json

import pytest
import torch

from tests.engine.systems import CLASS_SYSTEMS, SENTENCE_SYSTEMS
from tests.quick_trainer import Trainer
from tests.small_runs import StopAfter, lines_of

GPU = torch.device("cuda", 0)
OPTIONS = {
    "l1": {"perturbation.norm": "l1"},
    "l2, words": {"perturbation.norm": "l2", "perturbation.perturb_at": "word"},
    "separate": {"perturbation.gradient": "separate", "perturbation.perturb_special_tokens": False},
    "frozen masks": {"perturbation.inner_dropout": "frozen", "perturbation.start": "normal"},
    "views apart": {"engine.joint_views": False, "train.accumulation_steps": 2},
    "matmul": {"engine.attention": "matmul", "encoder.pooling": "first_last"},
    "batch norm": {"objective_options": {"head": "bn_mlp"}, "train.micro_batch_size": None},
    "skip": {"train.on_nonfinite": "skip", "engine.precision": "bf16"},
}


def trained(config):
    """The losses of a run's steps, all of its parameters having been on the GPU."""
    trainer = Trainer(config)
    folder = trainer.fit()
    assert {p.device for p in trainer.run.step.parameters()} == {GPU}
    losses = [line["loss"] for line in lines_of(folder) if "loss" in line]
    assert len(losses) == config.train.max_steps and torch.tensor(losses).isfinite().all()
    return folder


@pytest.mark.parametrize("system", [*SENTENCE_SYSTEMS, *CLASS_SYSTEMS])
def test_goes_on_after_a_stop(make_system, attack, system):
    config = make_system(system, **{"train.save_every": 1})
    stopped = Trainer(config, [StopAfter(2)])
    stopped.fit()
    assert stopped.position.step == 2 and not stopped.is_finished
    trained(config)


@pytest.mark.parametrize("name", OPTIONS)
def test_trains(make_config, name):
    trained(make_config(**{"train.max_steps": 2, **OPTIONS[name]}))


@pytest.mark.parametrize("system", ["scal", "a2t", "taichi"])
def test_dev_scores_choose_the_weights(make_system, attack, tmp_path, system):
    folder = trained(make_system(system, **{"dev.data": str(tmp_path / "dev.tsv"), "train.eval_every": 2}))
    assert len([line for line in lines_of(folder) if "dev/score" in line]) == 2
    assert (folder / "model" / "model.safetensors").exists()


def test_a_run_measures_before_and_after(make_config, scored_pairs, tmp_path):
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("\n".join(f"the {a} was {b} ." for a in ("film", "plot", "music", "scene") for b in "abcdef"))
    measured = {"enabled": True, "num_sentences": 16, "radii": [0.3], "num_steps": 2, "held_out": str(held_out)}
    settings = {f"evaluation.{key}": value for key, value in measured.items()}
    settings |= {"evaluation.num_probe_sentences": 0, "evaluation.typo_shares": [0.3], "dev.data": scored_pairs}
    folder = trained(make_config(**settings))
    assert json.loads((folder / "results.json").read_text())
