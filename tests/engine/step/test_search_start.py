"""``perturbation.start_step``: until the search begins delta and eta are 0, from then on it searches as always."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.quick_trainer import Trainer

LATE = {"perturbation.start_step": 2, "encoder.dropout": 0.0, "train.save_every": 1}
SYSTEMS = {
    "mixed": {"objective": "robustsentembed"},
    "adaptive": {"objective": "robustsentembed", "perturbation.reuse": "adaptive"},
    "one step": {"objective": "uscal", "perturbation.method": "fgm"},
    "free": {"objective": "robustsentembed", "perturbation.method": "freelb"},
}


def norms(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["delta_norm"] for line in lines if "delta_norm" in line]


@pytest.mark.parametrize("name", SYSTEMS)
def test_nothing_moves_until_then(make_config, name):
    folder = Trainer(make_config("late", **{**LATE, **SYSTEMS[name]}), writes_report=False).fit()
    first, second, *others = norms(folder)
    assert first == second == 0 < min(others)


@pytest.mark.parametrize("name", ["mixed", "adaptive"])
def test_a_resumed_run_knows_when(make_config, name, stop_after, step_lines):
    config = {**LATE, **SYSTEMS[name], "perturbation.start_step": 3}
    whole = Trainer(make_config("whole", **config), writes_report=False).fit()
    for stop in (1, 3):
        halves = make_config(f"halves-{stop}", **config)
        Trainer(halves, callbacks=[stop_after(stop)], writes_report=False).fit()
        resumed = Trainer(halves, writes_report=False).fit()
        assert step_lines(resumed) == step_lines(whole)
        ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (resumed, whole))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_the_table_of_eta_is_left_alone_until_then(make_step, sentences):
    recorded = make_step(start_step=1)
    step, batch = recorded.step, recorded.step.encoder.pack(sentences)
    before = step.eta_table.table.clone()
    step(batch)
    step.commit()
    assert torch.equal(step.eta_table.table, before)
    step(batch)
    step.commit()
    assert not torch.equal(step.eta_table.table, before)


def test_a_run_that_ends_before_it_is_told_so(make_config, caplog):
    Trainer(make_config("never", **{**LATE, "perturbation.start_step": 4}), writes_report=False).fit()
    assert "perturbation.start_step = 4: the run ends after step 4, before its search begins" in caplog.text
