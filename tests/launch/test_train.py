"""The commands a user types: every launcher, one line for a mistake, and a plan that does nothing."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastadv.config.schema import to_yaml
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from fastadv.launch.load import load_config
from fastadv.train import main

pytestmark = pytest.mark.several_processes

ROOT = Path(__file__).resolve().parents[2]
TRAIN = str(ROOT / "fastadv" / "train.py")
LAUNCH_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "DS_ACCELERATOR")


def beside_python(name):
    """The script that pip put next to the interpreter."""
    return str(Path(sys.executable).parent / name)


@pytest.fixture
def command(make_config, tmp_path):
    """``command("run", launcher..., key=value)``: a started process, in a folder that is not the repository."""

    def start(name, *launcher, **changes):
        config = tmp_path / f"{name}.yaml"
        config.write_text(to_yaml(make_config(name, **{"engine.kernels": "reference"})), encoding="utf-8")
        overrides = [f"--{key}={value}" for key, value in changes.items()]
        environment = {k: v for k, v in os.environ.items() if k not in LAUNCH_VARIABLES}
        # Two processes that spin while they wait would slow each other down many times over.
        environment.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
        return subprocess.Popen(
            [*(launcher or (sys.executable,)), TRAIN, "--config", str(config), *overrides],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def finish(process):
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


_SAID = "encoder.model: ", "2 steps of 8 ", "step "
"""how the lines of a run begin"""


def test_every_launcher_trains_the_same_model(command, tmp_path):
    short = {"train.max_steps": 2}
    # A run of its own each; started together, since most of their time is spent importing.
    deepspeed = beside_python("deepspeed"), "--num_accelerators=1", "--master_port=0"
    processes = {
        "python": command("python", **short),
        "torchrun": command("torchrun", beside_python("torchrun"), "--standalone", "--nproc_per_node=1", **short),
        "deepspeed": command("deepspeed", *deepspeed, **short),
    }
    for name, process in processes.items():
        status, out, err = finish(process)
        assert status == 0, f"{name}: {out}\n{err}"
        found = {path.name for path in (tmp_path / name).iterdir()}
        assert found == {"config.yaml", "metrics.jsonl", "tensorboard", "checkpoints", "model", "report.html"}, name
        if name != "deepspeed":
            # The launcher talks; the run itself says what it does, and nothing else.
            assert [line for line in err.splitlines() if not line.startswith(_SAID)] == [], name
    models = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in processes]
    assert models[0] == models[1] == models[2]


def test_a_mistake_that_only_the_encoder_shows_is_one_line_too(command):
    """The resolution test comes after DeepSpeed's import and the weights; neither says a word on stderr."""
    status, out, err = finish(command("run", **{"perturbation.epsilon_relative": 1e-12, "local_rank": 0}))
    assert status == 2, err
    assert err.count("\n") == 1 and "below the resolution of float32" in err and "Traceback" not in out


def test_a_nan_is_one_line_and_status_1(make_config, tmp_path, capfd):
    # A rate that no float32 survives: after the first step nothing is finite.
    config = make_config(**{"optimizer.lr": 1e38, "optimizer.warmup_ratio": 0.0})
    path = tmp_path / "some.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert main(["--config", str(path)]) == 1
    err = capfd.readouterr().err
    assert "Traceback" not in err and err.splitlines()[-1].startswith("fastadv: step 2: ")


def test_the_log_follows_what_stdout_is(make_config, tmp_path, monkeypatch, capfd):
    """A stream of an earlier call in this process may be closed by now."""
    path = tmp_path / "some.yaml"
    path.write_text(to_yaml(make_config(**{"train.max_steps": 1})), encoding="utf-8")
    with io.StringIO() as closed_later, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed_later)
        assert main(["--config", str(path)]) == 0
        assert "tokenised" in closed_later.getvalue()
    assert main(["--config", str(path), "--train.output_dir", str(tmp_path / "again")]) == 0
    out, err = capfd.readouterr()
    assert "reusing the tokenised text" in out and "Traceback" not in err


