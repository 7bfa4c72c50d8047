"""Which sentences of a batch a NaN or an infinity came from."""

from functools import partial
from typing import Optional

import torch
import torch.distributed as dist
from torch import Tensor

from fastadv.engine.step.gather import GlobalBatch
from fastadv.objectives.base import Keys


class RowWatch:
    """Looks at the vectors of one step: at their values, and in the backward pass at their gradients.

    Nothing is asked of the device before `rows_without_value` or `rows_without_gradient`, and no graph is kept alive.

    Attributes:
        vectors: z, z+ and z_adv of this rank's sentences by name, (B, D) each, as constants; those there are.
    """

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        """Before a step."""
        self.vectors: dict[str, Tensor] = {}
        self._slopes: dict[str, Tensor] = {}

    def see(self, name: str, vectors: Tensor) -> None:
        """Watches ``vectors`` (B, D), one of each sentence of this rank."""
        self.vectors[name] = vectors.detach()
        self._hook(name, vectors)

    def see_keys(self, name: str, keys: Optional[Keys]) -> None:
        """Watches keys of all ranks, if there are any: this rank's own values, and what its loss does to each."""
        if keys is None:
            return
        num_rows = len(self.vectors["z"])
        self.vectors[name] = keys.vectors.detach()[keys.row_offset : keys.row_offset + num_rows]
        self._hook(name, keys.vectors)

    def _hook(self, name: str, vectors: Tensor) -> None:
        if vectors.requires_grad:
            vectors.register_hook(partial(self._note, name))

    def _note(self, name: str, grad: Tensor) -> None:
        self._slopes[name] = _row_norms(grad)

    def rows_without_value(self, whole: GlobalBatch) -> dict[str, list[int]]:
        """Rows of the global batch by the name of the vector of theirs that is not finite. All ranks call it.

        What comes later in the step follows from what came before, so only the first kind is named: z, else z+, else
        z_adv.
        """
        found = self._bad_rows({name: _row_norms(value) for name, value in self.vectors.items()}, whole)
        return dict(list(found.items())[:1])

    def rows_without_gradient(self, whole: GlobalBatch) -> dict[str, list[int]]:
        """The same of the loss's gradients by the vectors, all kinds. After the backward pass; all ranks call it."""
        return self._bad_rows({name: self._slopes[name] for name in self.vectors if name in self._slopes}, whole)

    @staticmethod
    def _bad_rows(norms: dict[str, Tensor], whole: GlobalBatch) -> dict[str, list[int]]:
        if not norms:
            return {}
        device = next(iter(norms.values())).device
        is_bad = torch.zeros(len(norms), whole.num_rows, dtype=torch.int64, device=device)
        for flags, values in zip(is_bad, norms.values()):
            # Keys are those of all ranks already.
            first = 0 if len(values) == whole.num_rows else whole.row_offset
            flags[first : first + len(values)] = ~values.isfinite()
        if whole.num_ranks > 1:
            dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)
        rows = {name: flags.nonzero().flatten().tolist() for name, flags in zip(norms, is_bad)}
        return {name: found for name, found in rows.items() if found}


def _row_norms(vectors: Tensor) -> Tensor:
    """(B,), not finite also where a norm overflows, for then no cosine is."""
    return torch.linalg.vector_norm(vectors.detach().float(), dim=1)
