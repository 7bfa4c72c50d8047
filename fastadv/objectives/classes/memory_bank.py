"""CARL's two memory banks: R and R_adv of every row of the training data, shared out over ranks (METHODS 4).

    B[i] <- M * B[i] + (1 - M) * R_i        the first time B[i] <- R_i; renormalised where R is normalised     (eq. 5)

Rank r of W keeps rows r, r + W, r + 2W, ... Which rows are written, and of which class each is, every rank knows: they
draw the same negatives, and each scores those that it has.
"""

from dataclasses import dataclass
from typing import Iterator, Literal, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.objectives.ranks import ALONE, Ranks

Sharing = Literal["per_batch", "per_row"]


@dataclass(frozen=True)
class Negatives:
    """Rows of the global batch, and rows of the banks that are negatives of each of them."""

    rows: Tensor
    """(g,) int64, on the CPU"""
    bank_rows: Tensor
    """(m,) int64, on the CPU; may repeat"""


class MemoryBanks:
    """Two vectors a row of the training data: side 0 of the clean pass, side 1 of the adversarial one.

    Args:
        row_labels: (N,) int64, the class of each row of the training data.
        momentum: M, what is left of the old vector.
        is_normalized: vectors have length 1, and are brought back to it.
        ranks: who keeps the other rows.

    Attributes:
        is_written: (N,) bool, on the CPU.
    """

    def __init__(self, row_labels: Tensor, momentum: float, is_normalized: bool, ranks: Ranks = ALONE):
        self._labels, self._momentum, self._is_normalized, self._ranks = row_labels, momentum, is_normalized, ranks
        self.is_written = torch.zeros(len(row_labels), dtype=torch.bool)
        # Its width, type and device are those of the first vectors written.
        self._shard: Optional[Tensor] = None
        self._others: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def draw(self, labels: Tensor, num_negatives: int, sharing: Sharing, generator: torch.Generator) -> list[Negatives]:
        """Negatives of a global batch: ``num_negatives`` written rows of other classes, drawn with replacement.

        ``per_batch`` draws once for each class of the batch, in the order of classes, ``per_row`` for each row. Rows
        for which nothing of another class is written are left out, and draw nothing.

        Args:
            labels: (G,) classes of the global batch, on the CPU; the same on all ranks, as ``generator`` must be.
        """
        if sharing == "per_batch":
            groups = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
        else:
            groups = list(torch.arange(len(labels)).split(1))
        found = []
        for rows in groups:
            others = self._of_other_classes(int(labels[rows[0]]))
            if len(others):
                drawn = torch.randint(len(others), (num_negatives,), generator=generator)
                found.append(Negatives(rows, others[drawn]))
        return found

    def _of_other_classes(self, label: int) -> Tensor:
        """Written rows that are not of class ``label``, rising."""
        if label not in self._others:
            self._others[label] = torch.nonzero(self.is_written & (self._labels != label)).flatten()
        return self._others[label]

    def products(self, vectors: Tensor, side: int, negatives: list[Negatives]) -> Iterator[Tensor]:
        """For each entry of ``negatives`` (g, m_r): dot products of its rows with those of them that this rank has.

        Args:
            vectors: (G, D) of the global batch. The banks are constants.
            side: of the bank; an anchor's negatives lie on the other side than it.
        """
        shard = self._shard_on(vectors.device)
        for entry in negatives:
            own = entry.bank_rows[entry.bank_rows % self._ranks.num_ranks == self._ranks.rank]
            # Copied without waiting for what a GPU has yet to do.
            rows, places = (
                index.to(vectors.device, non_blocking=True) for index in (entry.rows, own // self._ranks.num_ranks)
            )
            # Where the shard has none of them the product is empty, and still has a graph.
            yield vectors[rows] @ shard[places, side].to(vectors.dtype).T

    def write(self, rows: Tensor, vectors: Tensor) -> None:
        """Writes both banks; the same call on all ranks, of which each keeps its own rows.

        Args:
            rows: (G,) int64 rows of the training data, on the CPU; one that stands there twice is written twice, in
                their order.
            vectors: (G, 2, D) constants.
        """
        num_ranks, rank = self._ranks.num_ranks, self._ranks.rank
        if self._shard is None:
            num_own = len(range(rank, len(self), num_ranks))
            self._shard = vectors.new_zeros((num_own, *vectors.shape[1:]))
        shard = self._shard_on(vectors.device)
        own = rows % num_ranks == rank
        turns = _turns(rows)
        for turn in range(int(turns.max()) + 1):
            now = own & (turns == turn)
            places, is_first = rows[now] // num_ranks, ~self.is_written[rows[now]] & (turns[now] == 0)
            # A mask on a GPU would be a question how many rows it has.
            given = (now.nonzero().flatten(), places, is_first)
            now, places, is_first = (x.to(vectors.device, non_blocking=True) for x in given)
            new = vectors[now]
            mixed = self._momentum * shard[places] + (1 - self._momentum) * new
            mixed = torch.where(is_first[:, None, None], new, mixed)
            shard[places] = F.normalize(mixed, dim=-1, eps=_TINY) if self._is_normalized else mixed
        if not self.is_written[rows].all():
            self.is_written[rows] = True
            self._others.clear()

    def _shard_on(self, device: torch.device) -> Tensor:
        """This rank's rows, moved to where the vectors are: a checkpoint's are read to the host."""
        self._shard = self._shard.to(device)
        return self._shard

    def state_dict(self) -> dict[str, Tensor]:
        """Whole banks (N, 2, D), gathered from all ranks, so that another number of them can go on."""
        return {"carl_is_written": self.is_written, "carl_banks": self._whole()}

    def _whole(self) -> Tensor:
        if self._shard is None:
            return torch.zeros(0)
        num_ranks = self._ranks.num_ranks
        if num_ranks == 1:
            return self._shard
        padded = F.pad(self._shard, (0, 0, 0, 0, 0, -(-len(self) // num_ranks) - len(self._shard)))
        # (W, rows a rank, ...): row i of the data is row i // W of rank i % W.
        return self._ranks.stack(padded).transpose(0, 1).flatten(0, 1)[: len(self)]

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes saved banks.

        Raises:
            ValueError: they are of another number of rows.
        """
        is_written, banks = state["carl_is_written"], state["carl_banks"]
        if len(is_written) != len(self):
            raise ValueError(f"carl_banks: saved of {len(is_written)} rows, the training data has {len(self)}")
        self.is_written = is_written.clone()
        self._others.clear()
        self._shard = banks[self._ranks.rank :: self._ranks.num_ranks].clone() if len(banks) else None


# Of a vector that is 0 nothing is left to divide by.
_TINY = 1e-30


def _turns(rows: Tensor) -> Tensor:
    """(G,) how often each entry of ``rows`` stands before it."""
    order = rows.argsort(stable=True)
    ordered = rows[order]
    turns = torch.empty_like(rows)
    turns[order] = torch.arange(len(rows)) - torch.searchsorted(ordered, ordered)
    return turns