def test_a_dry_run_says_the_plan_and_writes_nothing(make_config, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("fastadv.encoder.Encoder.from_pretrained", lambda *_: pytest.fail("weights were loaded"))
    config = make_config("planned", **{"data.max_sentences": 9})
    path = tmp_path / "planned.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert main(["--config", str(path), "--dry_run"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    parts = config.encoder.model, f"{config.data.train}, the first 9 sentences", "robustsentembed", "4 steps of 8"
    for part in (*parts, str(tmp_path / "planned")):
        assert part in out
    assert not (tmp_path / "planned").exists() and not (tmp_path / "cache").exists()


def test_the_printed_config_is_a_config(make_config, tmp_path, capfd):
    path = tmp_path / "some.yaml"
    path.write_text(to_yaml(make_config()), encoding="utf-8")
    assert main(["--config", str(path), "--train.seed", "5", "--print_config"]) == 0
    out, err = capfd.readouterr()
    path.write_text(out, encoding="utf-8")
    config = load_config(str(path))
    assert (config.train.seed, config.train.batch_size, err) == (5, 8, "")


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--data.train", "nowhere.txt", "--dry_run"], "nowhere.txt"),
        (["--dev.data", "nowhere.csv", "--dry_run"], "nowhere.csv"),
        (["--evaluation.enabled", "true", "--evaluation.held_out", "nowhere.txt", "--dry_run"], "nowhere.txt"),
        (["--encoder.model", "no/such-folder/at-all", "--dry_run"], "no/such-folder/at-all"),
        (["--encoder.max_length", "65"], "encoder.max_length = 65"),
        (["--engine.kernels", "triton", "--dry_run"], "engine.kernels = triton: "),
        (["--engine.kernels", "triton"], "engine.kernels = triton: "),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["train.max_steps"], "train.max_steps"),
        (["--train.max_step", "3", "--local_rank=0"], "train.max_step"),
        (["--local-rank", "0", "--local_rank", "0", "--local-rank=0", "--train.max_step", "3"], "train.max_step"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_mistakes_that_need_no_weights(make_config, tmp_path, capfd, monkeypatch, arguments, named):
    monkeypatch.setattr("fastadv.encoder.Encoder.from_pretrained", lambda *_: pytest.fail("weights were loaded"))
    path = tmp_path / "some.yaml"
    path.write_text(to_yaml(make_config()), encoding="utf-8")
    assert main(["--config", str(path), *arguments]) == 2
    out, err = capfd.readouterr()
    assert err.count("\n") == 1 and named in err and out == ""


def test_a_launcher_that_cannot_be_followed_is_refused_by_every_process(monkeypatch, capfd):
    """Each would train alone, all of them into one folder."""
    for name in LAUNCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for rank in "01":
        monkeypatch.setenv("PMIX_RANK", rank)
        assert main(["--dry_run"]) == 2
        out, err = capfd.readouterr()
        assert out == "" and err.count("\n") == 1 and f"the launcher set PMIX_RANK = {rank}" in err


def test_another_rank_leaves_the_first_its_time_to_speak(monkeypatch, capfd):
    waited = []
    monkeypatch.setattr("fastadv.train.time.sleep", waited.append)
    monkeypatch.setenv("RANK", "1")
    assert main(["--no.such.key", "1"]) == 2
    out, err = capfd.readouterr()
    assert waited == [10.0] and out == "" and err.startswith("fastadv: rank 1: no.such.key")


def test_sigterm_ends_with_a_checkpoint_one_line_and_status_0(command, tmp_path):
    process = command("run", **{"train.max_steps": 10_000})
    # The first line of a step that is done: the bar's, as stderr is no terminal.
    before = []
    seen = next((line for line in process.stderr if before.append(line) or line.startswith("step ")), None)
    assert seen is not None, "".join(before)
    process.terminate()
    status, out, err = finish(process)
    assert status == 0, err
    (said,) = [line for line in out.splitlines() if line.startswith("fastadv: ")]
    checkpoint = newest_checkpoint(tmp_path / "run")
    assert seen.startswith("step 1/") and said.endswith(f"the same command goes on from {checkpoint}")
    assert said.startswith(f"fastadv: stopped after step {checkpoint.name.removeprefix('step-')} of 10000; ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_scheduler_signal_before_the_first_step_is_status_0_too(make_config, tmp_path, monkeypatch, capfd, number):
    (tmp_path / "config.yaml").write_text(to_yaml(make_config()), encoding="utf-8")
    monkeypatch.setattr("fastadv.engine.loop.Trainer._build", lambda trainer: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    assert main(["--config", str(tmp_path / "config.yaml")]) == 0
    out, err = capfd.readouterr()
    assert "fastadv: stopped outside of training" in out and "Traceback" not in err
    assert signal.getsignal(number) == before


def test_two_processes_say_a_mistake_once(command):
    launcher = beside_python("torchrun"), "--standalone", "--nproc_per_node=2"
    status, out, err = finish(command("run", *launcher, **{"perturbation.epsilon_relative": 1e-12}))
    said = [line for line in err.splitlines() if line.startswith("fastadv: ")]
    assert status != 0 and len(said) == 1 and "below the resolution of float32" in said[0], err
