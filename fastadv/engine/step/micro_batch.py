"""The pieces of a rank's batch that pass through the encoder one after another.

The loss is of the whole batch, so vectors of all pieces are there together; the passes that make them run a piece at a
time. With several pieces the passes keep no activations: the backward runs each again, by itself, with its dropout
masks (two-pass gradient caching, Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
setup", as checkpoints of one graph, so that each parameter's gradient arrives once and is reduced over ranks once). A
batch of one piece keeps its graph.
"""

from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Callable, Sequence, TypeVar

from fastadv.data.packing import PackedBatch
from fastadv.encoder.recompute import recomputed
from fastadv.engine.step.gather import GlobalBatch

T = TypeVar("T")
Enter = Callable[[], AbstractContextManager]
"""() → a context that a pass needs around it when it is run again (`Encoder.computing_in`)"""


@dataclass(frozen=True)
class MicroBatch:
    """Sentences that pass through the encoder together."""

    sentences: PackedBatch
    """The piece's sentences; the whole batch where it is the only piece."""
    first_row: int
    """Row of the rank's batch that the piece begins with."""
    is_only: bool
    """Whether the batch has no other piece."""
    inside: Sequence[Enter]
    """Contexts that the piece's passes run in."""

    @property
    def batch(self) -> PackedBatch:
        """The sentences, to be passed on. Several pieces do not remember their layouts, which would all stay alive."""
        return self.sentences if self.is_only else replace(self.sentences)

    def run(self, function: Callable[..., T], *arguments) -> T:
        """``function(*arguments)``, a pass; of several pieces the graph keeps its arguments and results alone."""
        return function(*arguments) if self.is_only else recomputed(function, *arguments, inside=self._surroundings)

    @contextmanager
    def _surroundings(self):
        with ExitStack() as stack:
            for enter in self.inside:
                stack.enter_context(enter())
            yield


def cut(
    batch: PackedBatch, whole: GlobalBatch, micro_batch_size: int | None, inside: Sequence[Enter]
) -> list[MicroBatch]:
    """The pieces of ``batch``, of ``micro_batch_size`` sentences at most; None: one piece.

    All ranks have the same number of pieces, since at ZeRO stage 3 they fetch parameters together. Where a rank has
    fewer sentences than that makes pieces, another rank's pieces may be larger.
    """
    count = 1
    if micro_batch_size is not None:
        count = min(-(-max(whole.rows) // micro_batch_size), min(whole.rows))
    parts = [batch] if count == 1 else batch.split(count)
    first_rows = accumulate([part.num_sentences for part in parts], initial=0)
    return [MicroBatch(part, row, count == 1, tuple(inside)) for part, row in zip(parts, first_rows)]
