"""What a resumed run starts with is, piece by piece and bit by bit, what the run that saved it ended with."""

import copy
import json
from dataclasses import asdict

import pytest
import torch
from deepspeed.utils import safe_get_full_fp32_param

from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints.checkpoint import require_same_config
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from fastadv.errors import UserError
from fastadv.launch.load import load_config
from tests.quick_trainer import Trainer


def state_of(trainer):
    """Everything that a step depends on, as DeepSpeed, torch and the parts themselves tell it; not as it is saved."""
    engine, step = trainer.engine, trainer.run.step
    whole = (lambda p: p) if not engine.zero_optimization() else safe_get_full_fp32_param
    optimizer = engine.optimizer if not engine.zero_optimization() else engine.optimizer.optimizer
    state = {
        "weights": {name: whole(p) for name, p in engine.module.named_parameters()},
        "optimizer": {str(i): held for i, held in enumerate(optimizer.state.values())},
        "optimizer steps": [float(held["step"]) for held in optimizer.state.values()],
        "schedule": {k: v for k, v in engine.lr_scheduler.state_dict().items() if k != "lr_lambdas"},
        "rates": [group["lr"] for group in optimizer.param_groups],
        "generator": torch.get_rng_state(),
        "position": vars(trainer.position),
        "V": step.eta_table.state_dict() if step.eta_table is not None else None,
        "adaptive": step.search.adaptive.state_dict(),
        "best weights": trainer.selection.load(trainer.position.best_step),
    }
    return copied(state)


def copied(state):
    if isinstance(state, dict):
        return {name: copied(value) for name, value in state.items()}
    return state.detach().clone() if torch.is_tensor(state) else state


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return torch.equal(one, other) if torch.is_tensor(one) else one == other


class AtTheEnd(Callback):
    def on_step(self, trainer, step, metrics):
        if step == 3:
            trainer.request_stop()

    def on_save(self, trainer, step, folder):
        self.state = state_of(trainer)


class AtTheStart(Trainer):
    def _train(self):
        self.state = state_of(self)
        super()._train()


@pytest.mark.parametrize("stage, precision", [(0, "fp32"), (0, "bf16"), (1, "bf16"), (2, "fp32"), (3, "fp32")], ids=str)
def test_every_piece_of_the_state_is_restored(make_config, scored_pairs, stage, precision):
    options = {
        "engine.zero_stage": stage,
        "engine.precision": precision,
        "dev.data": scored_pairs,
        "train.eval_every": 1,
        "perturbation.reuse": "adaptive",
        "perturbation.num_steps": 3,
        "perturbation.probe_every": 3,
        "perturbation.agreement": 0.2,
    }
    saved = AtTheEnd()
    folder = Trainer(make_config(**options), [saved]).fit()
    # What a new process would have instead: other numbers in every piece.
    torch.manual_seed(99)
    fresh = AtTheStart(make_config("fresh", **{**options, "dev.data": "none", "train.max_steps": 1}))
    resumed = AtTheStart(make_config(**options))
    resumed.fit()
    for name, expected in saved.state.items():
        assert same(resumed.state[name], expected), name
    assert resumed.state["position"]["step"] == 3 and resumed.state["position"]["epoch"] == 1
    assert resumed.state["position"]["batch"] == 1 and resumed.state["position"]["best_step"] is not None
    gradients, to_probe = resumed.state["adaptive"]["adaptive_reuse"].tolist()
    assert gradients < 3 and to_probe == 0
    assert set(resumed.state["optimizer steps"]) == {3.0}
    assert any(bool(moments["exp_avg"].any()) for moments in resumed.state["optimizer"].values())
    assert fresh.position.step == 0 and newest_checkpoint(folder).name == "step-4"
    position = json.loads((newest_checkpoint(folder) / "trainer_state.json").read_text())["position"]
    assert position["best_score"] == saved.state["position"]["best_score"]


def test_a_field_of_later_versions_counts_as_its_default(tmp_path):
    now = asdict(load_config(None, []))
    saved = copy.deepcopy(now)
    del saved["perturbation"]["text"], saved["objective_options"]["text_positive"]
    require_same_config(tmp_path, saved, now)
    now["perturbation"]["text"]["min_letters"] = 3
    with pytest.raises(UserError, match=r"perturbation.text.min_letters: 3, but .* was made with 4"):
        require_same_config(tmp_path, saved, now)
