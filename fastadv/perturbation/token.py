"""The token-level perturbation eta and the table V that carries it from batch to batch (RobustSentEmbed eq. 2-4).

A batch's eta starts at the rows of V of its words. After the search each word's row becomes the mean of the final eta
over all its positions, by segment sums in a fixed order, so that the write is deterministic.
"""

from typing import Callable, Optional

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv_kernels import eta_table_read, eta_table_sums, eta_table_write, row_norm


class EtaTable:
    """V (vocab, E): one row a word, float32 (float64 for a float64 encoder).

    It is state, not a parameter, and no module buffer either, since a module cast to bfloat16 takes its buffers along.
    Within an optimizer step every search reads the same V; ``accumulate`` collects what they found, ``commit`` writes
    it once, ``discard`` forgets the last of it.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        sigma: float,
        dtype: torch.dtype = torch.float32,
        norm: str = "linf",
    ):
        table = torch.zeros(vocab_size, embedding_size, dtype=dtype)
        if sigma != 0:
            table.uniform_(-1, 1).mul_(sigma / embedding_size**0.5)
        self.table = table
        self._norm = norm
        self._row_norms = row_norm(table, norm)
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []

    def read(self, batch: PackedBatch) -> Tensor:
        """(T, E): the row of each token's word, as the last committed step left it."""
        if self.table.device != batch.input_ids.device:
            self.table = self.table.to(batch.input_ids.device)
            self._row_norms = self._row_norms.to(batch.input_ids.device)
        return eta_table_read(self.table, batch.input_ids)

    def accumulate(
        self, eta: Tensor, batch: PackedBatch, active: Optional[Tensor] = None, joins_last: bool = False
    ) -> None:
        """Adds the final ``eta`` (T, E) of one search to what ``commit`` will write.

        ``joins_last``: the search is of the same batch as the last, so that ``discard`` forgets both.
        """
        words = batch.input_ids
        if active is not None:
            eta, words = eta[active], words[active]
        found = eta_table_sums(eta, words)
        if joins_last:
            # In one piece: the words of a large batch's parts are largely the same.
            found = _added(*(torch.cat(parts) for parts in zip(self._pending.pop(), found, strict=True)))
        self._pending.append(found)

    def commit(self, gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        """V[w] <- mean of eta over all positions of w seen since the last commit; other rows keep every bit.

        Args:
            gather: joins the rows of all ranks in their order, so that V is the same on each.
        """
        if not self._pending:
            return
        words, sums, counts = (gather(torch.cat(parts)) for parts in zip(*self._pending, strict=True))
        self._pending.clear()
        if len(words) == 0:
            return
        ids, sums, counts = _added(words, sums, counts)
        eta_table_write(self.table, ids, sums, counts)
        self._row_norms[ids] = row_norm(self.table[ids], self._norm)

    def discard(self) -> None:
        """Forgets the last search: a skipped batch writes nothing."""
        self._pending.pop()

    def dead_share(self, epsilon_token: Tensor) -> Tensor:
        """Share of V's rows whose norm is below 1 % of ``epsilon_token`` (a scalar tensor)."""
        return (self._row_norms < 0.01 * epsilon_token).float().mean()

    def state_dict(self) -> dict[str, Tensor]:
        return {"eta_table": self.table}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes a saved table.

        Raises:
            ValueError: a table of another vocabulary or width.
        """
        saved = state["eta_table"]
        if saved.shape != self.table.shape:
            raise ValueError(
                f"eta_table: saved with shape {tuple(saved.shape)}, this encoder needs {tuple(self.table.shape)}"
            )
        self.table.copy_(saved)
        self._row_norms = row_norm(self.table, self._norm)


def _added(words: Tensor, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that may name a word more than once as (words, sums, counts) that name each once."""
    ids, sums, _ = eta_table_sums(sums, words)
    return ids, sums, torch.zeros_like(ids).index_add(0, torch.searchsorted(ids, words), counts)
