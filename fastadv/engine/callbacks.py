"""What a run tells your code, and when."""

from pathlib import Path
from typing import Any, Protocol

from fastadv.config.schema import Config
from fastadv.engine.checkpoints.checkpoint import Position


class Training(Protocol):
    """What callbacks see of the trainer."""

    config: Config
    encoder: Any
    run_folder: Path
    position: Position
    total_steps: int | None

    @property
    def is_finished(self) -> bool: ...

    def request_stop(self) -> None: ...


class Callback:
    """Base class of callbacks; override what you need, every method does nothing by default.

    ``Trainer(config, callbacks=[mine])`` calls them in the order given, on the first rank only, and between steps: what
    a callback sees is the state after the step it is told of. It may call ``trainer.request_stop()``, which ends the
    run after this step with a checkpoint; an exception it raises ends the run at once. It must not draw from torch's
    global generator, or a resumed run would differ from an uninterrupted one.
    """

    def on_step(self, trainer: Training, step: int, metrics: dict[str, float]) -> None:
        """After each optimizer step.

        Args:
            trainer: ``trainer.encoder`` and ``trainer.config`` are there to read.
            step: optimizer steps so far, from 1.
            metrics: what the step's line in metrics.jsonl holds (loss, lr, grad_norm, inner_gain, ...), averaged over
                the steps since the last such line; empty on steps without one (``train.log_every``).
        """

    def on_eval(self, trainer: Training, step: int, scores: dict[str, float]) -> None:
        """After each evaluation on the dev data: ``scores["dev"]`` is the one by which weights are kept."""

    def on_save(self, trainer: Training, step: int, folder: Path) -> None:
        """After each checkpoint, whole in ``folder`` (``checkpoints/step-<step>``) by now."""

    def on_end(self, trainer: Training) -> None:
        """Once, when training ends: done (``trainer.is_finished``), stopped, or by an error; before the export."""
