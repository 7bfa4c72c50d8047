"""A run stopped after any step and gone on from is the run that was never stopped, to the last bit."""

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fastadv.dry_run import describe_plan
from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints.checkpoint import RunIdentity, read_state, require_same_config, require_same_run
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from fastadv.errors import UserError
from fastadv.launch.load import load_config
from tests.quick_trainer import Trainer

NUM_STEPS = 4


def stop_and_go_on(config, step, stop_after):
    """The folder of a run that was stopped after ``step`` and then finished by a new Trainer."""
    first = Trainer(config, [stop_after(step)])
    folder = first.fit()
    assert not first.is_finished and first.position.step == step
    assert newest_checkpoint(folder).name == f"step-{step}"
    assert not (folder / "model").exists(), "an unfinished run exports nothing"
    second = Trainer(config)
    assert second.fit() == folder and second.is_finished
    return folder


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def eta_table(folder):
    return load_file(newest_checkpoint(folder) / "extra_state.safetensors")["eta_table"]


def assert_same_run(one, other, step_lines):
    assert step_lines(one) == step_lines(other)
    assert len(step_lines(one)) == NUM_STEPS
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
    assert torch.equal(eta_table(one), eta_table(other))


@pytest.mark.parametrize("stage, precision, steps", [(0, "fp32", (1, 3)), (3, "bf16", (2,))], ids=str)
def test_stopped_on_request_and_resumed(make_config, step_lines, stage, precision, steps, stop_after):
    """All systems, stages and places to stop are in test_resume_table.py."""
    options = {"engine.zero_stage": stage, "engine.precision": precision}
    whole = Trainer(make_config("whole", **options)).fit()
    for step in steps:
        assert_same_run(whole, stop_and_go_on(make_config(f"stopped-{step}", **options), step, stop_after), step_lines)


def test_one_seed_twice_is_one_run_and_another_seed_is_not(make_config, step_lines):
    first = Trainer(make_config("first")).fit()
    assert_same_run(first, Trainer(make_config("second")).fit(), step_lines)
    other = Trainer(make_config("other", **{"train.seed": 1})).fit()
    assert step_lines(other)[0]["loss"] != step_lines(first)[0]["loss"]


def test_what_is_measured_and_saved_on_the_way_changes_nothing(make_config, step_lines, scored_pairs):
    """Checkpoints, dev scores, a coarser log and a callback: the weights are those of the bare run."""
    bare = Trainer(make_config("bare")).fit()
    extras = {"dev.data": scored_pairs, "train.eval_every": 1, "train.save_every": 1, "train.log_every": 3}
    busy = Trainer(make_config("busy", **extras), [Callback()]).fit()
    last = newest_checkpoint(busy) / "engine" / "mp_rank_00_model_states.pt"
    saved = torch.load(last, weights_only=True)["module"]
    for name, value in weights(bare).items():
        assert torch.equal(saved[f"encoder.hf.{name}"], value), name
    assert [line["step"] for line in step_lines(busy) if "loss" in line] == [3, 4]


def test_a_finished_run_started_again_trains_no_further(make_config, step_lines):
    config = make_config()
    folder = Trainer(config).fit()
    before, lines = weights(folder), step_lines(folder)
    Trainer(config).fit()
    assert step_lines(folder) == lines
    assert all(torch.equal(value, before[name]) for name, value in weights(folder).items())


def test_lines_after_the_checkpoint_are_written_again(make_config, step_lines):
    config = make_config("killed", **{"train.save_every": 2})

    class Kill(Callback):
        def on_step(self, trainer, step, metrics):
            if step == 3:
                raise OSError("the machine went away")

    with pytest.raises(OSError, match="went away"):
        Trainer(config, [Kill()]).fit()
    folder = Trainer(make_config("whole")).fit()
    log = folder.parent / "killed" / "metrics.jsonl"
    assert len(log.read_text().splitlines()) == 3
    with log.open("a") as file:
        file.write('{"step": 4, "lo')
    assert_same_run(folder, Trainer(config).fit(), step_lines)


def test_two_checkpoints_are_kept_and_a_partial_one_is_no_checkpoint(make_config):
    config = make_config(**{"train.save_every": 1})
    folder = Trainer(config).fit()
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-3", "step-4"]
    (folder / "checkpoints" / "partial-step-9").mkdir()
    assert newest_checkpoint(folder).name == "step-4"


