"""What an objective with state of its own asks of the other ranks; one process has none.

An objective knows nothing of processes: it is handed one of these (``views.ranks``, ``run.ranks``), whose methods all
ranks call together, in the same order. `fastadv/engine/step/gather.py` has those of several processes.
"""

from torch import Tensor


class Ranks:
    """The ranks of a run: here one alone.

    Attributes:
        rank, num_ranks: this process's number, and how many there are.
        row_offset: the global batch's row that is this rank's first.
    """

    rank = 0
    num_ranks = 1
    row_offset = 0

    def stack(self, values: Tensor) -> Tensor:
        """(W, ...) every rank's ``values`` of one shape, in rank order; their gradients are summed over ranks.

        Where one rank's values want a gradient all ranks' must, for the backward is a collective call too.
        """
        return values[None]

    def gather(self, values: Tensor) -> Tensor:
        """(G, ...) the global batch's rows of which ``values`` (B, ...) are this rank's; gradients as in ``stack``."""
        return values


ALONE = Ranks()
