"""A rank of test_ranks_taichi.py: every stage and case on its share of the batch; rank 0 writes what it found.

Usage: taichi_worker.py ENCODER_FOLDER OUT_FILE
"""

import sys

import torch
import torch.distributed as dist

from fastadv.engine import processes, zero
from tests.ranks.steps import everything_cut, make_config
from tests.ranks.taichi import CASES, CUT_UP, MUTANTS, grad_of, make_step, planted, share_of


def own_share(step, case):
    return share_of(step.encoder, case, processes.rank(), processes.world_size())


def with_deepspeed(folder, case, stage):
    from deepspeed.utils import safe_get_full_grad

    step = make_step(folder, case)
    with everything_cut():
        engine = zero.initialise(step, make_config(stage), 10)
    loss = engine(own_share(step, case))
    mean_loss = loss.detach().clone() / processes.world_size()
    dist.all_reduce(mean_loss)
    engine.backward(loss)
    grads = {n: safe_get_full_grad(p).clone() for n, p in step.named_parameters()}
    engine.destroy()
    return {"loss": mean_loss, **grads}


def with_torch(folder, case):
    """The same in float64, gradients averaged by hand."""
    step = make_step(folder, case, torch.float64)
    loss = step(own_share(step, case))
    loss.backward()
    found = {"loss": loss.detach().clone(), **{n: grad_of(p) for n, p in step.named_parameters()}}
    for value in found.values():
        dist.all_reduce(value)
        value /= processes.world_size()
    return found


def main(folder, out_file):
    torch.set_num_threads(1)
    processes.init_distributed(2.0)
    found = {"deepspeed": {}, "float64": {}, "mutants": {}}
    for case in CASES:
        found["float64"][case] = with_torch(folder, case)
        stages = range(4 if case in CUT_UP else 1) if processes.world_size() < 3 else ()
        for stage in stages:
            found["deepspeed"][f"{case}, stage {stage}"] = with_deepspeed(folder, case, stage)
    for name, (case, *_) in MUTANTS.items():
        with planted(name):
            found["mutants"][name] = with_torch(folder, case)
    if processes.rank() == 0:
        torch.save(found, out_file)
    processes.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
