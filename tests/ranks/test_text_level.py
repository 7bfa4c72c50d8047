"""The text-level systems' step on 1, 2 and 3 ranks is that of one process on the global batch: loss and gradients.

Rows are shared out unequally, and texts too: a rank may have none.
"""

import pytest
import torch

from tests.ranks.cases import text_level
from tests.ranks.cases_tests import CasesOnRanks

pytestmark = pytest.mark.several_processes


class TestTextLevel(CasesOnRanks):
    cases = text_level

    def test_the_expected_steps_have_what_is_compared(self, expected):
        for case, of_case in expected[torch.float64].items():
            assert (of_case["loss"] > 0) == (case != "base_adv, nothing")
