"""What a run writes down while it goes: metrics.jsonl, TensorBoard events, and a line on the terminal."""

import json
import math
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from fastadv.distributed.processes import mean_over_ranks
from fastadv.distributed.signals import leave_lost_terminal
from fastadv.files.atomic_file import naming, written_aside
from fastadv.files.progress import EVERY_S, Bar


class StepMeans:
    """Means of the batches' metrics since the last ``take``, over all ranks, kept on the device until then.

    Only ``take`` waits for the device, once for all metrics together, and for the other ranks.
    """

    def __init__(self):
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: dict[str, Tensor | float]) -> None:
        """Adds one batch's scalars."""
        for name, value in metrics.items():
            value = torch.as_tensor(value).detach().to(torch.float64)
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """The means; the next ones begin after this call."""
        names = list(self._sums)
        # Scalars of one device are brought over in one piece; those of the host cost nothing.
        device = next((self._sums[n].device for n in names if self._sums[n].device.type != "cpu"), torch.device("cpu"))
        sums = torch.stack([self._sums[n].to(device) for n in names]).tolist() if names else []
        means = mean_over_ranks({name: (total, self._counts[name]) for name, total in zip(names, sums)})
        self._sums, self._counts = {}, {}
        return means


class MetricsLog:
    """``metrics.jsonl`` (one JSON object a line, flushed) and TensorBoard events of the same numbers.

    Args:
        run_folder: holds ``metrics.jsonl`` and ``tensorboard/``.
        first_step: lines of earlier runs at this step or later are dropped; a resumed run writes them again.
    """

    def __init__(self, run_folder: Path, first_step: int):
        # Imported late: it takes a second, and only a run that trains needs it.
        from torch.utils.tensorboard import SummaryWriter

        leave_failed_events_to_their_writer()
        self._path = path = run_folder / "metrics.jsonl"
        kept = _lines_before(path, first_step) if path.exists() else []
        with written_aside(path) as aside:
            aside.write_text("".join(kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(run_folder / "tensorboard"), purge_step=first_step)

    def write(self, step: int, values: dict[str, float | int | str]) -> None:
        """One line. Numbers that JSON has no word for (NaN, infinities) are written as null."""
        line = {"step": step, **values}
        safe = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        with naming(self._path):
            self._file.write(json.dumps(safe, allow_nan=False) + "\n")
            self._file.flush()
        with naming(self._events.log_dir):
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._events.add_scalar(name if "/" in name else f"train/{name}", value, step)

    def close(self) -> None:
        with naming(self._path):
            self._file.close()
        with naming(self._events.log_dir):
            self._events.close()


def leave_failed_events_to_their_writer() -> None:
    """Keeps the thread that writes TensorBoard's events from printing a traceback where the disk is full.

    The next event, or closing, raises the thread's error where the run can end by it.
    """
    if getattr(threading.excepthook, "leaves_events", False):
        return
    before = threading.excepthook

    def hook(failed):
        is_events = type(failed.thread).__module__.startswith("tensorboard.")
        if not (is_events and issubclass(failed.exc_type, OSError)):
            before(failed)

    hook.leaves_events = True
    threading.excepthook = hook


def _lines_before(path: Path, first_step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            # The last line of a run that was killed may be cut off; whatever follows it is not ours to keep either.
            break
        if step < first_step:
            kept.append(line)
    return kept


class Progress:
    """The run on the terminal: a bar that redraws itself, or where stderr is no terminal a line every tenth of the run
    and every 20 seconds.

    Shows loss, inner gain, sentences a second and the time left.
    """

    def __init__(self, total_steps: int, first_step: int, is_shown: bool = True, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._total, self._done, self._start_step = total_steps, first_step, first_step
        self._is_shown = is_shown
        self._is_bar = is_shown and self._stream.isatty()
        self._start, self._sentences, self._tokens, self._texts = time.monotonic(), 0, 0, {}
        self._told_at = self._start
        self._bar = None
        if self._is_bar:
            self._bar = Bar(total=total_steps, initial=first_step, file=self._stream, desc="train", unit="step")

    def count(self, num_sentences: int, num_tokens: int = 0) -> None:
        """So many sentences more were taken, of so many tokens."""
        self._sentences += num_sentences
        self._tokens += num_tokens

    def advance(self, metrics: dict[str, float]) -> None:
        """One step further; ``metrics`` may be empty, the last values are shown then."""
        leave_lost_terminal()
        self._done += 1
        for name, label in (("loss", "loss"), ("inner_gain", "gain")):
            if name in metrics:
                self._texts[label] = f"{metrics[name]:.4g}"
        if self._bar is not None:
            self._bar.set_postfix({**self._texts, "sent/s": f"{self.rates['sentences_per_s']:.0f}"}, refresh=False)
            self._bar.update()
        elif self._is_shown and (self._is_tenth() or time.monotonic() - self._told_at >= EVERY_S):
            self._told_at = time.monotonic()
            shown = "".join(f" · {label} {text}" for label, text in self._texts.items())
            pace = f"{self.rates['sentences_per_s']:.0f} sentences/s · {self._time_left()} left"
            print(f"step {self._done}/{self._total}{shown} · {pace}", file=self._stream, flush=True)

    @property
    def rates(self) -> dict[str, float]:
        """Sentences and real tokens a second since this process began to train, evaluating and saving included."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        return {"sentences_per_s": self._sentences / seconds, "tokens_per_s": self._tokens / seconds}

    def say(self, message: str) -> None:
        """A line above the bar."""
        leave_lost_terminal()
        if self._bar is not None:
            self._bar.write(message, file=self._stream)
        elif self._is_shown:
            print(message, file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _is_tenth(self) -> bool:
        tenth = self._done * 10 // self._total
        return self._done == self._start_step + 1 or tenth > (self._done - 1) * 10 // self._total

    def _time_left(self) -> str:
        rate = (self._done - self._start_step) / max(time.monotonic() - self._start, 1e-9)
        return Bar.format_interval((self._total - self._done) / rate)
