"""The encoder's passes of the outer step, compiled (``engine.compile``): X to vectors, with gradients and dropout.

They run on the batch filled up, as the compiled search does (``fastadv/perturbation/compiled.py``) and for the same
reason: static shapes that return. Fillers' rows are dropped behind the pass, so their gradient is exactly 0. Dropout
masks are drawn for the filled batch: others than the uncompiled pass would draw, from the same generator.
"""

from typing import Any

import torch
from torch import Tensor

from fastadv.data.fixed_size import QUANTUM, fill_up
from fastadv.data.packing import PackedBatch
from fastadv.perturbation.compiled import MOST_SIZES


class CompiledPasses:
    """(X (T, E), batch) → h (B, D) as ``encoder.encode`` gives them.

    Args:
        encoder: offers ``encode``, ``prepare`` and ``max_length``.
        quantum: token counts are multiples of it.
        backend: torch.compile's.
    """

    def __init__(self, encoder: Any, quantum: int = QUANTUM, backend: str = "inductor"):
        self._encoder, self._quantum = encoder, quantum
        self._compiled = torch.compile(_encode, fullgraph=True, dynamic=False, backend=backend)

    def __call__(self, x: Tensor, batch: PackedBatch) -> Tensor:
        filled = fill_up(batch, self._encoder.max_length, self._quantum)
        # What passes remember of a batch must be there before they are traced.
        self._encoder.prepare(filled.batch)
        with torch._dynamo.config.patch(recompile_limit=MOST_SIZES):
            return filled.cut(self._compiled(self._encoder, filled.pad(x), filled.batch))


def _encode(encoder: Any, x: Tensor, batch: PackedBatch) -> Tensor:
    return encoder.encode(x, batch)
