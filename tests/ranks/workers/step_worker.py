"""A rank of test_ranks_step.py: every stage and case on its share of the batch; rank 0 writes what it found.

Usage: step_worker.py ENCODER_FOLDER SIGNS_FILE OUT_FILE
"""

import sys

import torch
import torch.distributed as dist

from fastadv.distributed import processes, zero
from fastadv.engine.step.inner_loss import InnerLoss
from tests.ranks.cases.counted import DESCENT, counted_on, payload, sgd_losses
from tests.ranks.cases.counter import CountedCollectives
from tests.ranks.cases.mutants import MUTANTS, planted
from tests.ranks.cases.steps import (
    BATCHES,
    DOUBLE,
    SENTENCES,
    everything_cut,
    has_stage,
    make_config,
    make_step,
    same_tokens_replaced,
    share_of,
    signs,
    token_share,
)


def with_deepspeed(folder, case, stage, num_rows, recorded):
    """Loss, gradients and table of one step."""
    from deepspeed.utils import safe_get_full_grad

    rank, num_ranks = processes.rank(), processes.world_size()
    step = make_step(folder, case)
    with everything_cut():
        engine = zero.initialise(step, make_config(stage), 10)
    share = token_share(step.encoder, num_rows, rank, num_ranks)
    batch = share_of(step.encoder, num_rows, rank, num_ranks)
    with signs(recorded, share if case == "signs" else None):
        loss = engine(batch)
    mean_loss = loss.detach().clone() / num_ranks
    dist.all_reduce(mean_loss)
    engine.backward(loss)
    grads = {n: safe_get_full_grad(p).clone() for n, p in step.named_parameters()}
    step.commit()
    found = {"loss": mean_loss, **grads, **step.extra_state_dict()}
    engine.destroy()
    return found


def with_torch(folder, case, num_rows):
    """The same in float64, gradients averaged by hand."""
    rank, num_ranks = processes.rank(), processes.world_size()
    step = make_step(folder, case, torch.float64)
    loss = step(share_of(step.encoder, num_rows, rank, num_ranks))
    loss.backward()
    found = {"loss": loss.detach().clone(), **{n: p.grad.clone() for n, p in step.named_parameters()}}
    for value in found.values():
        dist.all_reduce(value)
        value /= num_ranks
    step.commit()
    return {**found, **step.extra_state_dict()}


def collectives(folder, case, stage, counter):
    """Names of collectives in the search and outside it, of two optimizer steps, and of one with a planted call."""
    step = make_step(folder, case)
    engine = zero.initialise(step, make_config(stage), 10)
    batch = share_of(step.encoder, len(SENTENCES), processes.rank(), processes.world_size())
    search, call = step.search.adversary.search, InnerLoss.__call__

    def planted(self, points):
        dist.all_reduce(torch.zeros(1))
        return call(self, points)

    def counted(*arguments):
        with counter.inside():
            return search(*arguments)

    step.search.adversary.search = counted
    steps = []
    for plant in (False, False, True):
        InnerLoss.__call__ = planted if plant else call
        counter.clear()
        zero.update(engine, engine(batch), 1.0, len(steps) + 1)
        step.commit()
        steps.append({"inside": list(counter.names_inside), "outside": list(counter.names_outside)})
    InnerLoss.__call__ = call
    engine.destroy()
    return steps


def main(folder, signs_file, out_file):
    torch.set_num_threads(1)
    # Before DeepSpeed, which keeps some of the functions for itself.
    counter = CountedCollectives()
    processes.init_distributed()
    recorded = torch.load(signs_file, weights_only=True)
    found = {"deepspeed": {}, "float64": {}, "collectives": {}, "mutants": {}, "payload": {}, "sgd": {}}
    with same_tokens_replaced():
        for case in DESCENT:
            found["sgd"][case] = sgd_losses(folder, case)
        for stage, precision, case in counted_on(processes.world_size()):
            key = f"{case}, stage {stage}, {precision}"
            found["payload"][key] = payload(folder, case, stage, precision, counter)
        for case, num_rows in DOUBLE:
            found["float64"][f"{case}, {num_rows} rows"] = with_torch(folder, case, num_rows)
        for name, (_, case) in MUTANTS.items():
            with planted(name):
                found["mutants"][name] = with_torch(folder, case, 7)
        for stage in range(4):
            for case, num_rows in BATCHES:
                if not has_stage(case, stage, processes.world_size()):
                    continue
                key = f"{case}, stage {stage}, {num_rows} rows"
                found["deepspeed"][key] = with_deepspeed(folder, case, stage, num_rows, recorded)
        for stage in range(4):
            for case in ("pgd", "pgd, in pieces"):
                found["collectives"][case, stage] = collectives(folder, case, stage, counter)
    if processes.rank() == 0:
        torch.save(found, out_file)
    processes.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
