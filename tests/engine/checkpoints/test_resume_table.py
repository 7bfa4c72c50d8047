"""Every system, stopped and gone on from, is the run that was never stopped, to the last bit.

One table has every system, every ZeRO stage in both precisions, every place to stop, and every pair of these three. A
row is trained once, which leaves a copy of its folder where it could have been stopped, and each copy is gone on from.
"""

import json
import shutil
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from tests.engine.systems import CLASS_SYSTEMS, SENTENCE_SYSTEMS
from tests.quick_trainer import Trainer

NUM_STEPS = 6
# In the midst of the first epoch, at its end, in the midst of the second, at its end: 2 batches an epoch.
STOPS = (1, 2, 3, 4)
MODES = tuple(product((0, 1, 2, 3), ("fp32", "bf16")))
IN_PART = {"encoder.num_frozen_layers": 1, "encoder.lora_rank": 2, "optimizer.layer_lr_decay": 0.5}


def carl(**options):
    return {"objective_options": {"num_negatives": 9, **options}}


TABLE = [
    # system, what else is changed, ZeRO stage, precision, steps after which it is stopped
    ("robustsentembed", {}, 0, "fp32", (1, 2, 3, 4)),
    ("robustsentembed", {}, 1, "bf16", (1, 2, 3, 4)),
    ("robustsentembed", {"dev.data": "scored.csv", "train.eval_every": 1}, 3, "bf16", (1, 4)),
    ("robustsentembed", {"train.micro_batch_size": 3}, 0, "bf16", (1, 2)),
    ("robustsentembed", {"engine.checkpoint_activations": True}, 2, "bf16", (1, 4)),
    ("robustsentembed", IN_PART, 0, "fp32", (3,)),
    ("robustsentembed", {"engine.offload_optimizer": "cpu", "engine.offload_parameters": "cpu"}, 3, "fp32", (2,)),
    ("exact", {}, 2, "fp32", (1, 4)),
    ("adaptive", {}, 0, "fp32", (2, 3)),
    ("adaptive", {}, 3, "fp32", (1, 2)),
    ("free", {}, 0, "bf16", (3, 4)),
    ("free", {}, 2, "bf16", (2, 3)),
    ("free", {}, 3, "fp32", (3,)),
    ("rtd", {}, 1, "bf16", (2,)),
    ("uscal", {}, 1, "bf16", (1, 2)),
    ("simcse", {}, 1, "fp32", (1, 2)),
    ("fine_tuning", {"train.accumulation_steps": 2}, 1, "fp32", (3, 4)),
    ("fgsm", {}, 0, "fp32", (1,)),
    ("fgm", {}, 2, "fp32", (1, 3)),
    ("pgd", {}, 1, "fp32", (3,)),
    ("freelb", {"dev.data": "dev.tsv", "train.eval_every": 2, "dev.patience": 9}, 0, "fp32", (1, 3)),
    ("scal", {"dev.data": "dev.tsv", "train.eval_every": 2, "dev.patience": 9}, 3, "fp32", (1, 3)),
    ("smart", {}, 0, "fp32", (2, 3)),
    ("smart", {}, 1, "bf16", (2,)),
    ("smart", {}, 3, "fp32", (2,)),
    # The first epoch fills CARL's bank; from step 3 on there is a contrast.
    ("carl", {}, 0, "fp32", (1, 3, 4)),
    ("carl", carl(estimator="softmax", negatives="per_row", start_step=1), 2, "fp32", (1, 3)),
    ("carl", carl(start_step=4), 1, "bf16", (1, 3, 4)),
    ("carl", carl(start_step=3), 3, "fp32", (3, 4)),
    ("carl", {**carl(start_step=1), "train.accumulation_steps": 2}, 0, "fp32", (1, 3)),
    # Saved before the first write.
    ("carl", carl(start_step=5), 0, "fp32", (2,)),
    ("rar", {}, 0, "fp32", (2,)),
    ("rar", {}, 3, "bf16", (2, 3)),
    ("taichi", {}, 0, "fp32", (3,)),
    ("taichi", {}, 3, "fp32", (3,)),
    ("two networks", {}, 2, "bf16", (3,)),
    ("two networks", {}, 3, "fp32", (3,)),
    ("safer", {}, 0, "fp32", (3,)),
    ("safer", {}, 3, "fp32", (3,)),
    ("ada", {}, 2, "fp32", (2, 4)),
    ("ada_soft", {}, 1, "bf16", (3,)),
    ("base_adv", {}, 0, "bf16", (3,)),
    ("base_adv_soft", {}, 1, "fp32", (3,)),
    ("a2t", {}, 0, "fp32", (3,)),
    ("a2t", {}, 3, "fp32", (3,)),
    ("bat_pairwise", {}, 2, "fp32", (3,)),
    ("bat_triplet", {}, 0, "bf16", (3,)),
]  # fmt: skip


