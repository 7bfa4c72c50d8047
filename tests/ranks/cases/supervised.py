"""Steps of CARL and RAR on shares of a batch, as ranks compute them, and on the whole, as one process does.

A bank is filled by one batch; the loss is that of the next, whose negatives come out of it, and which is written, too.
"""

from dataclasses import replace

import numpy as np
import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.data.batching import rank_rows
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.engine.step.gather import AllRanks, GlobalBatch
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts
from fastadv.objectives.classes.memory_bank import MemoryBanks
from tests.ranks.cases.steps import SENTENCES

NUM_CLASSES = 4
# Of seven rows a rank of two has three and four, and of banks of nine rows five and four. Row 8 is never written.
LABELS = (0, 1, 2, 3, 0, 0, 1, 2, 3)
FILLING, CONTRASTED = (0, 1, 2, 3, 4, 5, 6), (7, 1, 0, 3, 2, 5, 4)
_CARL = {"num_negatives": 6, "temperature": 0.5, "start_step": 1}
CASES = {
    "nce": ("carl", {**_CARL, "estimator": "nce"}),
    "nce, per row": ("carl", {**_CARL, "estimator": "nce", "negatives": "per_row"}),
    "softmax": ("carl", {**_CARL, "estimator": "softmax"}),
    # A rank keeps none of a row's only negative.
    "one negative": ("carl", {**_CARL, "estimator": "softmax", "num_negatives": 1, "negatives": "per_row"}),
    "rar": ("rar", {"weight_reconstruction": 1.0}),
}
CUT_UP = tuple(CASES)


def make_step(folder: str, case: str, dtype=torch.float32) -> Step:
    """The step of ``case`` on the tiny encoder at ``folder``, from the same weights each time, begun on all ranks."""
    name, options = CASES[case]
    encoder = Encoder.from_pretrained(folder, dtype=dtype, dropout=0.0)
    torch.manual_seed(1)
    head = ClassificationHead(encoder.hidden_size, NUM_CLASSES)
    objective = resolve_objective(name)(encoder.hidden_size, head, **options)
    objective.bind(encoder)
    facts = RunFacts(len(LABELS), 1, 10, seed=3, row_labels=np.array(LABELS), ranks=AllRanks())
    objective.begin(facts)
    search = PerturbationConfig(method="freelb", num_steps=2, epsilon=None, alpha=0.5, sigma=0.0)
    return Step(encoder, objective.to(dtype), search).train()


def share_of(encoder: Encoder, rows, rank: int, num_ranks: int):
    own = rows[rank_rows(len(rows), rank, num_ranks)]
    batch = encoder.pack([SENTENCES[row] for row in own], [LABELS[row] for row in own])
    return replace(batch, row_ids=torch.tensor(own))


def make_ready(folder: str, case: str, rank: int, num_ranks: int, dtype=torch.float32):
    """The step after one batch, which has filled the banks, and the share of a second one."""
    step = make_step(folder, case, dtype)
    step(share_of(step.encoder, FILLING, rank, num_ranks))
    step.commit()
    return step, share_of(step.encoder, CONTRASTED, rank, num_ranks)


def _own_part_alone(ranks, values):
    return values[None].expand(ranks.num_ranks, *values.shape) / ranks.num_ranks


def _own_rows_alone(banks, rows, vectors, write=MemoryBanks.write):
    from fastadv.distributed import processes

    own = torch.arange(len(rows)) % processes.world_size() == processes.rank()
    write(banks, rows[own], vectors[own])


def _drawn_by_rank(banks, labels, num_negatives, sharing, generator, draw=MemoryBanks.draw):
    from fastadv.distributed import processes

    return draw(banks, labels, num_negatives, sharing, torch.Generator().manual_seed(processes.rank() + 1))


def _first_rows_everywhere(batch, share, make=GlobalBatch.__init__):
    make(batch, share)
    batch.row_offset = 0


MUTANTS = {
    "negatives of one shard": ("nce", AllRanks, "stack", _own_part_alone),
    "rows reach one shard": ("softmax", MemoryBanks, "write", _own_rows_alone),
    "draws of a rank's own": ("nce", MemoryBanks, "draw", _drawn_by_rank),
    "the first rank's rows": ("softmax", GlobalBatch, "__init__", _first_rows_everywhere),
}
