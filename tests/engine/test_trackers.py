"""Metrics reach the trackers, offline unless one asks, in one run however often training stops; no failure is fatal.

Where a tracker's package is not installed, a module that records its calls stands in for it.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

from fastadv.engine import build
from fastadv.engine.trackers import WandbCallback, check_trackers
from fastadv.errors import UserError
from fastadv.train import main
from tests.quick_trainer import Trainer
from tests.small_runs import lines_of


class StandInWandb(types.ModuleType):
    """What WandbCallback calls of wandb."""

    def __init__(self):
        super().__init__("wandb")
        self.inits, self.logged, self.finished, self.fails_at = [], [], [], None
        self.Settings = lambda **options: options

    def init(self, **options):
        if self.fails_at == "init":
            raise OSError("the disk\nis full")
        self.inits.append(options)
        return types.SimpleNamespace(
            id=options["id"], define_metric=lambda *names, **options: None, log=self._log, finish=self._finish
        )

    def _log(self, values):
        if values["step"] == self.fails_at:
            raise ConnectionError("no route to host")
        self.logged.append(values)

    def _finish(self, exit_code):
        self.finished.append(exit_code)


class StandInMLflow(types.ModuleType):
    """What MLflowCallback calls of mlflow."""

    def __init__(self):
        super().__init__("mlflow")
        self.entities = types.SimpleNamespace(
            Param=lambda key, value: (key, value), Metric=lambda name, value, time, step: (name, value, step)
        )
        self.uris, self.experiments, self.runs, self.statuses = [], [], [], []
        self.metrics, self.params = [], []

    def MlflowClient(self, tracking_uri):
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name, artifact_location):
        self.experiments.append(name)
        return name

    def create_run(self, experiment, run_name):
        self.runs.append((experiment, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"run-{len(self.runs)}"))

    def update_run(self, run_id, status):
        self.statuses.append((run_id, status))

    def set_terminated(self, run_id, status):
        self.statuses.append((run_id, status))

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(params) <= 100
        self.metrics.extend((run_id, *metric) for metric in metrics)
        self.params.extend(params)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def wandb(monkeypatch):
    module = StandInWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(build, "check_trackers", lambda names: None)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    module = StandInMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setattr(build, "check_trackers", lambda names: None)
    return module


def named(line):
    return {name if "/" in name else f"train/{name}": value for name, value in line.items() if name != "step"}


@pytest.mark.parametrize("name, missing", [("wandb", "wandb"), ("mlflow", "mlflow"), ("mlflow", "alembic")])
def test_a_missing_package_ends_the_run_before_it_loads(make_config, monkeypatch, capsys, tmp_path, name, missing):
    find, others = importlib.util.find_spec, {"wandb", "mlflow", "sqlalchemy", "alembic"} - {missing}
    found = {missing: None, **dict.fromkeys(others, "somewhere")}
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: found[module] if module in found else find(module))
    config = make_config(**{"train.trackers": [name]})
    with pytest.raises(UserError, match=rf'train.trackers = \["{name}"\]: {name} needs {missing}, not installed'):
        Trainer(config).fit()
    assert not (tmp_path / "run").exists()
    arguments = ["--encoder.model", config.encoder.model, "--train.trackers", f"[{name}]", "--dry_run"]
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("fastadv: train.trackers = ")
    check_trackers([])


def test_wandb_gets_what_the_log_gets(make_config, wandb):
    config = make_config(**{"train.trackers": ["wandb"]})
    folder = Trainer(config).fit()
    (init,) = wandb.inits
    assert (init["mode"], init["dir"], init["name"], init["project"]) == ("offline", str(folder), "run", "fastadv")
    assert init["config"]["train"]["batch_size"] == 8
    assert wandb.logged == [{**named(line), "step": line["step"]} for line in lines_of(folder)]
    assert wandb.finished == [0]


def test_wandb_goes_online_where_one_says_so(make_config, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "thesis")
    Trainer(make_config(**{"train.trackers": ["wandb"], "train.max_steps": 1})).fit()
    assert (wandb.inits[0]["mode"], wandb.inits[0]["project"]) == ("online", "thesis")


def test_mlflow_gets_what_the_log_gets(make_config, mlflow):
    folder = Trainer(make_config(**{"train.trackers": ["mlflow"]})).fit()
    assert mlflow.uris == [f"sqlite:///{folder}/mlflow/mlflow.db"] and mlflow.runs == [("fastadv", "run")]
    expected = [
        ("run-1", name, value, line["step"]) for line in lines_of(folder) for name, value in named(line).items()
    ]
    assert mlflow.metrics == expected
    assert ("train.batch_size", "8") in mlflow.params and ("perturbation.norm", "linf") in mlflow.params
    assert mlflow.statuses == [("run-1", "FINISHED")]


def test_mlflow_goes_where_one_says(make_config, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "thesis")
    Trainer(make_config(**{"train.trackers": ["mlflow"], "train.max_steps": 1})).fit()
    assert mlflow.uris == ["http://127.0.0.1:5000"] and mlflow.experiments == ["thesis"]


def test_a_stopped_run_goes_on_in_the_same_run(make_config, wandb, mlflow, stop_after):
    config = make_config(**{"train.trackers": ["wandb", "mlflow"]})
    folder = Trainer(config, [stop_after(2)]).fit()
    assert wandb.finished == [1] and mlflow.statuses == [("run-1", "KILLED")]
    Trainer(config).fit()
    first, second = (init["id"] for init in wandb.inits)
    assert json.loads((folder / "trackers.json").read_text()) == {"wandb": first, "mlflow": "run-1"}
    assert first == second and all(init["resume"] == "allow" for init in wandb.inits)
    assert [values["step"] for values in wandb.logged] == [1, 2, 3, 4]
    assert len(mlflow.runs) == 1 and mlflow.statuses[1:] == [("run-1", "RUNNING"), ("run-1", "FINISHED")]
    # The trackers have no say in the run: one may be added to a run that is gone on with.
    assert Trainer(make_config(**{"train.trackers": []})).fit() == folder


def test_a_run_begun_anew_is_another_run(make_config, wandb):
    config = make_config(**{"train.trackers": ["wandb"]})
    folder = Path(config.train.output_dir)
    folder.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        (folder / name).touch()
    (folder / "trackers.json").write_text('{"wandb": "of a run that was never saved"}')
    Trainer(config).fit()
    Trainer(make_config("another", **{"train.trackers": ["wandb"]})).fit()
    ids = [init["id"] for init in wandb.inits]
    assert "of a run that was never saved" not in ids and ids[0] != ids[1]


@pytest.mark.parametrize("fails_at, num_logged", [("init", 0), (3, 2)])
def test_a_tracker_that_fails_is_left_off(make_config, wandb, caplog, fails_at, num_logged):
    wandb.fails_at = fails_at
    trainer = Trainer(make_config(**{"train.trackers": ["wandb"]}))
    folder = trainer.fit()
    assert trainer.is_finished and (folder / "model").is_dir() and len(wandb.logged) == num_logged
    (message,) = [record.getMessage() for record in caplog.records if record.name == "fastadv.engine.trackers"]
    assert message.startswith("train.trackers: wandb failed and is left off") and "\n" not in message


def test_dev_scores_that_are_no_numbers_stay_out(wandb, make_config):
    tracker, trainer = WandbCallback(), Trainer(make_config())
    trainer.run_folder.mkdir()
    tracker.on_eval(trainer, 1, {"dev": float("nan")})
    tracker.on_eval(trainer, 2, {"dev": 71.5})
    assert wandb.logged == [{"step": 1}, {"dev/score": 71.5, "step": 2}]


def installed(name):
    try:
        check_trackers([name])
        obstacle = None
    except UserError as error:
        obstacle = str(error)
    return pytest.mark.skipif(obstacle is not None, reason=str(obstacle))


@installed("wandb")
def test_wandb_itself_takes_it_offline(make_config, stop_after):
    config = make_config(**{"train.trackers": ["wandb"]})
    folder = Trainer(config, [stop_after(2)]).fit()
    Trainer(config).fit()
    found = [path.name for path in (folder / "wandb").glob("offline-run-*")]
    run_id = json.loads((folder / "trackers.json").read_text())["wandb"]
    assert len(found) == 2 and all(name.endswith(run_id) for name in found)


@installed("mlflow")
def test_mlflow_itself_takes_it(make_config, stop_after):
    import mlflow

    config = make_config(**{"train.trackers": ["mlflow"]})
    folder = Trainer(config, [stop_after(2)]).fit()
    Trainer(config).fit()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow/mlflow.db")
    run_id = json.loads((folder / "trackers.json").read_text())["mlflow"]
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and run.data.params["train.batch_size"] == "8"
    losses = [(metric.step, metric.value) for metric in client.get_metric_history(run_id, "train/loss")]
    assert losses == [(line["step"], line["loss"]) for line in lines_of(folder)]
