"""What becomes of a batch or a step that is not finite (``train.on_nonfinite``, METHODS 1).

| what is not finite | when it is known | under skip |
|---|---|---|
| an inner gradient | after the search | the batch is left out, the next one takes its place in the step |
| the loss | before weights or gradients of earlier batches are touched | the same |
| the gradient norm | after the backward pass of the step's last batch | all batches of the step are left out |

Weights, moments, schedule and eta table are then what they were. All ranks know it and decide alike.
"""

import logging
from functools import partial
from typing import Iterable

import torch

from fastadv.config.schema import TrainConfig
from fastadv.data.packing import PackedBatch
from fastadv.distributed.lost_ranks import is_of_a_collective
from fastadv.distributed.processes import from_all_ranks, is_first_rank
from fastadv.distributed.zero import NonFiniteUpdate
from fastadv.engine.checkpoints.checkpoint import Position
from fastadv.engine.step.step import Step
from fastadv.errors import UserError
from fastadv.perturbation import NonFiniteGradient

logger = logging.getLogger(__name__)

_MOST_ROWS = 10
_MOST_QUOTED = 3
_MOST_CHARACTERS = 60


class TooManySkips(RuntimeError):
    """``max_nonfinite_steps`` batches in a row were skipped because something in them was not finite."""


