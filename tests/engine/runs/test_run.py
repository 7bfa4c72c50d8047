"""One run from config to run folder: what is called, what is kept, what is refused, what is left behind."""

import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fastadv.launch.load import load_config
from fastadv.encoder import Encoder
from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints.checkpoint import read_state
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, newest_checkpoint
from fastadv.engine.guards import Guard
from fastadv.distributed.signals import Interrupted
from tests.quick_trainer import Trainer
from tests.small_runs import lines_of
from fastadv.distributed.zero import NonFiniteUpdate
from fastadv.errors import UserError
from fastadv.perturbation import NonFiniteGradient

# An objective of a user's own, in a module of their own, that goes wrong when it is told to.
FAULTY = """
import torch
from fastadv.objectives.sentences.robustsentembed import RobustSentEmbed

class Faulty(RobustSentEmbed):
    def __init__(self, hidden_size, *, bad_loss_at: int = 0, bad_gradient_at: list = (), **options):
        super().__init__(hidden_size, **options)
        self.bad_loss_at, self.bad_gradient_at, self.calls = bad_loss_at, bad_gradient_at, 0

    def inner_loss(self, views):
        loss = super().inner_loss(views)
        # The call of the outer loss that follows belongs to the same step.
        return loss * float("nan") if self.calls + 1 in self.bad_gradient_at else loss

    def loss(self, views):
        self.calls += 1
        loss, terms = super().loss(views)
        return (loss * float("nan") if self.calls == self.bad_loss_at else loss), terms
"""


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    (tmp_path / "my_objective.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_objective:Faulty"
    # What the run imported; the next module of that name is another.
    sys.modules.pop("my_objective", None)


class Recorder(Callback):
    def __init__(self):
        self.calls = []

    def on_step(self, trainer, step, metrics):
        self.calls.append(("step", step))

    def on_eval(self, trainer, step, scores):
        self.calls.append(("eval", step))

    def on_save(self, trainer, step, folder):
        assert folder.name == f"step-{step}" and (folder / "trainer_state.json").exists()
        self.calls.append(("save", step))


def test_callbacks_come_in_order(make_config, scored_pairs):
    recorder = Recorder()
    Trainer(make_config(**{"dev.data": scored_pairs, "train.eval_every": 2, "train.save_every": 3}), [recorder]).fit()
    assert recorder.calls == [
        *[("step", 1), ("step", 2), ("eval", 2)],
        *[("step", 3), ("save", 3)],
        *[("step", 4), ("eval", 4), ("save", 4)],
    ]


def test_the_run_folder_holds_what_is_promised(make_config, step_lines):
    config = make_config(**{"train.max_steps": None, "train.num_epochs": 2})
    folder = Trainer(config, writes_report=True).fit()
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.yaml", "metrics.jsonl", "tensorboard", "checkpoints", "model", "report.html"}
    lines = step_lines(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    # The last batch of an epoch has 4 sentences, and is kept.
    assert [line["epoch"] for line in lines] == [0, 0, 1, 1]
    assert {"loss", "grad_norm", "lr", "inner_gain"} <= lines[0].keys()
    # Warm-up over ceil(0.25 * 4) = 1 step, then three down.
    assert [line["lr"] for line in lines] == pytest.approx([0, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3])
    assert any(folder.joinpath("tensorboard").iterdir())

    read_back = load_config(str(folder / "config.yaml"))
    read_back.objective_options = {}  # completed by the objective's own defaults
    assert read_back == config
    card = (folder / "model" / "README.md").read_text()
    assert config.data.train in card and "4 steps of 8 sentences" in card and "max_length: 64" in card


def test_the_export_is_the_trained_encoder(make_config, sentences):
    trainer = Trainer(make_config())
    folder = trainer.fit()
    exported = Encoder.from_pretrained(str(folder / "model"), pooling="cls", max_length=32)
    assert (exported.encode_texts(sentences) == trainer.encoder.encode_texts(sentences)).all()
    start = Encoder.from_pretrained(trainer.config.encoder.model, pooling="cls", max_length=32)
    assert abs(exported.encode_texts(sentences) - start.encode_texts(sentences)).max() > 1e-3


def test_an_encoder_of_ones_own_is_trained_in_place(make_config, tiny_bert_dir):
    mine = Encoder.from_pretrained(str(tiny_bert_dir), pooling="mean", max_length=16)
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    Trainer(make_config(**{"train.max_steps": 2}), encoder=mine).fit()
    assert any(not torch.equal(value, before[name]) for name, value in mine.state_dict().items())


def test_no_learning_rate_no_change(make_config, tiny_bert_dir):
    folder = Trainer(make_config(**{"optimizer.lr": 0.0})).fit()
    trained, start = load_file(folder / "model" / "model.safetensors"), load_file(tiny_bert_dir / "model.safetensors")
    assert all(torch.equal(value, start[name]) for name, value in trained.items())


@pytest.mark.parametrize("scores, best", [([1.0, 3.0, 2.0, 3.0], 2), ([1.0, 2.0, 3.0, 4.0], 4)])
def test_the_best_weights_are_exported(make_config, scored_pairs, monkeypatch, scores, best):
    """Equal scores keep the earlier weights; the last step is scored too."""
    seen = []

    def score(encoder):
        seen.append({name: value.clone() for name, value in encoder.hf.state_dict().items()})
        return scores[len(seen) - 1]

    monkeypatch.setattr("fastadv.engine.build.dev_score", lambda data, quoting: score)
    config = make_config(**{"dev.data": scored_pairs, "train.eval_every": 1, "train.save_every": 1})
    trainer = Trainer(config)
    folder = trainer.fit()
    assert trainer.position.best_step == best and trainer.position.best_score == max(scores)
    exported = load_file(folder / "model" / "model.safetensors")
    assert all(torch.equal(value, seen[best - 1][name]) for name, value in exported.items())
    # Of the best so far, only those that one of the two checkpoints left counts as its own.
    needed = {read_state(checkpoint)[0].best_step for checkpoint in checkpoint_folders(folder)}
    kept = {path.name for path in (folder / "checkpoints").glob("best-*")}
    assert best in needed and kept == {f"best-step-{step}.safetensors" for step in needed}
    lines = lines_of(folder)
    assert [line["dev/score"] for line in lines if "dev/score" in line] == scores


@pytest.mark.parametrize("scores, best", [([math.nan, 1.0, math.nan, 0.5], 2), ([math.nan] * 4, None)])
def test_a_score_that_is_no_number_is_never_the_best(make_config, scored_pairs, monkeypatch, scores, best):
    remaining = iter(scores)
    monkeypatch.setattr("fastadv.engine.build.dev_score", lambda data, quoting: lambda encoder: next(remaining))
    trainer = Trainer(make_config(**{"dev.data": scored_pairs, "train.eval_every": 1}))
    folder = trainer.fit()
    assert trainer.position.best_step == best
    lines = lines_of(folder)
    logged = [line["dev/score"] for line in lines if "dev/score" in line]
    assert logged == [None if math.isnan(score) else score for score in scores]


def test_the_best_score_survives_a_stop(make_config, scored_pairs, monkeypatch):
    scores = iter([5.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr("fastadv.engine.build.dev_score", lambda data, quoting: lambda encoder: next(scores))
    config = make_config(**{"dev.data": scored_pairs, "train.eval_every": 1})

    class Stop(Callback):
        def on_eval(self, trainer, step, scores):
            if step == 2:
                trainer.request_stop()

    Trainer(config, [Stop()]).fit()
    second = Trainer(config)
    folder = second.fit()
    assert (second.position.best_step, second.position.best_score) == (1, 5.0)
    kept = load_file(folder / "checkpoints" / "best-step-1.safetensors")
    exported = load_file(folder / "model" / "model.safetensors")
    assert all(torch.equal(value, kept[f"hf.{name}"]) for name, value in exported.items())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_loss_that_is_not_finite_ends_the_run(make_config, faulty, stage, step_lines):
    options = {"engine.zero_stage": stage, "train.save_every": 2}
    config = make_config(objective=faulty, objective_options={"bad_loss_at": 3}, **options)
    with pytest.raises(NonFiniteUpdate, match="step 3: the loss is nan"):
        Trainer(config).fit()
    folder = newest_checkpoint(Path(config.train.output_dir))
    assert folder.name == "step-2"
    assert [line["step"] for line in step_lines(folder.parent.parent)] == [1, 2]


def test_a_non_finite_inner_gradient_ends_the_run(make_config, faulty):
    config = make_config(objective=faulty, objective_options={"bad_gradient_at": [2]})
    with pytest.raises(NonFiniteGradient, match=r"step 2: .* not finite in 4 of 4 sentences \(rows 0, 1, 2, 3\)"):
        Trainer(config).fit()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_skipped_batches_touch_neither_weights_nor_table(make_config, faulty, stage, monkeypatch):
    """Skipping: weights, moments, schedule and V stay, and the next batch takes the place."""
    states = []

    def record(trainer):
        held = {**trainer.run.step.state_dict(), **trainer.run.step.extra_state_dict()}
        states.append({name: value.clone() for name, value in held.items()})

    class Watch(Callback):
        def on_step(self, trainer, step, metrics):
            record(trainer)

    reject = Guard.reject

    def watched(guard, *arguments):
        counted = reject(guard, *arguments)
        record(trainer)
        return counted

    monkeypatch.setattr(Guard, "reject", watched)
    options = {"engine.zero_stage": stage, "train.on_nonfinite": "skip"}
    config = make_config(objective=faulty, objective_options={"bad_gradient_at": [2, 3]}, **options)
    trainer = Trainer(config, [Watch()])
    folder = trainer.fit()

    def same(left, right):
        return all(torch.equal(value, right[name]) for name, value in left.items())

    assert same(states[0], states[1]) and same(states[1], states[2])
    assert not torch.equal(states[3]["eta_table"], states[2]["eta_table"])
    assert (trainer.position.num_skipped, trainer.position.num_skipped_in_a_row) == (2, 0)
    lines = lines_of(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4] and len(states) == 6
    assert [line["num_skipped"] for line in lines] == [0, 2, 2, 2]
    assert lines[1]["num_nonfinite_sentences"] > 0
    # The first step's rate was the warm-up's 0; the fourth batch is the schedule's second step.
    assert lines[1]["lr"] == pytest.approx(1e-3)


ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(make_config, number):
    class Press(Callback):
        def on_step(self, trainer, step, metrics):
            if step == 2:
                os.kill(os.getpid(), number)

    handlers = [signal.getsignal(n) for n in (*ENDING, signal.SIGUSR2)]
    config = make_config()
    with pytest.raises(Interrupted, match="stopped after step 2 of 4; .* goes on from .*step-2") as caught:
        Trainer(config, [Press()]).fit()
    assert caught.value.signal_number == number
    assert [signal.getsignal(n) for n in (*ENDING, signal.SIGUSR2)] == handlers
    trainer = Trainer(config)
    trainer.fit()
    assert trainer.is_finished


class AfterStep(Callback):
    """Does something after a step, and remembers the steps of which checkpoints were written."""

    def __init__(self, step, action):
        self._step, self._action, self.saved = step, action, []

    def on_step(self, trainer, step, metrics):
        if step == self._step:
            self._action(trainer)

    def on_save(self, trainer, step, folder):
        self.saved.append(step)


@pytest.mark.parametrize("how", ["SIGUSR2", "file"])
def test_a_checkpoint_that_is_asked_for_is_written_and_the_run_goes_on(make_config, how, capfd):
    def ask(trainer):
        if how == "file":
            (trainer.run_folder / "checkpoint-now").touch()
        else:
            os.kill(os.getpid(), signal.SIGUSR2)

    asking = AfterStep(2, ask)
    trainer = Trainer(make_config("asked"), [asking])
    folder = trainer.fit()
    assert trainer.is_finished and asking.saved == [2, 4] and not (folder / "checkpoint-now").exists()
    assert "step 2: a checkpoint, as asked" in capfd.readouterr().err
    undisturbed = Trainer(make_config("undisturbed")).fit()
    weights = [load_file(run / "model" / "model.safetensors") for run in (folder, undisturbed)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_checkpoint_asked_for_before_training_follows_the_first_step(make_config):
    class Early(Trainer):
        def _build(self):
            os.kill(os.getpid(), signal.SIGUSR2)
            super()._build()

    asking = AfterStep(0, None)
    Early(make_config(), [asking]).fit()
    assert asking.saved == [1, 4]


def test_a_signal_while_ranks_agree_is_not_lost(make_config, monkeypatch):
    calls = []

    def agree_and_be_told(value, device):
        calls.append(value)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return value

    monkeypatch.setattr("fastadv.distributed.processes.highest", agree_and_be_told)
    with pytest.raises(Interrupted, match="stopped after step 3 of 4"):
        Trainer(make_config()).fit()


def test_a_hang_up_that_nohup_has_ignored_stays_so(make_config):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trainer = Trainer(make_config(), [AfterStep(2, lambda trainer: os.kill(os.getpid(), signal.SIGHUP))])
        trainer.fit()
        assert trainer.is_finished and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_does_not_wait_but_sigterm_does(make_config):
    class Press(Callback):
        def __init__(self, *numbers):
            self.numbers = numbers

        def on_step(self, trainer, step, metrics):
            for number in self.numbers:
                os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt) as caught:
        Trainer(make_config("impatient"), [Press(signal.SIGINT, signal.SIGINT)]).fit()
    assert not isinstance(caught.value, Interrupted)
    # What DeepSpeed's launcher makes of one Ctrl-C.
    with pytest.raises(Interrupted) as caught:
        Trainer(make_config("launched"), [Press(signal.SIGINT, signal.SIGTERM)]).fit()
    assert caught.value.signal_number == signal.SIGINT


def test_somebody_elses_folder_is_left_alone(make_config):
    config = make_config()
    folder = Path(config.train.output_dir)
    folder.mkdir()
    (folder / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="is not empty and no run folder"):
        Trainer(config).fit()
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "change, named",
    [
        ({"dev.data": "nowhere.csv"}, "dev.data: nowhere.csv"),
        ({"data.train": "nowhere.txt"}, "nowhere.txt"),
        ({"objective_options": {"temprature": 1}}, "temprature"),
        ({"perturbation.epsilon_relative": 1e-12}, "below the resolution of float32"),
    ],
    ids=str,
)
def test_a_mistake_ends_the_run_before_it_trains(make_config, change, named):
    config = make_config(**change)
    with pytest.raises(UserError) as caught:
        Trainer(config).fit()
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert not list(Path(config.train.output_dir).glob("checkpoints/*"))


def test_a_finished_run_whose_checkpoints_are_gone_is_left_alone(make_config):
    config = make_config(**{"train.max_steps": 1})
    folder = Trainer(config).fit()
    shutil.rmtree(folder / "checkpoints")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(UserError, match="holds model of a run without a checkpoint to go on from"):
        Trainer(make_config(**{"train.max_steps": 1, "train.resume": "never"})).fit()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("change", [{"train.max_steps": 2}, {"data.max_sentences": 9}], ids=str)
def test_a_resume_that_is_refused_writes_nothing(make_config, change):
    folder = Trainer(make_config(**{"train.max_steps": 1})).fit()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(UserError, match="was made with"):
        Trainer(make_config(**{"train.max_steps": 1, **change})).fit()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_last_batch_of_one_sentence_is_trained_with_a_batch_norm_head(make_config):
    """Nine sentences in batches of eight: the last has no statistics of its own, and no negative."""
    options = {"objective_options": {"head": "bn_mlp"}, "data.max_sentences": 9, "train.max_steps": 4}
    folder = Trainer(make_config(**options)).fit()
    assert load_file(folder / "model" / "model.safetensors")
