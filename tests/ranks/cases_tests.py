"""The tests that test_{supervised,taichi,text_level}.py have in common: a class to inherit from."""

from types import ModuleType

import pytest
import torch

from tests.ranks.cases.cases import of_one_process
from tests.ranks.nearness import assert_near, make_encoder_folder
from tests.ranks.workers.start import run_ranks


class CasesOnRanks:
    """1, 2 and 3 ranks find what one process finds on the global batch. ``expected``: dtype → case → what it is."""

    cases: ModuleType
    float32_share: float = 1e-6
    """of a tensor's norm, by which two orders of summation in float32 may differ"""
    on_one_too: tuple = ()
    """mutants that are a mistake on one process as well"""

    @pytest.fixture(scope="class")
    @classmethod
    def encoder_folder(cls, tmp_path_factory):
        return make_encoder_folder(tmp_path_factory)

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, encoder_folder):
        torch.set_num_threads(1)
        return {
            dtype: {case: of_one_process(cls.cases, encoder_folder, case, dtype) for case in cls.cases.CASES}
            for dtype in (torch.float32, torch.float64)
        }

    @pytest.fixture(scope="class", params=[1, 2, 3])
    @classmethod
    def ranks(cls, request, encoder_folder, tmp_path_factory):
        """What so many ranks found; one spawn for all tests."""
        file = str(tmp_path_factory.mktemp("ranks") / "found.pt")
        module = cls.cases.__name__
        run_ranks(request.param, "cases_worker.py", module, encoder_folder, file, timeout_s=900)
        return request.param, torch.load(file, weights_only=True)

    def test_plain_torch_in_float64(self, ranks, expected):
        num_ranks, found = ranks
        assert list(found["float64"]) == list(self.cases.CASES)
        for case, of_case in found["float64"].items():
            # A cosine's rounding, over temperature, and sums in another order.
            assert_near(of_case, expected[torch.float64][case], 1e-12, f"{case}, {num_ranks} ranks")

    def test_deepspeed_at_every_stage(self, ranks, expected):
        num_ranks, found = ranks
        num_expected = len(self.cases.CASES) + 3 * len(self.cases.CUT_UP)
        assert len(found["deepspeed"]) == (num_expected if num_ranks < 3 else 0)
        for key, of_case in found["deepspeed"].items():
            case = key.rpartition("; stage")[0]
            assert_near(of_case, expected[torch.float32][case], self.float32_share, f"{key}, {num_ranks} ranks")

    def test_a_planted_mistake_shows(self, ranks, expected):
        num_ranks, found = ranks
        for name, (case, *_) in self.cases.MUTANTS.items():
            right = expected[torch.float64][case]
            furthest = max(
                (found["mutants"][name][key] - value).norm() / (value.norm() + 1e-6)
                for key, value in right.items()
                if value.is_floating_point() and not value.isnan().any()
            )
            assert (furthest > 1e-3) == (num_ranks > 1 or name in self.on_one_too), name
