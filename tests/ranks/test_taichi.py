"""TaiChi's step on 1, 2 and 3 ranks is that of one process on the global batch: loss, and both networks' gradients.

Rows are shared out unequally, and pairs too: a rank may have none.
"""

import pytest
import torch

from tests.ranks.cases import taichi
from tests.ranks.cases_tests import CasesOnRanks

pytestmark = pytest.mark.several_processes


class TestTaiChi(CasesOnRanks):
    cases = taichi
    on_one_too = ("keys without a gradient",)

    def test_the_expected_gradients_are_of_both_networks(self, expected):
        for case, of_case in expected[torch.float64].items():
            sizes = {
                prefix: [v.norm() for n, v in of_case.items() if n.startswith(prefix)]
                for prefix in ("encoder", "second")
            }
            assert max(sizes["encoder"]) > 1e-3
            assert bool(sizes["second"]) == (case not in ("no_adv", "adversarial"))
            assert not sizes["second"] or (max(sizes["second"]) > 1e-3) == (case != "no pair")
