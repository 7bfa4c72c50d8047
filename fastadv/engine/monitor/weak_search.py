"""Whether a search moves the loss at all: training against a perturbation that does nothing looks like any training."""

import logging

from fastadv.distributed.processes import is_first_rank

logger = logging.getLogger(__name__)

NUM_STEPS = 10
"""optimizer steps over which it is judged: a single batch's dropout may happen to move nothing"""

LEAST_SHARE = 1e-3
"""share of the loss that a search must gain even where dropout moves nothing: it is off, or the search has its masks"""


class WeakSearchWatch:
    """Says once that a run's search gains less than dropout moves the loss."""

    def __init__(self):
        self._sums = {"inner_gain": 0.0, "inner_loss": 0.0, "dropout_gain": 0.0}
        self._num_steps = 0
        self._is_judged = False

    def look(self, step: int, metrics: dict[str, float], num_steps: int) -> None:
        """Takes in a line of the log.

        Args:
            step: as named in the message.
            metrics: means over the last ``num_steps`` steps; without ``inner_gain`` nothing was searched in them.
        """
        if self._is_judged or "inner_gain" not in metrics:
            return
        self._num_steps += num_steps
        for name in self._sums:
            self._sums[name] += num_steps * metrics.get(name, 0.0)
        if self._num_steps < NUM_STEPS:
            return
        self._is_judged = True
        gain, loss, dropout = (total / self._num_steps for total in self._sums.values())
        least = max(dropout, LEAST_SHARE * abs(loss))
        if gain < least and is_first_rank():
            measure = "less than dropout moves it" if least == dropout else "less than a thousandth of it"
            logger.warning(
                "step %d: the search raises its loss by %.2g a sentence, %s (%.2g): it hardly changes what is trained; "
                "perturbation.epsilon_relative 0.1 with steps that are auto moves a vector",
                step,
                gain,
                measure,
                least,
            )
