"""Which sentences form which batch: a function of (seed, epoch) alone, so that a stopped run can go on."""

import multiprocessing
from typing import Callable, Iterator, List, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastadv.data.packing import PackedBatch
from fastadv.errors import UserError


class BatchOrder:
    """The batches of every epoch, each sentence once an epoch.

    Without buckets an epoch is a shuffle cut into batches. With ``bucket_batches`` > 0 each window of
    ``bucket_batches * batch_size`` shuffled sentences is sorted by length before it is cut, so that batch
    mates are of near lengths, and then the batches are shuffled. The batch that is not full, if there is one,
    comes last.

    A position in training is (epoch, number of batches done in it): ``iterate(epoch, start_batch)`` goes on
    from there.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, bucket_batches: int = 0):
        """
        Args:
            lengths: tokens of each sentence, (N,).
            seed: a non-negative integer.

        Raises:
            UserError: no sentences, batch_size < 1, seed < 0 or bucket_batches < 0.
        """
        self.lengths = np.asarray(lengths)
        if self.lengths.size == 0:
            raise UserError("there is no sentence to make a batch of")
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("seed", seed, 0),
            ("bucket_batches", bucket_batches, 0),
        ):
            if value < least:
                raise UserError(f"{name} is {value}; it must be at least {least}")
        self.batch_size, self.seed, self.bucket_batches = batch_size, seed, bucket_batches

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def batches(self, epoch: int) -> List[np.ndarray]:
        """The epoch's batches in order: int64 arrays of ``batch_size`` indices, what is left in the last."""
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = generator.permutation(len(self.lengths))
        if self.bucket_batches:
            window = self.bucket_batches * self.batch_size
            for start in range(0, len(order), window):
                part = order[start : start + window]
                # Stable: sentences of one length stay shuffled.
                order[start : start + window] = part[np.argsort(self.lengths[part], kind="stable")]
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        if self.bucket_batches:
            num_full = len(order) // self.batch_size
            shuffled = [batches[i] for i in generator.permutation(num_full)]
            batches = shuffled + batches[num_full:]
        return batches

    def iterate(self, epoch: int, start_batch: int = 0) -> Iterator[np.ndarray]:
        """The epoch's batches from number ``start_batch`` on."""
        return iter(self.batches(epoch)[start_batch:])


def make_loader(
    dataset: Sequence,
    order: BatchOrder,
    epoch: int,
    start_batch: int,
    num_workers: int,
    collate: Callable[[List], PackedBatch],
) -> Iterator[PackedBatch]:
    """Iterates over the batches of ``order.iterate(epoch, start_batch)``.

    Batches are the same with any number of workers, and no random number of the calling process is drawn:
    training goes the same way too. Workers are forked from a clean server process, not from this one, whose
    threads may hold locks that a fork would copy; so with ``num_workers`` > 0 ``dataset`` and ``collate``
    must pickle, and a script that asks for workers needs ``if __name__ == "__main__":``.
    """
    batches = [batch.tolist() for batch in order.iterate(epoch, start_batch)]
    context = None
    if num_workers:
        context = multiprocessing.get_context("forkserver")
        # Imported once in the server, not in every worker of every epoch.
        context.set_forkserver_preload(["__main__", __name__, "fastadv.data.text"])
    loader = DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        collate_fn=collate,
        # Without its own generator a DataLoader draws its workers' seed from the global one.
        generator=torch.Generator().manual_seed(order.seed),
        multiprocessing_context=context,
    )
    return iter(loader)
