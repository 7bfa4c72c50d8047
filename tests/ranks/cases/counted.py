"""What a rank hands to collectives in a step, by part, and twenty steps of gradient descent."""

from contextlib import ExitStack
from unittest import mock

import torch
import torch.distributed as dist

from fastadv.distributed import processes, zero
from fastadv.engine.step.average import AverageModel
from fastadv.engine.step.gather import GlobalBatch, _GatherRows
from fastadv.perturbation import EtaTable
from tests.ranks.cases.steps import _RTD, _SIZES, CASES, SENTENCES, everything_cut, make_config, make_step, share_of

NUM_SGD_STEPS = 20
# Twenty steps of gradient descent.
DESCENT = ["simcse", "pgd"]

for _num_steps in (1, 5):
    _search = {**_SIZES, "rho": 1.0, "norm": "l2", "num_steps": _num_steps}
    CASES[f"pgd, N = {_num_steps}"] = ("robustsentembed", _RTD, _search)
# Whose bytes are counted: (stage, precision, case), at world sizes 2 and 4, and at 2 alone.
WIRE = [(stage, "fp32", f"pgd, N = {num_steps}") for stage in range(4) for num_steps in (1, 5)]
WIRE_OF_TWO = [
    *((stage, "bf16", "pgd, N = 1") for stage in (1, 2, 3)),
    (0, "fp32", "simcse"),
    (0, "fp32", "free"),
    (3, "fp32", "free"),
]


def counted_on(num_ranks: int) -> list[tuple[int, str, str]]:
    """Whose bytes are counted at this world size; one rank sends nothing."""
    return {1: [], 2: [*WIRE, *WIRE_OF_TWO]}.get(num_ranks, WIRE)


def payload(folder, case, stage, precision, counter):
    """Bytes of the third step by part and function, and the number of different words of each rank."""
    rank, num_ranks = processes.rank(), processes.world_size()
    step = make_step(folder, case)
    with everything_cut():
        engine = zero.initialise(step, make_config(stage, precision), 10)
    batch = share_of(step.encoder, len(SENTENCES), rank, num_ranks)
    patches = [
        mock.patch.object(GlobalBatch, "__init__", counter.tagging("row counts", GlobalBatch.__init__)),
        mock.patch.object(GlobalBatch, "gather_keys", counter.tagging("keys", GlobalBatch.gather_keys)),
        mock.patch.object(
            _GatherRows, "backward", staticmethod(counter.tagging("gradients of keys", _GatherRows.backward))
        ),
        mock.patch.object(EtaTable, "commit", counter.tagging("eta table", EtaTable.commit)),
        mock.patch.object(AverageModel, "update", counter.tagging("average model", AverageModel.update)),
        mock.patch.object(engine, "backward", counter.tagging("gradients", engine.backward)),
        mock.patch.object(engine, "step", counter.tagging("weights", engine.step)),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        # At stage 3 the second step compares over ranks, once, what the first one recorded.
        for number in (1, 2, 3):
            counter.clear()
            with counter.tagged("control"):
                loss = counter.tagging("forward", engine)(batch)
                zero.update(engine, loss, 1.0, number)
                step.commit()
    found = {f"{part}: {name}": size for (part, name), size in counter.payload.items() if size}
    engine.destroy()
    words = [None] * num_ranks
    dist.all_gather_object(words, len(batch.input_ids.unique()))
    return {"payload": found, "words": words}


def sgd_losses(folder, case):
    """Losses of plain gradient descent, gradients averaged over ranks; of one process where there are no ranks."""
    rank, num_ranks = processes.rank(), processes.world_size()
    step = make_step(folder, case)
    optimizer, losses = torch.optim.SGD(step.parameters(), lr=0.05), []
    for number in range(NUM_SGD_STEPS):
        # Another batch each time, of unequal shares.
        batch = share_of(step.encoder, 5 + number % 4, rank, num_ranks)
        optimizer.zero_grad()
        loss = step(batch)
        loss.backward()
        mean = loss.detach().clone() / num_ranks
        if num_ranks > 1:
            grads = [p.grad for p in step.parameters() if p.grad is not None]
            for value in (mean, *grads):
                dist.all_reduce(value)
            torch._foreach_div_(grads, num_ranks)
        optimizer.step()
        step.commit()
        losses.append(float(mean))
    return losses
