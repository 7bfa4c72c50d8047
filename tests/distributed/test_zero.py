"""DeepSpeed's engine does what plain torch does, and refuses a NaN."""

import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from fastadv.config.schema import Config
from fastadv.distributed import optimizer, processes, zero
from fastadv.errors import UserError

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MODES = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]
INPUTS = torch.linspace(-1, 1, 5 * 12).reshape(5, 12).cos()


class Toy(nn.Module):
    """A scalar loss that is NaN, or has an infinite gradient, on demand."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.norm = nn.Linear(12, 12), nn.LayerNorm(12)
        self.fault = "none"

    def forward(self, x):
        x = self.norm(self.linear(x.to(self.linear.weight.dtype))).float()
        loss = (x - 0.5).pow(2).mean() * 3
        if self.fault == "loss":
            return loss * math.nan
        if self.fault == "gradient":
            # The square root's slope at 0 is infinite, its value is not.
            return loss + (x.flatten()[0] - x.flatten()[0].detach()).abs().sqrt()
        return loss


def make_config(stage, precision, **optimizer):
    config = Config()
    config.engine.zero_stage, config.engine.precision = stage, precision
    config.train.batch_size = len(INPUTS)
    settings = {"lr": 1e-2, "weight_decay": 0.1, "warmup_ratio": 0.3, "max_grad_norm": 0.5, **optimizer}
    for name, value in settings.items():
        setattr(config.optimizer, name, value)
    return config


def same(weights, others):
    return all(torch.equal(value, others[name]) for name, value in weights.items())


def optimizer_state(engine):
    """Every tensor that AdamW keeps, copied: moments and step counts of all parameters or of ZeRO's pieces of them."""
    optimizer = engine.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    values = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert len(values) >= 2
    return [value.clone() for value in values]


def make_engine(config, total_steps=6):
    processes.init_distributed()
    module = Toy()
    return module, zero.initialise(module, config, total_steps)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("max_grad_norm", [0.5, None])
def test_six_steps_equal_plain_torch(stage, max_grad_norm):
    config = make_config(stage, "fp32", max_grad_norm=max_grad_norm)
    module, engine = make_engine(config)
    plain = Toy()
    decayed = {"params": [plain.linear.weight], "weight_decay": 0.1}
    others = {"params": [plain.linear.bias, plain.norm.weight, plain.norm.bias], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([decayed, others], lr=1e-2)
    # ceil(0.3 * 6) = 2 steps of warm-up, then 4 down to zero.
    for step, share in enumerate([0, 1 / 2, 1, 3 / 4, 2 / 4, 1 / 4], start=1):
        assert engine.get_lr()[0] == pytest.approx(1e-2 * share, abs=1e-15)
        value, norm = zero.update(engine, engine(INPUTS), max_grad_norm, step)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * share
        optimizer.zero_grad()
        loss = plain(INPUTS)
        loss.backward()
        limit = math.inf if max_grad_norm is None else max_grad_norm
        expected_norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), limit)
        optimizer.step()
        assert value == pytest.approx(loss.item(), rel=1e-5)
        assert norm == pytest.approx(expected_norm.item(), rel=1e-4)
    for got, expected in zip(module.parameters(), plain.parameters()):
        # Adam divides by the root of the second moment, so a relative error of 1e-6 in a gradient moves a weight by
        # about lr * 1e-6 a step; clipping adds DeepSpeed's own 1e-6 in the denominator.
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert engine.get_lr()[0] == 0


@pytest.mark.parametrize("fault", ["loss", "gradient"])
@pytest.mark.parametrize("stage, precision", MODES)
def test_a_step_that_is_not_finite_is_named_and_touches_nothing(stage, precision, fault):
    module, engine = make_engine(make_config(stage, precision, warmup_ratio=0.0))
    twin, twin_engine = make_engine(make_config(stage, precision, warmup_ratio=0.0))
    zero.update(engine, engine(INPUTS), 0.5, 1)
    zero.update(twin_engine, twin_engine(INPUTS), 0.5, 1)
    before, state = zero.full_precision_weights(module), optimizer_state(engine)
    module.fault = fault
    what = "loss" if fault == "loss" else "gradient norm"
    with pytest.raises(zero.NonFiniteUpdate, match=f"step 2: the {what} is") as caught:
        zero.update(engine, engine(INPUTS), 0.5, 2)
    assert caught.value.what == what
    assert same(zero.full_precision_weights(module), before)
    assert all(map(torch.equal, optimizer_state(engine), state))
    # Moments and schedule are untouched too: the next step is the one of a run that never saw the fault.
    module.fault = "none"
    zero.update(engine, engine(INPUTS), 0.5, 2)
    zero.update(twin_engine, twin_engine(INPUTS), 0.5, 2)
    assert same(zero.full_precision_weights(module), zero.full_precision_weights(twin))
    assert engine.get_lr() == twin_engine.get_lr()