class Guard:
    """Ends a run at what is not finite, or has it skipped and counted, and says where it was.

    Args:
        config: says which of the two, and how many skips in a row are too many.
        step_module: the step that is guarded.
        position: counts skipped batches.
        tokenizer: turns token ids into text, to quote sentences.
    """

    def __init__(self, config: TrainConfig, step_module: Step, position: Position, tokenizer):
        self._config, self._step, self._position, self._tokenizer = config, step_module, position, tokenizer
        # Running statistics take in a batch before anyone knows what it is worth.
        self._statistics = list(step_module.objective.buffers()) if config.on_nonfinite == "skip" else []
        self._num_kept = 0
        self._num_dropped = 0

    def remember(self) -> None:
        """Before a batch."""
        self._before = [value.clone() for value in self._statistics]
        device = self._step.encoder.device
        self._generators = [(torch.set_rng_state, torch.get_rng_state())]
        if device.type == "cuda":
            self._generators.append(
                (partial(torch.cuda.set_rng_state, device=device), torch.cuda.get_rng_state(device))
            )

    def explain(self, error: Exception, step: int, batch: PackedBatch) -> None:
        """Says in the log at which step and in which sentences ``error`` was raised, on the rank where it was.

        torch's generators are then as they were before the batch. Mistakes of the user's and lost ranks say all of
        that themselves.
        """
        if isinstance(error, UserError) or is_of_a_collective(error):
            return
        for put_back, state in self._generators:
            put_back(state)
        first = self._step.whole.row_offset if self._step.whole is not None else 0
        rows = f"rows {first} to {first + batch.num_sentences - 1}"
        own = self._quoted(range(min(batch.num_sentences, _MOST_QUOTED)), batch)
        quoted = "".join(f'; row {first + row}: "{words}"' for row, words in own.items())
        logger.error("step %d: %s: %s; raised for %s%s", step, type(error).__name__, error, rows, quoted)

    def keep(self, is_whole_step: bool) -> None:
        """The batch was finite, and whether the step it belongs to is done."""
        self._position.num_skipped_in_a_row = 0
        self._num_kept = 0 if is_whole_step else self._num_kept + 1
        if is_whole_step:
            self._num_dropped = 0

    def reject(self, error: RuntimeError | None, step: int, batch: PackedBatch) -> dict[str, float]:
        """Ends the run, or forgets the batch, or the whole step where it takes that.

        Args:
            error: `NonFiniteGradient` or `NonFiniteUpdate`; None for the inner gradient that the step has skipped.
            step: number of the optimizer step that is being made.

        Returns:
            what the log is to count.

        Raises:
            NonFiniteGradient, NonFiniteUpdate: ``error``, with step and sentences named, unless it is skipped.
            TooManySkips: as many batches were skipped in a row as are allowed.
        """
        error = self._step.fault if error is None else error
        rows = self._explain(error, step, batch)
        if self._config.on_nonfinite == "raise":
            raise error
        is_step = isinstance(error, NonFiniteUpdate) and error.what == "gradient norm"
        num_batches = self._num_kept + 1 if is_step else 1
        for _ in range(num_batches):
            self._step.discard()
        position = self._position
        position.num_skipped += num_batches
        if is_step:
            # Its earlier batches had set the count to 0.
            self._num_kept, self._num_dropped = 0, self._num_dropped + num_batches
            position.num_skipped_in_a_row = self._num_dropped
        else:
            for value, before in zip(self._statistics, self._before, strict=True):
                value.copy_(before)
            position.num_skipped_in_a_row += 1
        what = error.what if isinstance(error, NonFiniteUpdate) else "inner gradient"
        if position.num_skipped_in_a_row >= self._config.max_nonfinite_steps:
            raise TooManySkips(
                f"step {step}: the {what} was not finite in the last of {position.num_skipped_in_a_row} batches in a "
                f"row that were skipped (train.max_nonfinite_steps); {error}"
            )
        if is_first_rank():
            skipped = "the batch is skipped" if num_batches == 1 else f"{num_batches} batches are skipped"
            logger.warning("%s; %s", error, skipped)
        return {"num_nonfinite_sentences": float(len(rows))}

    def _explain(self, error: RuntimeError, step: int, batch: PackedBatch) -> list[int]:
        """Completes the error's message; rows of the global batch in which something is not finite."""
        whole, watch = self._step.whole, self._step.watch
        if isinstance(error, NonFiniteGradient):
            text, rows = f"step {step}: {error}", error.sentences
            cause = watch.rows_without_value(whole)
            if cause:
                # One sentence's z+ is a key of all others: their gradients are not finite either.
                cause_text, rows = _named(cause, whole.num_rows)
                text += f"; not finite before the search: {cause_text}"
        else:
            is_loss = error.what == "loss"
            found = watch.rows_without_value(whole) if is_loss else watch.rows_without_gradient(whole)
            found_text, rows = _named(found, whole.num_rows)
            if rows:
                text = f"{error}; {'not finite' if is_loss else 'its gradients not finite'}: {found_text}"
            elif is_loss:
                text = f"{error}; no single sentence: all vectors are finite"
            else:
                text = f"{error}; no single sentence of the step's last batch: its gradients by all vectors are finite"
        quoted = self._quote(rows[:_MOST_QUOTED], batch)
        error.args = (text + "".join(f'; row {row}: "{words}"' for row, words in quoted.items()),)
        return rows

    def _quote(self, rows: list[int], batch: PackedBatch) -> dict[int, str]:
        """The first words of sentences of the global batch, of whichever rank they are."""
        if not rows:
            return {}
        first = self._step.whole.row_offset
        own = self._quoted([row - first for row in rows if first <= row < first + batch.num_sentences], batch)
        parts = from_all_ranks({first + row: words for row, words in own.items()})
        return dict(sorted((row, words) for part in parts for row, words in part.items()))

    def _quoted(self, rows: Iterable[int], batch: PackedBatch) -> dict[int, str]:
        """The first words of this rank's sentences ``rows``, counted from its first."""
        ends = batch.cu_seqlens.tolist()
        quoted = {}
        for row in rows:
            text = self._tokenizer.decode(batch.input_ids[ends[row] : ends[row + 1]].tolist(), skip_special_tokens=True)
            words = " ".join(text.split())
            quoted[row] = words if len(words) <= _MOST_CHARACTERS else f"{words[: _MOST_CHARACTERS - 4]} ..."
        return quoted


def _named(found: dict[str, list[int]], num_rows: int) -> tuple[str, list[int]]:
    """Vectors and rows in words, and the rows."""
    rows = sorted({row for of_name in found.values() for row in of_name})
    shown = ", ".join(map(str, rows[:_MOST_ROWS])) + (", …" if len(rows) > _MOST_ROWS else "")
    return f"{' and '.join(found)} of {len(rows)} of {num_rows} sentences (rows {shown})", rows
