"""What is not finite in a sentence of one rank ends, or is skipped on, both; and both name the sentence."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

from fastadv.config.schema import to_yaml
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from tests.ranks.cases.objectives import STAGES
from tests.ranks.workers.guards_worker import WHOLE_MODES
from tests.ranks.workers.start import run_ranks

pytestmark = pytest.mark.several_processes

MODES = [f"{stage}-{precision}" for stage, precision in ((0, "bf16"), *STAGES)]
NAMED = {
    "z": "NonFiniteUpdate: step 1: the loss is nan; .* not finite: z of 1 of 8 sentences (rows 5); row 5: ",
    "z+": "NonFiniteGradient: step 1: .* not finite before the search: z+ of 1 of 8 sentences (rows 5); row 5: ",
    "z_adv": "NonFiniteUpdate: step 1: the loss is nan; .* not finite: z_adv of 1 of 8 sentences (rows 5); row 5: ",
    "slope": "NonFiniteUpdate: step 1: the gradient norm is .* z of 1 of 8 sentences (rows 5); row 5: ",
    "loss": "NonFiniteUpdate: step 1: the loss is nan; .* no single sentence: all vectors are finite",
    "collapse": "Collapsed: step 1: vectors of different sentences are nearly alike",
    **{mode: "NonFiniteUpdate: step 1: the loss is nan; .* not finite: z_adv of 1 of 8 .*(rows 5)" for mode in MODES},
}


@pytest.fixture(scope="module")
def runs(make_config_in, tmp_path_factory):
    """(folder with all runs of one spawn, what each rank says): 8 sentences a batch, a fault in rank 1's second."""
    folder = tmp_path_factory.mktemp("runs")
    config = make_config_in(
        folder,
        **{
            "objective": "tests.ranks.cases.planted:Planted",
            "objective_options": {"row": 1, "rank": 1},
            "data.max_sentences": 8,
            "train.max_steps": 2,
            "encoder.dropout": 0.0,
            "perturbation.sigma": 0.0,
        },
    )
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    run_ranks(2, "guards_worker.py", str(folder / "config.yaml"), timeout_s=600)
    return folder, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("fault", NAMED)
def test_both_ranks_name_step_and_sentence(runs, fault):
    first, second = (found["messages"][fault] for found in runs[1])
    assert first == second
    pattern = NAMED[fault].replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")
    assert re.match(pattern, first), first


@pytest.mark.parametrize("mode, fault", [*((mode, "slope") for mode in MODES), *((m, "z_adv") for m in WHOLE_MODES)])
def test_what_is_skipped_might_never_have_been_there(runs, mode, fault):
    folder, found = runs
    assert [rank["num_skipped"][f"{mode}-{fault}"] for rank in found] == [1, 1]
    outcomes = []
    for name in (f"skip-{mode}-{fault}", f"twin-{mode}"):
        state = load_file(newest_checkpoint(folder / name) / "extra_state.safetensors")
        outcomes.append({**load_file(folder / name / "model" / "model.safetensors"), **state})
    assert [name for name, value in outcomes[1].items() if not torch.equal(value, outcomes[0][name])] == []
