"""CARL's and RAR's step on 1, 2 and 3 ranks is that of one process on the global batch: loss, gradients and banks.

Rows and banks are shared out unequally.
"""

import pytest
import torch

from tests.ranks.cases import supervised
from tests.ranks.cases_tests import CasesOnRanks

pytestmark = pytest.mark.several_processes


class TestSupervised(CasesOnRanks):
    cases = supervised
    # Draws by the rank are others than the run's on one process, too.
    on_one_too = ("draws of a rank's own",)

    def test_the_expected_step_has_a_contrast(self, expected):
        for case, (name, _) in supervised.CASES.items():
            found = expected[torch.float64][case]
            assert found["loss"] > 0
            if name == "carl":
                # Row 7 in the second batch alone, row 6 in the first, row 8 in none.
                assert found["carl_is_written"].tolist() == 8 * [True] + [False]
                assert found["carl_banks"].norm(dim=-1)[:8].allclose(torch.ones(1, dtype=torch.float64))
