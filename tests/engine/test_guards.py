"""What is not finite ends a run, or is skipped as if it had never been in the data, and is named by sentence."""

import re

import pytest
import torch
from safetensors.torch import load_file

from fastadv.data.batching import BatchOrder
from fastadv.distributed.zero import NonFiniteUpdate
from fastadv.engine import loop
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from fastadv.engine.guards import Guard, TooManySkips
from fastadv.engine.monitor.collapse import Collapsed
from fastadv.engine.training_data import TrainingData
from fastadv.objectives.sentences.simcse import SimCSE
from fastadv.perturbation import NonFiniteGradient
from fastadv.train import main
from tests.quick_trainer import Trainer
from tests.small_runs import SENTENCES

PLANTED = "tests.ranks.cases.planted:Planted"
MODES = [(0, "fp32"), (0, "bf16"), (1, "fp32"), (1, "bf16"), (2, "fp32"), (2, "bf16"), (3, "fp32"), (3, "bf16")]
# Nothing is drawn, so that a run without a batch can be compared with one that has left it out.
STILL = {"encoder.dropout": 0.0, "perturbation.sigma": 0.0}
NAMED = {
    "z": (NonFiniteUpdate, "step 2: the loss is nan; .* not finite: z of 1 of 8 sentences (rows 3); row 3: "),
    "z+": (NonFiniteGradient, "step 2: .*; not finite before the search: z+ of 1 of 8 sentences (rows 3); row 3: "),
    "z_adv": (NonFiniteUpdate, "step 2: the loss is nan; .* not finite: z_adv of 1 of 8 sentences (rows 3); row 3: "),
    "slope": (NonFiniteUpdate, "step 2: the gradient norm is .* its gradients not finite: z of 1 of 8 .*(rows 3)"),
    "loss": (NonFiniteUpdate, "step 2: the loss is nan; .* no single sentence: all vectors are finite"),
    "weight": (NonFiniteUpdate, "step 2: the gradient norm is .*no single sentence of the step's last batch"),
}


def planted(make_config, name="run", **options):
    """8 sentences of 12 each step, a fault in row 3 of the second."""
    changes = {key: options.pop(key) for key in list(options) if "." in key}
    options = {"row": 3, "at": [2], **options}
    changes = {"data.max_sentences": 8, **changes}
    return make_config(name, objective=PLANTED, objective_options=options, **changes)


def letters(text):
    return re.sub(r"\W", "", text)


@pytest.mark.parametrize("fault", NAMED)
def test_step_and_sentence_are_named(make_config, fault):
    config = planted(make_config, fault=fault)
    error, pattern = NAMED[fault]
    pattern = pattern.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")
    with pytest.raises(error, match=pattern) as caught:
        Trainer(config).fit()
    assert "\n" not in str(caught.value)
    if fault not in ("loss", "weight"):
        row = BatchOrder([1] * 8, 8, config.train.seed).batches(1)[0][3]
        quoted = re.search(r'row 3: "(.*?)"', str(caught.value))[1]
        assert letters(quoted) == letters(SENTENCES[row])


def left_out(monkeypatch, numbers):
    """From here on the data lack the batches of these numbers, counted from 1 over all epochs."""
    batches, count = TrainingData.batches, 0

    def without(data, epoch, start_batch):
        nonlocal count
        for batch in batches(data, epoch, start_batch):
            count += 1
            if count not in numbers:
                yield batch

    monkeypatch.setattr(TrainingData, "batches", without)


def outcome(folder):
    state = load_file(newest_checkpoint(folder) / "extra_state.safetensors")
    return {**load_file(folder / "model" / "model.safetensors"), **state}


@pytest.mark.parametrize("fault, skipped", [("z_adv", [4]), ("slope", [3, 4])])
@pytest.mark.parametrize("stage, precision", MODES)
def test_what_is_skipped_might_never_have_been_there(
    make_config, step_lines, monkeypatch, stage, precision, fault, skipped
):
    """A batch whose loss is not finite, and both batches of a step whose gradient is not: to the last bit."""
    options = {
        "engine.zero_stage": stage,
        "engine.precision": precision,
        "train.on_nonfinite": "skip",
        "train.accumulation_steps": 2,
        "train.max_steps": 2,
        **STILL,
    }
    trainer = Trainer(planted(make_config, "faulty", fault=fault, at=[4], **options))
    folder = trainer.fit()
    assert (trainer.position.num_skipped, trainer.position.num_skipped_in_a_row) == (len(skipped), 0)
    left_out(monkeypatch, skipped)
    twin = Trainer(planted(make_config, "twin", at=[], **options)).fit()
    found, expected = outcome(folder), outcome(twin)
    assert [name for name, value in expected.items() if not torch.equal(value, found[name])] == []
    for line, other in zip(step_lines(folder), step_lines(twin), strict=True):
        assert (line["grad_norm"], line["lr"]) == (other["grad_norm"], other["lr"])


