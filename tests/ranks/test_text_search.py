"""The step with views of texts on 1, 2 and 3 ranks is that of one process on the global batch: loss and gradients."""

import pytest
import torch

from tests.ranks.cases import text_search
from tests.ranks.cases_tests import CasesOnRanks

pytestmark = pytest.mark.several_processes


class TestTextSearch(CasesOnRanks):
    """Copies lie near their sentences, and a gradient of a cosine near 1 is a difference of nearly equal vectors.

    So float32 itself is up to 1e-5 from float64 here, and two orders of summation differ by up to twice that.
    """

    cases = text_search
    float32_share = 2e-5

    def test_float32_is_as_far_from_float64_as_is_allowed_for(self, expected):
        own = [
            ((found - value).norm() / value.norm()).item()
            for case, of_case in expected[torch.float64].items()
            for name, value in of_case.items()
            if "key.bias" not in name and value.norm() > 0
            for found in [expected[torch.float32][case][name]]
        ]
        assert self.float32_share / 4 < max(own) < self.float32_share
