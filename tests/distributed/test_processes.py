"""What one process does alone, and what it takes over from Slurm; several are started in test_ranks_*.py."""

import pytest
import torch

from fastadv.distributed.processes import adopt_slurm, first_rank_first, first_rank_only, highest, mean_over_ranks
from fastadv.errors import UserError

TASK = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}


def test_ranks_of_srun():
    environment = dict(TASK)
    adopt_slurm(environment)
    assert environment == {**TASK, "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    "environment",
    [{**TASK, "RANK": "0"}, {**TASK, "SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_PROCID": "0"}, {}],
    ids=["another launcher", "one task", "no step", "no slurm"],
)
def test_otherwise_srun_has_no_say(environment):
    before = dict(environment)
    adopt_slurm(environment)
    assert environment == before


def test_alone_nothing_is_exchanged():
    def fail():
        raise UserError("no")

    assert first_rank_only(lambda: 5) == first_rank_first(lambda: 5) == 5
    assert highest(3, torch.device("cpu")) == 3
    assert mean_over_ranks({"a": (6.0, 3)}) == {"a": 2.0}
    for run in (first_rank_only, first_rank_first):
        with pytest.raises(UserError, match="no"):
            run(fail)
