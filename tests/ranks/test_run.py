"""Whole runs on two ranks: every ZeRO stage trains the same model, can be stopped, and keeps the best weights."""

import pytest
import torch
from safetensors.torch import load_file

from fastadv import Encoder
from fastadv.config.schema import to_yaml
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from fastadv.evaluation.vectors.scored_pairs import read_scored_pairs
from fastadv.evaluation.vectors.sts import pairs_spearman
from tests.ranks.cases.objectives import STAGES
from tests.ranks.workers.start import run_ranks
from tests.small_runs import OF_THE_MACHINE, lines_of

pytestmark = pytest.mark.several_processes

NAMES = [f"stage-{stage}-{precision}" for stage, precision in STAGES]


@pytest.fixture(scope="module")
def runs(make_config_in, tmp_path_factory):
    """The folder with all runs of one spawn."""
    folder = tmp_path_factory.mktemp("runs")
    # Batches of 8 and 4 of 12 sentences, two of them a step; with dropout.
    config = make_config_in(folder, **{"train.accumulation_steps": 2, "train.max_steps": 4})
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    run_ranks(2, "run_worker.py", str(folder / "config.yaml"), str(folder / "scored.csv"))
    return folder


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def steps(folder):
    lines = lines_of(folder)
    return [{k: v for k, v in line.items() if not OF_THE_MACHINE.match(k)} for line in lines if "loss" in line]


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_trains_the_same_model(runs, name):
    found, expected = steps(runs / name), steps(runs / "stage-0-fp32")
    assert [line["step"] for line in found] == [1, 2, 3, 4] and [line["epoch"] for line in found] == [0, 1, 2, 3]
    # bfloat16 has 8 bits: a relative 4e-3 in every activation. Float32 differs in the order of sums only.
    share = 0.1 if name.endswith("bf16") else 1e-4
    for line, other in zip(found, expected):
        assert line["loss"] == pytest.approx(other["loss"], rel=share)
    if name.endswith("fp32"):
        for key, value in weights(runs / "stage-0-fp32").items():
            # A step of Adam is about the rate, 1e-3, whatever the gradient; where that is rounding, so is the step. It
            # is in all of a key's bias, which adds the same to all logits of a query, and here and there elsewhere.
            if not key.endswith("key.bias"):
                close = (weights(runs / name)[key] - value).abs() <= 1e-5
                assert close.float().mean() > 0.99, key


@pytest.mark.parametrize("name", NAMES)
def test_stopped_on_one_rank_and_gone_on_from(runs, name):
    whole, stopped = runs / name, runs / f"{name}-stopped"
    assert steps(whole) == steps(stopped)
    assert all(torch.equal(value, weights(stopped)[key]) for key, value in weights(whole).items())
    tables = [load_file(newest_checkpoint(folder) / "extra_state.safetensors") for folder in (whole, stopped)]
    assert torch.equal(tables[0]["eta_table"], tables[1]["eta_table"])


# Elsewhere dev scores are those of the bfloat16 weights, and what is exported is their float32 masters.
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("fp32") or "stage-3" in name])
def test_the_exported_weights_are_those_that_scored_best(runs, name):
    folder = runs / f"{name}-best"
    lines = lines_of(folder)
    scores = [line["dev/score"] for line in lines if "dev/score" in line]
    assert len(scores) == 4
    encoder = Encoder.from_pretrained(str(folder / "model"))
    assert pairs_spearman(encoder, read_scored_pairs(runs / "scored.csv")) == pytest.approx(max(scores), abs=1e-6)
