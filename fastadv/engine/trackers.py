"""Metrics to Weights & Biases and MLflow (``train.trackers``), as callbacks like anybody's.

Both begin offline: W&B writes below the run folder until WANDB_MODE says online, MLflow into a SQLite database there
until MLFLOW_TRACKING_URI names a place. A run that is gone on with goes on in the same run of the tracker, whose name
``trackers.json`` in the run folder keeps. A tracker that fails is warned of once and left off; training goes on.
"""

import importlib.util
import json
import logging
import math
import os
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Sequence

from fastadv.config.schema import Config
from fastadv.config.values import flat_values
from fastadv.engine.callbacks import Callback, Training
from fastadv.errors import UserError
from fastadv.files.json_file import read_json, write_json

logger = logging.getLogger(__name__)

_NEEDED = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
"""modules; MLflow's slim package comes without those of a local database"""

# MLflow's limits on what a request holds.
_MOST_PARAMETERS = 100
_MOST_CHARACTERS = 500


def check_trackers(names: Sequence[str]) -> None:
    """UserError where the package of a named tracker is not installed. Imports none of them."""
    for name in names:
        missing = [module for module in _NEEDED[name] if importlib.util.find_spec(module) is None]
        if missing:
            raise UserError(
                f"train.trackers = {json.dumps(list(names))}: {name} needs {', '.join(missing)}, not installed here; "
                f"pip install 'fastadv[trackers]' brings it, or leave {name} out"
            )


def build_trackers(config: Config) -> list[Callback]:
    """The callbacks that ``train.trackers`` names."""
    kinds = {"wandb": WandbCallback, "mlflow": MLflowCallback}
    return [kinds[name]() for name in config.train.trackers]


class Tracker(Callback):
    """Base of both: begins with the first metrics, and never ends training.

    A subclass gives ``name`` and the three methods at the end.
    """

    name = ""

    def __init__(self):
        self._is_off = self._has_begun = False

    def on_step(self, trainer: Training, step: int, metrics: dict[str, float]) -> None:
        if metrics:
            self._tell(trainer, step, metrics)

    def on_eval(self, trainer: Training, step: int, scores: dict[str, float]) -> None:
        self._tell(trainer, step, {f"{name}/score": score for name, score in scores.items()})

    def on_end(self, trainer: Training) -> None:
        if self._has_begun:
            self._try(lambda: self._finish(trainer.is_finished))

    def _tell(self, trainer: Training, step: int, metrics: dict[str, float]) -> None:
        # Names as TensorBoard has them, and no dev score that is no number: neither tracker draws it.
        named = {name if "/" in name else f"train/{name}": float(value) for name, value in metrics.items()}
        finite = {name: value for name, value in named.items() if math.isfinite(value)}

        def tell():
            if not self._has_begun:
                self._start(trainer)
                self._has_begun = True
            self._log(step, finite)

        self._try(tell)

    def _start(self, trainer: Training) -> None:
        path = trainer.run_folder / "trackers.json"
        known = read_json(path) if path.exists() else {}
        known[self.name] = self._begin(trainer.run_folder, asdict(trainer.config), known.get(self.name))
        write_json(path, known)

    def _try(self, action: Callable[[], None]) -> None:
        if self._is_off:
            return
        try:
            action()
        except Exception as error:  # whatever the tracker, its disk or its network raises
            self._is_off = True
            what = " ".join(f"{type(error).__name__}: {error}".split())
            logger.warning("train.trackers: %s failed and is left off for the rest of the run (%s)", self.name, what)

    def _begin(self, run_folder: Path, config: dict[str, Any], known_id: str | None) -> str:
        """Begins a run of the tracker, or goes on with the one of ``known_id``; gives its id."""
        raise NotImplementedError

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        raise NotImplementedError

    def _finish(self, is_finished: bool) -> None:
        raise NotImplementedError


class WandbCallback(Tracker):
    """Weights & Biases. Project and the like come from its own environment variables (WANDB_PROJECT, ...)."""

    name = "wandb"

    def _begin(self, run_folder: Path, config: dict[str, Any], known_id: str | None) -> str:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fastadv"),
            name=os.environ.get("WANDB_NAME", run_folder.name),
            dir=str(run_folder),
            config=config,
            id=known_id or secrets.token_hex(4),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            # It would wrap stdout and stderr, and tear the bar.
            settings=wandb.Settings(console="off", quiet=True),
        )
        # Its own step only grows; one that was trained again after a resume could not be drawn.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def _finish(self, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


class MLflowCallback(Tracker):
    """MLflow. The experiment is MLFLOW_EXPERIMENT_NAME, by default fastadv."""

    name = "mlflow"

    def _begin(self, run_folder: Path, config: dict[str, Any], known_id: str | None) -> str:
        import mlflow

        # A client of our own: the module's functions have one current run, which may be the caller's.
        self._entities = mlflow.entities
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            local = run_folder.resolve() / "mlflow"
            local.mkdir(exist_ok=True)
            uri, artifacts = f"sqlite:///{local / 'mlflow.db'}", (local / "artifacts").as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        if known_id is not None:
            self._client.update_run(known_id, status="RUNNING")
            self._id = known_id
            return known_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fastadv")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name, artifacts) if found is None else found.experiment_id
        self._id = self._client.create_run(experiment, run_name=run_folder.name).info.run_id
        parameters = [
            self._entities.Param(key, str(value)[:_MOST_CHARACTERS]) for key, value in flat_values(config).items()
        ]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + _MOST_PARAMETERS])
        return self._id

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        values = [self._entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=values)

    def _finish(self, is_finished: bool) -> None:
        self._client.set_terminated(self._id, status="FINISHED" if is_finished else "KILLED")