def test_the_table_has_every_system_and_every_pair():
    systems, modes, stops = set(), set(), set()
    for system, _, stage, precision, steps in TABLE:
        systems.add(system)
        modes.add((stage, precision))
        stops |= {(stage, precision, step) for step in steps}
    assert systems == {*SENTENCE_SYSTEMS, *CLASS_SYSTEMS} and modes == set(MODES)
    assert {(stage, step) for stage, _, step in stops} == set(product((0, 1, 2, 3), STOPS))
    assert {(precision, step) for _, precision, step in stops} == set(product(("fp32", "bf16"), STOPS))


class Copies(Callback):
    """Leaves ``<run>-<step>``, the run folder as it is after each of these steps."""

    def __init__(self, steps):
        self._steps = steps

    def on_save(self, trainer, step, folder):
        if step in self._steps:
            shutil.copytree(trainer.run_folder, f"{trainer.run_folder}-{step}")


def outcome(folder):
    """Every tensor and number that a finished run leaves but DeepSpeed's own, by file."""
    newest = newest_checkpoint(folder)
    found = {path.relative_to(folder): load_file(path) for path in (folder / "model").rglob("*.safetensors")}
    found |= {path.name: load_file(path) for path in newest.glob("*.safetensors")}
    return found, json.loads((newest / "trainer_state.json").read_text())["position"]


@pytest.mark.parametrize("system, changes, stage, precision, steps", TABLE, ids=str)
def test_stopped_and_gone_on_from_is_the_run_that_was_never_stopped(
    make_system, attack, tmp_path, step_lines, system, changes, stage, precision, steps
):
    changes = {name: str(tmp_path / value) if name == "dev.data" else value for name, value in changes.items()}
    given = {"engine.zero_stage": stage, "engine.precision": precision, "train.max_steps": NUM_STEPS, **changes}
    config = make_system(system, "run", **given, **{"train.save_every": 1})
    whole = Trainer(config, [Copies(steps)]).fit()
    lines, (files, position) = step_lines(whole), outcome(whole)
    losses = [line["loss"] for line in lines if "loss" in line]
    # Steps with equal losses would hide a lost position; of bfloat16's few numbers two may be equal by chance.
    assert len(losses) == NUM_STEPS and len(set(losses)) >= NUM_STEPS - (precision == "bf16")
    assert all(value is not None for line in lines for value in line.values()), "not finite"
    if system == "carl" and steps[-1] > 2:
        assert files["extra_state.safetensors"]["carl_banks"].dtype == torch.float32
    for step in steps:
        config.train.output_dir = f"{whole}-{step}"
        trainer = Trainer(config)
        stopped = trainer.fit()
        assert trainer.is_finished and step_lines(stopped) == lines
        found, found_position = outcome(stopped)
        assert found_position == position and found.keys() == files.keys()
        for name, expected in files.items():
            assert found[name].keys() == expected.keys(), name
            for key, value in expected.items():
                assert torch.equal(found[name][key].nan_to_num(), value.nan_to_num()), (name, key)


def test_an_average_that_is_not_loaded_shows(make_system, step_lines, monkeypatch):
    """Otherwise nothing here would look at it."""
    config = make_system("smart", "run", **{"train.max_steps": NUM_STEPS, "train.save_every": 1})
    whole = Trainer(config, [Copies([3])]).fit()
    monkeypatch.setattr("fastadv.engine.step.average.AverageModel.load_state_dict", lambda self, state: None)
    config.train.output_dir = f"{whole}-3"
    resumed = Trainer(config).fit()
    assert step_lines(whole)[:3] == step_lines(resumed)[:3] and step_lines(whole) != step_lines(resumed)