@pytest.mark.parametrize("fault", ["loss", "gradient"])
@pytest.mark.parametrize("stage, precision", MODES)
def test_a_fault_takes_its_batch_or_its_step_out_of_accumulation(stage, precision, fault):
    """A loss: the next batch takes the place of this one. A gradient, seen at the end: a new step begins."""
    config = make_config(stage, precision, warmup_ratio=0.0)
    config.train.accumulation_steps = 2
    module, engine = make_engine(config)
    twin, twin_engine = make_engine(config)
    module.fault = "none" if fault == "loss" else fault
    assert zero.update(engine, engine(INPUTS), 0.5, 1)[1] is None
    module.fault = fault
    with pytest.raises(zero.NonFiniteUpdate):
        zero.update(engine, engine(2 * INPUTS), 0.5, 1)
    module.fault = "none"
    rest = [3 * INPUTS] if fault == "loss" else [INPUTS, 3 * INPUTS]
    norms = [zero.update(engine, engine(inputs), 0.5, 1)[1] for inputs in rest]
    twin_norms = [zero.update(twin_engine, twin_engine(inputs), 0.5, 1)[1] for inputs in (INPUTS, 3 * INPUTS)]
    assert norms[-1] == twin_norms[-1] is not None
    assert same(zero.full_precision_weights(module), zero.full_precision_weights(twin))
    assert all(map(torch.equal, optimizer_state(engine), optimizer_state(twin_engine)))
    assert engine.get_lr() == twin_engine.get_lr()


@pytest.mark.parametrize("stage, precision", MODES)
def test_a_forward_that_is_thrown_away_changes_nothing(stage, precision):
    module, engine = make_engine(make_config(stage, precision))
    twin, twin_engine = make_engine(make_config(stage, precision))
    engine(INPUTS)
    for step in (1, 2):
        zero.update(engine, engine(INPUTS), 0.5, step)
        zero.update(twin_engine, twin_engine(INPUTS), 0.5, step)
    assert same(zero.full_precision_weights(module), zero.full_precision_weights(twin))


def test_bfloat16_exports_the_float32_master_weights():
    module, engine = make_engine(make_config(1, "bf16", warmup_ratio=0.0, lr=1e-4))
    for step in (1, 2, 3):
        zero.update(engine, engine(INPUTS), 0.5, step)
    exact = zero.full_precision_weights(module)
    for name, value in module.state_dict().items():
        assert value.dtype == torch.bfloat16 and exact[name].dtype == torch.float32
        assert torch.equal(exact[name].bfloat16(), value)
    # Three steps of 1e-4 are below bfloat16's resolution at 0.1-1 (1e-3 to 4e-3), so the copies must differ.
    assert not torch.equal(exact["linear.weight"], module.linear.weight.float())


def test_weight_decay_spares_biases_and_layer_norms():
    groups = optimizer.build_optimizer(Toy(), make_config(0, "fp32").optimizer).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.1), (3, 0.0)]


@pytest.mark.parametrize("set_variables, named", [({"MASTER_PORT": None}, "MASTER_PORT"), ({"RANK": None}, "RANK")])
def test_what_a_launcher_set_is_checked(monkeypatch, set_variables, named):
    for name, value in {**dict.fromkeys(VARIABLES, "0"), "WORLD_SIZE": "1", **set_variables}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=named):
        processes.init_distributed()


def test_a_bare_process_starts_and_leaves_its_group_in_silence():
    code = """if True:
        import torch
        from fastadv.distributed import processes
        processes.init_distributed()
        processes.init_distributed()
        assert torch.distributed.get_world_size() == 1
        processes.shutdown()
        assert not torch.distributed.is_initialized()
    """
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
