"""Which sentences form which batch: a function of (seed, epoch) alone, so that a stopped run can go on."""

import multiprocessing
import os
import threading
from typing import Callable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastadv.data.folding import FoldedCollate, unfolded
from fastadv.data.packing import PackedBatch
from fastadv.data.records import MappedColumn
from fastadv.errors import UserError


class BatchOrder:
    """The batches of every epoch, each sentence once an epoch, or as often as its weight says.

    Without buckets an epoch is a shuffle cut into batches. With ``bucket_batches`` > 0 each window of
    ``bucket_batches * batch_size`` shuffled sentences is sorted by length before it is cut, so that batch
    mates are of near lengths, and then the batches are shuffled. The batch that is not full, if there is one,
    comes last. Where several ranks share each batch, a last one of fewer sentences than ranks is left out.

    Weights belong to parts, runs of sentences that follow each other. Weight w means that each sentence of the part
    occurs w times an epoch on average: floor(w) times in every epoch, and once more in those epochs whose draw takes
    it. An epoch's draw, a function of (seed, epoch), takes round((w - floor(w)) * n) of the part's n sentences, all
    sets of so many being equally likely. So all epochs are of one size, and that rounding is all that keeps the
    average from w itself. Copies of one sentence are shuffled like different ones and may share a batch.

    A position in training is (epoch, number of batches done in it): ``iterate(epoch, start_batch)`` goes on
    from there. An epoch takes 4 bytes a sentence, besides the lengths if they are in memory.
    """

    def __init__(
        self,
        lengths: Union[Sequence[int], MappedColumn],
        batch_size: int,
        seed: int,
        bucket_batches: int = 0,
        parts: Optional[Sequence[Tuple[int, float]]] = None,
        num_ranks: int = 1,
    ):
        """
        Args:
            lengths: tokens of each sentence, (N,).
            seed: a non-negative integer.
            parts: number of sentences and weight of each part, in order; None: all of weight 1.
            num_ranks: processes that share each batch.

        Raises:
            UserError: no sentences, or none in an epoch, batch_size < num_ranks, seed < 0 or bucket_batches < 0.
        """
        self.lengths = lengths if isinstance(lengths, MappedColumn) else np.asarray(lengths)
        if len(self.lengths) == 0:
            raise UserError("there is no sentence to make a batch of")
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("seed", seed, 0),
            ("bucket_batches", bucket_batches, 0),
        ):
            if value < least:
                raise UserError(f"{name} is {value}; it must be at least {least}")
        self.batch_size, self.seed, self.bucket_batches = batch_size, seed, bucket_batches
        self.parts = [(len(self.lengths), 1.0)] if parts is None else list(parts)
        if sum(num_sentences for num_sentences, _ in self.parts) != len(self.lengths):
            raise ValueError(f"the parts {self.parts} are not those of {len(self.lengths)} sentences")
        if self.sentences_per_epoch == 0:
            raise UserError("the weights of data.train leave no sentence in an epoch")
        if batch_size < num_ranks:
            raise UserError(
                f"train.batch_size is {batch_size}; it must be at least the number of processes, {num_ranks}"
            )
        num_last = self.sentences_per_epoch % batch_size
        self.num_left_out = num_last if num_last < num_ranks else 0
        if self.num_left_out == self.sentences_per_epoch:
            raise UserError(f"{self.num_left_out} sentences are too few for {num_ranks} processes")

    @property
    def sentences_per_epoch(self) -> int:
        """Sentences of an epoch, each as often as it occurs."""
        return sum(
            int(weight) * num_sentences + _num_drawn(num_sentences, weight) for num_sentences, weight in self.parts
        )

    @property
    def batches_per_epoch(self) -> int:
        return -(-(self.sentences_per_epoch - self.num_left_out) // self.batch_size)

    def batches(self, epoch: int) -> "EpochBatches":
        """The epoch's batches in order: arrays of ``batch_size`` indices, what is left in the last."""
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        dtype = np.int32 if max(self.sentences_per_epoch, len(self.lengths)) < 2**31 else np.int64
        order = np.empty(self.sentences_per_epoch, dtype)
        filled = first = 0
        for num_sentences, weight in self.parts:
            part = np.arange(first, first + num_sentences, dtype=dtype)
            first += num_sentences
            for _ in range(int(weight)):
                order[filled : filled + num_sentences] = part
                filled += num_sentences
            num_drawn = _num_drawn(num_sentences, weight)
            if num_drawn:
                generator.shuffle(part)
                order[filled : filled + num_drawn] = part[:num_drawn]
                filled += num_drawn
            # 4 bytes a sentence that the shuffle need not find in memory.
            del part
        # Shuffled in place, in the order that `generator.permutation` gives, in half its memory.
        generator.shuffle(order)
        order = order[: len(order) - self.num_left_out]
        return EpochBatches(order, self.lengths, self.batch_size, self.bucket_batches, generator)

    def iterate(self, epoch: int, start_batch: int = 0) -> Iterator[np.ndarray]:
        """The epoch's batches from number ``start_batch`` on, each cut when it is asked for."""
        batches = self.batches(epoch)
        return (batches[i] for i in range(start_batch, len(batches)))


def _num_drawn(num_sentences: int, weight: float) -> int:
    return round((weight - int(weight)) * num_sentences)


class EpochBatches(Sequence):
    """The batches of an epoch as views of its shuffle; a window is sorted when its first batch is asked for."""

    def __init__(
        self,
        order: np.ndarray,
        lengths: Union[np.ndarray, MappedColumn],
        batch_size: int,
        bucket_batches: int,
        generator: np.random.Generator,
    ):
        self._order, self._lengths = order, lengths
        self._batch_size, self._bucket_batches = batch_size, bucket_batches
        if bucket_batches:
            self._places = np.arange(len(order) // batch_size, dtype=order.dtype)
            generator.shuffle(self._places)
            self._is_sorted = np.zeros(-(-len(self) // bucket_batches), dtype=bool)

    def __len__(self) -> int:
        return -(-len(self._order) // self._batch_size)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if self._bucket_batches:
            # The batch that is not full keeps its place, the last.
            place = int(self._places[place]) if place < len(self._places) else place
            self._sort(place // self._bucket_batches)
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]

    def _sort(self, window: int) -> None:
        if self._is_sorted[window]:
            return
        size = self._bucket_batches * self._batch_size
        part = self._order[window * size : (window + 1) * size]
        # Stable: sentences of one length stay shuffled.
        part[:] = part[np.argsort(self._lengths[part], kind="stable")]
        self._is_sorted[window] = True


def rank_rows(num_rows: int, rank: int, num_ranks: int) -> slice:
    """The rows of a batch that a rank takes: shares follow each other in rank order and differ by at most one row."""
    return slice(num_rows * rank // num_ranks, num_rows * (rank + 1) // num_ranks)


def make_loader(
    dataset: Sequence,
    order: BatchOrder,
    epoch: int,
    start_batch: int,
    num_workers: int,
    collate: Callable[[List], PackedBatch],
    share: Tuple[int, int] = (0, 1),
) -> Iterator[PackedBatch]:
    """Iterates over the batches of ``order.iterate(epoch, start_batch)``, of each the rows of ``share``, (rank, ranks).

    Batches are the same with any number of workers, and no random number of the calling process is drawn:
    training goes the same way too. Workers are forked from a clean server process, not from this one, whose
    threads may hold locks that a fork would copy; so with ``num_workers`` > 0 ``dataset`` and ``collate``
    must pickle, and a script that asks for workers needs ``if __name__ == "__main__":``.
    """
    context = None
    if num_workers:
        context = multiprocessing.get_context("forkserver")
        _require_shared_memory(context, num_workers)
        # Imported once in the server, not in every worker of every epoch.
        context.set_forkserver_preload(["__main__", __name__, "fastadv.data.text"])
    loader = DataLoader(
        dataset,
        # Made one at a time.
        batch_sampler=(batch[rank_rows(len(batch), *share)].tolist() for batch in order.iterate(epoch, start_batch)),
        num_workers=num_workers,
        collate_fn=FoldedCollate(collate) if num_workers else collate,
        # Without its own generator a DataLoader draws its workers' seed from the global one.
        generator=torch.Generator().manual_seed(order.seed),
        multiprocessing_context=context,
        worker_init_fn=_end_with_training if num_workers else None,
    )
    return unfolded(iter(loader)) if num_workers else iter(loader)


def _require_shared_memory(context: multiprocessing.context.BaseContext, num_workers: int) -> None:
    """UserError where processes cannot wait for each other: without it torch's error names no place."""
    try:
        context.Lock()
    except OSError as error:
        raise UserError(
            f"data.num_workers = {num_workers}: loader processes need shared memory, and /dev/shm cannot be written "
            f"({error.strerror}); allowed here: 0"
        ) from error


def _end_with_training(worker: int) -> None:
    """Has this worker end when the process that trains is killed.

    torch looks at its parent's id for that, but the parent is the server that forked it, and which lives as long as
    its workers.
    """
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
