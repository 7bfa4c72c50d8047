"""A rank of test_ranks_average.py: SMART's average model at every ZeRO stage; rank 0 writes what it found.

Usage: average_worker.py ENCODER_FOLDER OUT_FILE
"""

import sys

import torch
import torch.distributed as dist

from fastadv.distributed import processes, zero
from tests.ranks.cases.steps import everything_cut, make_config, make_step, same_tokens_replaced, share_of

MODES = [(0, "fp32"), (0, "bf16"), (1, "fp32"), (1, "bf16"), (2, "fp32"), (3, "fp32"), (3, "bf16")]
NUM_STEPS = 4


def of_mode(folder, stage, precision):
    """Losses, the average model before the first step and after each one, the weights then; whether ranks agree."""
    narrow = {"compute_dtype": torch.bfloat16} if precision == "bf16" and stage == 0 else {}
    step = make_step(folder, "smart", **narrow)
    rank, num_ranks = processes.rank(), processes.world_size()
    batches = [share_of(step.encoder, rows, rank, num_ranks) for rows in (8, 7)]
    with everything_cut():
        engine = zero.initialise(step, make_config(stage, precision), 20)
    averages, weights, losses = [step.average.state_dict()], [], []
    averages = [copied(averages[0])]
    for number in range(1, NUM_STEPS + 1):
        loss = engine(batches[number % 2])
        losses.append(zero.update(engine, loss, 1.0, number)[0])
        step.commit()
        averages.append(copied(step.average.state_dict()))
        weights.append(zero.full_precision_weights(step))
    # A step that is not taken.
    try:
        zero.update(engine, engine(batches[0]) * torch.nan, 1.0, NUM_STEPS + 1)
        raise AssertionError("a loss that is not a number was stepped on")
    except zero.NonFiniteUpdate:
        step.discard()
    averages.append(copied(step.average.state_dict()))
    has_grad = any(p.requires_grad for p in step.average._encoder.parameters())
    found = {"losses": losses, "averages": averages, "weights": weights, "has_grad": has_grad}
    found["dtype"] = str(next(step.average._encoder.parameters()).dtype)
    found["is_part_of_the_engine"] = any("average" in name for name, _ in engine.module.named_parameters())
    flat = torch.cat([value.double().flatten() for value in averages[-1].values()])
    first = flat.clone()
    dist.broadcast(first, 0)
    agrees = torch.tensor(float(torch.equal(first, flat)))
    dist.all_reduce(agrees, dist.ReduceOp.MIN)
    found["ranks_agree"] = bool(agrees)
    zero.destroy(engine)
    return found


def copied(state):
    return {name: value.clone() for name, value in state.items()}


def main(folder, out_file):
    torch.set_num_threads(1)
    processes.init_distributed()
    with same_tokens_replaced():
        found = {f"stage {stage}, {precision}": of_mode(folder, stage, precision) for stage, precision in MODES}
    if processes.rank() == 0:
        torch.save(found, out_file)
    processes.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
