"""A search with state of its own, outside the package, goes through train, compile, resume and dry run."""

import sys

import pytest
import safetensors.torch
import torch

from fastadv import Adversary, PerturbationConfig, Trainer, UserError, load_config
from fastadv.dry_run import describe_plan
from fastadv.engine.checkpoints.checkpoint import EXTRA_STATE
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from fastadv.perturbation.chains import MixedSearch
from fastadv.perturbation.compiled import CompiledAdversary

SEARCH = '''
from typing import NamedTuple

import torch

from fastadv import Search
from fastadv_kernels import direction, project


class Heavy(NamedTuple):
    delta: torch.Tensor
    velocity: torch.Tensor
    num_moves: torch.Tensor


class Momentum(Search):
    """Steps along a running mean of gradients; counts the optimizer steps that it has served."""

    def __init__(self, plan):
        super().__init__(plan)
        self.num_served = 0

    def start(self, x, around, eta):
        zero = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        return Heavy(zero, zero, zero.new_zeros(()))

    def move(self, state, step, grads, around):
        batch, sizes = around.batch, around.sizes
        velocity = 0.9 * state.velocity + direction(grads.delta[0], "l2", batch.cu_seqlens)
        along = sizes.alpha[batch.token_sentence, None] * direction(velocity, "l2", batch.cu_seqlens)
        delta = project(state.delta + along, sizes.epsilon, "l2", batch.cu_seqlens)
        return Heavy(delta, velocity, state.num_moves + 1)

    def kind_of_step(self, step):
        return 1

    def delta(self, state):
        return state.delta

    def commit(self):
        self.num_served += 1

    def state_dict(self):
        return {"momentum_num_served": torch.tensor(self.num_served)}

    def load_state_dict(self, state):
        self.num_served = int(state["momentum_num_served"])
'''


@pytest.fixture
def own_search(tmp_path, monkeypatch):
    """The name of `Momentum`, in a module that only this test's path has."""
    (tmp_path / "own_search.py").write_text(SEARCH, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_search", raising=False)
    return "own_search:Momentum"


@pytest.fixture
def options(own_search):
    return {"perturbation.search": own_search, "perturbation.norm": "l2", "perturbation.num_steps": 3}


def test_trains_and_goes_on_where_it_was_stopped(make_config, options, step_lines, stop_after):
    whole = Trainer(make_config("whole", **options))
    whole.fit()
    part = make_config("part", **options)
    Trainer(part, callbacks=[stop_after(2)]).fit()
    again = Trainer(part)
    again.fit()
    assert step_lines(whole.run_folder) == step_lines(again.run_folder)
    assert again.position.step == 4
    lines = step_lines(whole.run_folder)
    assert all(line["inner_gain"] > 0 and line["delta_norm"] > 0 for line in lines if "loss" in line)


def test_every_field_of_the_state_is_padded_compiled_and_cut(make_step, sentences, own_search):
    import own_search as module

    step = make_step(norm="l2", num_steps=3, sigma=0.0).step
    search = module.Momentum(step.plan)
    batch = step.encoder.pack(sentences)
    x = step.encoder.embed(batch, dropout=False).detach()

    class Curved:
        def __call__(self, points):
            return (2 * points + points.pow(3)).sin().sum()

        def on(self, filled):
            return lambda points: (2 * points + points.pow(3))[: batch.num_tokens].sin().sum()

    plain = Adversary(step.plan, search=search).search(x, batch, Curved())
    compiled = CompiledAdversary(step.plan, search=search, max_length=24, backend="aot_eager")
    found = compiled.search(x, batch, Curved())
    assert type(found.state) is type(plain.state) is module.Heavy
    for name, ours, theirs in zip(plain.state._fields, found.state, plain.state):
        assert ours.shape == theirs.shape and theirs.abs().max() > 0, name
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert found.state.num_moves == 3 and found.eta is None


def test_is_planned_and_its_state_is_saved(make_config, options):
    config = make_config("run", **options)
    assert "inner steps" in describe_plan(config)
    trainer = Trainer(config)
    trainer.fit()
    state = safetensors.torch.load_file(newest_checkpoint(trainer.run_folder) / EXTRA_STATE)
    assert state["momentum_num_served"] == 4


@pytest.mark.parametrize(
    "name, reason",
    [
        ("momentum", "perturbation.search: 'momentum' is unknown; your own is named my_package.my_module:MySearch"),
        ("no_such_module:Search", "does not import: ModuleNotFoundError"),
        ("json:JSONDecoder", "must name a subclass of fastadv.Search"),
    ],
)
def test_a_name_that_is_no_search_is_one_line(name, reason):
    with pytest.raises(UserError) as caught:
        load_config(overrides=[f"--perturbation.search={name}"])
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_subclass_whose_move_is_its_own_has_a_graph_a_step():
    """Its steps may differ by their number, which a graph that two steps share would not see."""
    plan = PerturbationConfig(epsilon=0.1, num_steps=3).resolve()

    class Own(MixedSearch):
        def move(self, state, step, grads, around):
            return super().move(state, step, grads, around)

    assert len({MixedSearch(plan).kind_of_step(step) for step in (1, 2, 3)}) == 1
    assert [Own(plan).kind_of_step(step) for step in (1, 2, 3)] == [1, 2, 3]