@pytest.mark.parametrize(
    "change, named",
    [
        ({"optimizer.lr": 2e-3}, "optimizer.lr: 0.002"),
        ({"perturbation.num_steps": 3}, "perturbation.num_steps: 3"),
        ({"train.max_steps": 6}, "train.max_steps"),
        ({"train.resume": "never"}, "train.resume is never"),
    ],
    ids=str,
)
def test_a_changed_run_is_refused_in_one_line(make_config, change, named, stop_after):
    folder = Trainer(make_config(), [stop_after(1)]).fit()
    with pytest.raises(UserError) as caught:
        Trainer(make_config(**change)).fit()
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_changed_sentences_are_refused(make_config, stop_after):
    config = make_config()
    Trainer(config, [stop_after(1)]).fit()
    with open(config.data.train, "a", encoding="utf-8") as file:
        file.write("one more film\n")
    with pytest.raises(UserError, match="data.train"):
        Trainer(config).fit()


def test_the_same_sentences_elsewhere_are_gone_on_with(make_config, step_lines, stop_after, tmp_path, capfd):
    """A folder that was moved, a copy on a faster disk: the fingerprint says that nothing has changed."""
    whole = Trainer(make_config("whole")).fit()
    first = make_config("stopped")
    Trainer(first, [stop_after(1)]).fit()
    moved = tmp_path / "moved.txt"
    moved.write_bytes(Path(first.data.train).read_bytes())
    config = make_config("stopped", **{"data.train": str(moved)})
    said = f"data.train: {moved} in place of {first.data.train}"
    assert f"if the content is the same, of {said}\n" in describe_plan(config) + "\n"
    Trainer(config).fit()
    assert_same_run(whole, tmp_path / "stopped", step_lines)
    assert capfd.readouterr().err.count(f"{said}, with the same content\n") == 1
    assert read_state(newest_checkpoint(tmp_path / "stopped"))[1].config["data"]["train"] == str(moved)


@pytest.mark.parametrize("change", ["a word", "the weights", "a second file"])
def test_other_sentences_elsewhere_are_refused(make_config, stop_after, tmp_path, change):
    first = make_config()
    Trainer(first, [stop_after(1)]).fit()
    moved = tmp_path / "moved.txt"
    text = Path(first.data.train).read_text()
    moved.write_text(text.replace("dull", "slow") if change == "a word" else text)
    copies = [{"path": str(moved), "weight": 2.0}]
    if change == "a second file":
        copies.append({"path": first.data.train, "weight": 1.0})
    with pytest.raises(UserError, match=r"^data\.train: .*moved.txt.* was made with") as caught:
        Trainer(make_config(**{"data.train": str(moved) if change == "a word" else copies})).fit()
    assert first.data.train in str(caught.value) and "\n" not in str(caught.value)


def test_word_sets_and_pairs_may_lie_elsewhere_too(tmp_path):
    """Whether they hold the same says the fingerprint, which has them in it."""
    now = asdict(load_config())
    saved = copy.deepcopy(now)
    now["data"].update(word_sets="b.json", pairs="b.csv")
    saved["data"].update(word_sets="a.json", pairs="a.csv")
    require_same_config(tmp_path, saved, now)
    identities = [RunIdentity(config, 4, data, "2", 1, 1) for config, data in ((saved, "x-1"), (now, "x-2"))]
    with pytest.raises(UserError, match=r"^data.word_sets: b.json in place of a.json; data.pairs: b.csv in place of a"):
        require_same_run(tmp_path, *identities)
    saved["data"]["pairs"] = None
    with pytest.raises(UserError, match=r"^data.pairs: 'b.csv', but .* was made with None"):
        require_same_config(tmp_path, saved, now)


def test_what_has_no_say_in_the_numbers_may_change(make_config, step_lines, stop_after):
    Trainer(make_config("run"), [stop_after(2)]).fit()
    # One epoch fewer is meant by max_steps anyway: only the total counts.
    folder = Trainer(make_config("run", **{"train.log_every": 2, "train.max_steps": None, "train.num_epochs": 2})).fit()
    assert [line["step"] for line in step_lines(folder)] == [1, 2, 4]


def test_the_checkpoint_records_what_bit_equality_rests_on(make_config, stop_after):
    folder = Trainer(make_config(), [stop_after(1)]).fit()
    state = json.loads((newest_checkpoint(folder) / "trainer_state.json").read_text())
    assert state["identity"]["torch_version"] == torch.__version__
    assert state["identity"]["num_threads"] == 1
    assert state["position"]["step"] == 1 and state["position"]["batch"] == 1


def test_a_checkpoint_made_when_keys_had_other_names_belongs_to_the_same_run(make_config, stop_after):
    checkpoint = newest_checkpoint(Trainer(make_config(), [stop_after(1)]).fit())
    path = checkpoint / "trainer_state.json"
    state = json.loads(path.read_text())
    config = state["identity"]["config"]
    old = {name: config["train"].pop(name) for name in ("on_nonfinite", "max_nonfinite_steps")}
    config["perturbation"] |= old
    path.write_text(json.dumps(state))
    config["train"] |= old
    assert read_state(checkpoint)[1].config == {
        **config,
        "perturbation": {name: value for name, value in config["perturbation"].items() if name not in old},
    }