@pytest.mark.parametrize("fault", ["z+", "z", "slope", "weight"])
def test_a_skip_is_said_and_counted(make_config, step_lines, caplog, fault):
    folder = Trainer(planted(make_config, fault=fault, **{"train.on_nonfinite": "skip"})).fit()
    (message,) = [record.getMessage() for record in caplog.records if record.name == "fastadv.engine.guards"]
    assert message.startswith("step 2: ") and message.endswith("the batch is skipped") and "\n" not in message
    lines = step_lines(folder)
    assert [line["num_skipped"] for line in lines] == [0, 1, 1, 1]
    assert lines[1]["num_nonfinite_sentences"] == (0 if fault == "weight" else 1)


@pytest.mark.parametrize("fault", ["z+", "loss", "slope"])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_skipping_ends(make_config, fault, accumulation_steps):
    """Also where batches are finite one by one, and only their step is not."""
    options = {"train.on_nonfinite": "skip", "train.max_nonfinite_steps": 4}
    options["train.accumulation_steps"] = accumulation_steps
    config = planted(make_config, fault=fault, at=list(range(accumulation_steps + 1, 100)), **options)
    with pytest.raises(TooManySkips, match=r"step 2: .* 4 batches in a row .*max_nonfinite_steps"):
        Trainer(config).fit()


def test_running_statistics_forget_a_skipped_batch(make_config):
    """A NaN in a running mean would be in every inner loss from there on."""
    options = {"train.on_nonfinite": "skip", "train.max_steps": 3}
    config = planted(make_config, at=[1], fault="loss", head="bn_mlp", **options)
    trainer = Trainer(config)
    seen = []

    class Poison(torch.nn.Module):
        def forward(self, vectors):
            return torch.where(torch.tensor(len(seen) == 1), torch.nan, vectors)

    build = trainer._build

    def poisoned():
        build()
        head = trainer.run.step.objective.head
        head.register_forward_pre_hook(lambda *_: seen.append(1) if head.training else None)
        head.insert(0, Poison())

    trainer._build = poisoned
    folder = trainer.fit()
    assert trainer.position.num_skipped == 1
    assert all(value.isfinite().all() for value in load_file(folder / "model" / "model.safetensors").values())
    assert all(value.isfinite().all() for value in trainer.run.step.objective.buffers())


@pytest.mark.parametrize(
    "error", [NonFiniteUpdate("loss", float("nan"), 3), TooManySkips("step 3"), Collapsed("step 3")], ids=repr
)
def test_the_command_ends_in_one_line(monkeypatch, capsys, error):
    def fail(trainer):
        raise error

    monkeypatch.setattr(loop.Trainer, "fit", fail)
    monkeypatch.setattr("fastadv.distributed.processes.shutdown", lambda wait: None)
    assert main(["--train.output_dir", "runs/never"]) == 1
    assert capsys.readouterr().err == f"fastadv: {error}\n"


class Broken(SimCSE):
    """Its second loss raises."""

    def loss(self, views):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2:
            torch.rand(5)
            raise ZeroDivisionError("of the objective's own")
        return super().loss(views)


def test_an_objective_that_raises_is_named_with_its_step_and_sentences(make_config, caplog):
    states = []
    trainer = Trainer(make_config("broken", objective=f"{__name__}:Broken"), writes_report=False)
    remember = Guard.remember

    def watched(guard):
        remember(guard)
        states.append(torch.get_rng_state())

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Guard, "remember", watched)
        trainer.fit()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("step 2: ZeroDivisionError: of the objective's own; raised for rows 0 to 3; row 0: \"")
    assert torch.equal(torch.get_rng_state(), states[-1])
    assert trainer.position.step == 1
