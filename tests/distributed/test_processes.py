"""What one process does alone; several are started in tests/ranks."""

import pytest
import torch

from fastadv.distributed.processes import first_rank_first, first_rank_only, highest, mean_over_ranks
from fastadv.errors import UserError


def test_alone_nothing_is_exchanged():
    def fail():
        raise UserError("no")

    assert first_rank_only(lambda: 5) == first_rank_first(lambda: 5) == 5
    assert highest(3, torch.device("cpu")) == 3
    assert mean_over_ranks({"a": (6.0, 3)}) == {"a": 2.0}
    for run in (first_rank_only, first_rank_first):
        with pytest.raises(UserError, match="no"):
            run(fail)
