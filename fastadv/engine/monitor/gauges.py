"""What a line of metrics.jsonl holds besides the step's own metrics: rates, memory, time by phase, geometry.

docs/monitoring.md lists every key. Nothing here waits for a GPU but `Gauges.take`, once a logged step.
"""

import resource
from pathlib import Path

import torch
from torch import Tensor

from fastadv.config.schema import Config
from fastadv.data.packing import PackedBatch
from fastadv.distributed.processes import highest, world_size
from fastadv.engine.monitor.collapse import CollapseWatch
from fastadv.engine.monitor.metrics import StepMeans
from fastadv.engine.monitor.weak_search import WeakSearchWatch
from fastadv.engine.step.step import Step
from fastadv.files.clock import Clock

_NOT_TRAINING = ("eval", "save")


class Gauges:
    """Collects between two lines, and gives the next one.

    Args:
        config: the run.
        step_module: its vectors and sizes are read; it gets the clock.
        first_step: steps done before.
    """

    def __init__(self, config: Config, step_module: Step, device: torch.device, first_step: int):
        self._config, self._step_module, self._device = config, step_module, device
        self.clock = step_module.clock = Clock(device)
        self._means = StepMeans()
        self._collapse = CollapseWatch(config.train.collapse)
        self._weak_search = WeakSearchWatch()
        self._last_step = first_step
        self._batch: PackedBatch | None = None
        self._forget_counts()

    def count(self, batch: PackedBatch) -> None:
        """A batch was taken, by now one that the step has seen; this rank's share of it is given."""
        self._batch = batch
        self._num_batches += 1
        self._num_sentences += self._step_module.whole.num_rows
        self._num_tokens += self._step_module.whole.num_tokens
        self._sum_of_lengths += batch.max_seqlen
        self._means.add({"padding_share": 1 - batch.num_tokens / (batch.num_sentences * batch.max_seqlen)})

    def add(self, metrics: dict[str, Tensor | float]) -> None:
        """Scalars of a batch or a step, for the means over steps and ranks."""
        self._means.add(metrics)

    def take(self, step: int) -> dict[str, float]:
        """Everything since the last call, at optimizer step ``step``. All ranks call it.

        Raises:
            Collapsed: as ``train.collapse`` has it.
        """
        num_steps, self._last_step = step - self._last_step, step
        seconds = self.clock.take()
        self._means.add({f"time/{phase}": total / num_steps for phase, total in seconds.items()})
        metrics = {**self._means.take(), **self._geometry(step), "memory_gib": self._memory_gib()}
        if metrics.get("rtd_replaced_share") == 0:
            # Where nothing was replaced there was nothing to find.
            del metrics["rtd_accuracy"]
        self._weak_search.look(step, metrics, num_steps)
        mfu = self._mfu(metrics, num_steps)
        if mfu is not None:
            metrics["mfu"] = mfu
        self._forget_counts()
        return metrics

    def _forget_counts(self) -> None:
        self._num_batches = self._num_sentences = self._num_tokens = self._sum_of_lengths = 0

    def _geometry(self, step: int) -> dict[str, float]:
        vectors = self._step_module.watch.vectors
        # A given positive is another text.
        second = vectors.get("z+") if self._batch.positive is None else None
        # Without a clean pass those of another view.
        first = vectors.get("z", next(iter(vectors.values()), None))
        return self._collapse.look(step, first, second, self._batch.sentence_ids)

    def _memory_gib(self) -> float:
        """The most that the process of any rank has held so far."""
        return highest(_most_memory(self._device), self._device) / 2**30

    def _mfu(self, metrics: dict[str, float], num_steps: int) -> float | None:
        """FLOPs that the model needs for what was done over what the cards could do in that time (PaLM, appendix B)."""
        card = card_name(self._device)
        if card is None:
            return None
        from fastadv.planning import costs

        dtype = torch.bfloat16 if self._config.engine.precision == "bf16" else torch.float32
        peak = costs.peak_flops(card, dtype)
        if peak is None:
            return None
        a_batch = 1 / self._num_batches
        flops = self._num_batches * costs.step_flops(
            self._config,
            self._step_module.encoder.hf.config,
            self._num_tokens * a_batch,
            self._num_sentences * a_batch,
            length=self._sum_of_lengths * a_batch,
            num_gradients=metrics.get("num_gradients"),
        )
        times = {name: value for name, value in metrics.items() if name.startswith("time/")}
        training = sum(value for name, value in times.items() if name.removeprefix("time/") not in _NOT_TRAINING)
        return flops / (training * num_steps * peak * world_size())


def card_name(device: torch.device) -> str | None:
    """What the GPU calls itself; None on a CPU, of which no peak is known."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _most_memory(device: torch.device) -> int:
    """Bytes: of tensors on a GPU, of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        # Unlike what `getrusage` gives, it does not begin with that of the process that started this one.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
