"""A rank of `tests.ranks.cases_tests`: every case and stage on its share of the batch; rank 0 writes what it found.

Usage: cases_worker.py MODULE ENCODER_FOLDER OUT_FILE
"""

import importlib
import sys

import torch
import torch.distributed as dist

from fastadv.distributed import processes, zero
from tests.ranks.cases.cases import grads_of, planted
from tests.ranks.cases.steps import everything_cut, make_config


def with_deepspeed(cases, folder, case, stage):
    from deepspeed.utils import safe_get_full_grad

    step, batch = cases.make_ready(folder, case, processes.rank(), processes.world_size())
    with everything_cut():
        engine = zero.initialise(step, make_config(stage), 10)
    loss = engine(batch)
    mean_loss = loss.detach().clone() / processes.world_size()
    dist.all_reduce(mean_loss)
    engine.backward(loss)
    grads = {n: safe_get_full_grad(p).clone() for n, p in step.named_parameters()}
    step.commit()
    found = {"loss": mean_loss, **grads, **step.extra_state_dict()}
    engine.destroy()
    return found


def with_torch(cases, folder, case):
    """The same in float64, gradients averaged by hand."""
    step, batch = cases.make_ready(folder, case, processes.rank(), processes.world_size(), torch.float64)
    loss = step(batch)
    loss.backward()
    found = {"loss": loss.detach().clone(), **grads_of(step)}
    for value in found.values():
        dist.all_reduce(value)
        value /= processes.world_size()
    step.commit()
    return {**found, **step.extra_state_dict()}


def main(module, folder, out_file):
    torch.set_num_threads(1)
    processes.init_distributed(2.0)
    cases = importlib.import_module(module)
    found = {"deepspeed": {}, "float64": {}, "mutants": {}}
    for case in cases.CASES:
        found["float64"][case] = with_torch(cases, folder, case)
        # Three ranks are compared in plain torch alone.
        for stage in range(4 if case in cases.CUT_UP else 1) if processes.world_size() < 3 else ():
            found["deepspeed"][f"{case}; stage {stage}"] = with_deepspeed(cases, folder, case, stage)
    for name, (case, *_) in cases.MUTANTS.items():
        with planted(cases, name):
            found["mutants"][name] = with_torch(cases, folder, case)
    if processes.rank() == 0:
        torch.save(found, out_file)
    processes.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
