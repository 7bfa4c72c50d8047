"""Batches folded into one tensor for their way from a loader process.

Every tensor travels as an open file of shared memory: a batch with eight proposals would open 84 of them.
"""

import io
import pickle
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor

# Where a tensor may begin, for kernels that read many bytes at once.
_ALIGNMENT = 64


class Folded(NamedTuple):
    """A batch, or whatever else holds tensors."""

    rest: bytes
    """a pickle of it, with places in ``memory`` for its tensors"""
    memory: Tensor
    """(n,) uint8, what is in its tensors"""


class FoldedCollate:
    """``collate`` whose results are folded. Pickles, for loader processes."""

    def __init__(self, collate: Callable[[Sequence], Any]):
        self.collate = collate

    def __call__(self, rows: Sequence) -> Folded:
        return folded(self.collate(rows))


def folded(batch: Any) -> Folded:
    """``batch`` with its tensors laid end to end."""
    sink = io.BytesIO()
    pickler = _Pickler(sink)
    pickler.dump(batch)
    return Folded(sink.getvalue(), torch.cat(pickler.pieces))


def unfolded(batches: Iterator[Folded]) -> Iterator[Any]:
    """The batches as they were; the tensors of each are views of one memory."""
    for batch in batches:
        yield _Unpickler(batch).load()


class _Pickler(pickle.Pickler):
    def __init__(self, sink: io.BytesIO):
        super().__init__(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self.pieces: list[Tensor] = []
        self._end = 0

    def persistent_id(self, value: Any) -> tuple | None:
        if not isinstance(value, Tensor):
            return None
        memory = value.contiguous().flatten().view(torch.uint8)
        place = self._end, len(memory), value.dtype, tuple(value.shape)
        padding = -len(memory) % _ALIGNMENT
        self.pieces += [memory, memory.new_empty(padding)]
        self._end += len(memory) + padding
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, batch: Folded):
        super().__init__(io.BytesIO(batch.rest))
        self._memory = batch.memory

    def persistent_load(self, place: tuple) -> Tensor:
        begin, num_bytes, dtype, shape = place
        return self._memory[begin : begin + num_bytes].view(dtype).view(shape)
