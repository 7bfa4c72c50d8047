"""Mistakes of a distributed step, each planted in turn; every one must show in the result."""

from contextlib import contextmanager
from unittest import mock

from fastadv.engine.step.gather import GlobalBatch, _GatherRows
from fastadv.objectives.base import Keys
from fastadv.perturbation import EtaTable


def _keys(change):
    original = GlobalBatch.gather_keys

    def gather_keys(self, vectors, sentence_ids):
        return change(self, original(self, vectors, sentence_ids))

    return mock.patch.object(GlobalBatch, "gather_keys", gather_keys)


def _backward_of_own_rows(ctx, grad):
    first = sum(ctx.rows[: ctx.rank])
    return grad[first : first + ctx.rows[ctx.rank]], None


def _commit_alone(commit):
    return lambda self, gather: commit(self)


MUTANTS = {
    # name: (what is patched, the case it shows in)
    "gradients of keys not summed over ranks": (
        lambda: mock.patch.object(_GatherRows, "backward", staticmethod(_backward_of_own_rows)),
        "signs",
    ),
    "mean over the own rows": (
        lambda: mock.patch.object(GlobalBatch, "gather_keys", _with_own_mean),
        "signs",
    ),
    "mean over the own tokens": (
        lambda: mock.patch.object(
            GlobalBatch, "tokens_a_rank", property(lambda self: self.num_tokens * self.rows[self.rank] / self.num_rows)
        ),
        "pgd",
    ),
    "positives of the first rank": (
        lambda: _keys(lambda whole, keys: Keys(keys.vectors, keys.sentence_ids, 0, keys.num_ranks)),
        "signs",
    ),
    "duplicates on other ranks are negatives": (
        lambda: _keys(
            lambda whole, keys: Keys(keys.vectors, _own_ids_only(whole, keys), keys.row_offset, keys.num_ranks)
        ),
        "signs",
    ),
    "every rank writes its own table": (
        lambda: mock.patch.object(EtaTable, "commit", _commit_alone(EtaTable.commit)),
        "signs",
    ),
}


def _own_ids_only(whole, keys):
    ids = keys.sentence_ids.clone()
    first = whole.row_offset
    own = slice(first, first + whole.rows[whole.rank])
    kept = ids[own].clone()
    ids[:] = -1 - ids.new_tensor(range(len(ids)))
    ids[own] = kept
    return ids


def _with_own_mean(self, vectors, sentence_ids, original=GlobalBatch.gather_keys):
    keys = original(self, vectors, sentence_ids)
    # What `rows_a_rank` then gives is this rank's own number of rows.
    return Keys(keys.vectors, keys.sentence_ids, keys.row_offset, self.num_rows / self.rows[self.rank])


@contextmanager
def planted(name):
    with MUTANTS[name][0]():
        yield
