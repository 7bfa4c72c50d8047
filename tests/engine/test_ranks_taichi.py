"""TaiChi's step on 1, 2 and 3 ranks is that of one process on the global batch: loss, and both networks' gradients.

Rows are shared out unequally, and pairs too: a rank may have none. With one and two ranks under DeepSpeed, the cases
that differ most at every stage.
"""

import pytest
import torch

from tests.ranks.nearness import assert_near, make_encoder_folder
from tests.ranks.start import run_ranks
from tests.ranks.taichi import CASES, CUT_UP, MUTANTS, of_one_process

pytestmark = pytest.mark.several_processes


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    return make_encoder_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def expected(encoder_folder):
    torch.set_num_threads(1)
    return {
        dtype: {case: of_one_process(encoder_folder, case, dtype) for case in CASES}
        for dtype in (torch.float32, torch.float64)
    }


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request, encoder_folder, tmp_path_factory):
    """What so many ranks found; one spawn for all tests."""
    file = str(tmp_path_factory.mktemp("ranks") / "found.pt")
    run_ranks(request.param, "taichi_worker.py", encoder_folder, file, timeout_s=900)
    return request.param, torch.load(file, weights_only=True)


def test_the_expected_gradients_are_of_both_networks(expected):
    for case, of_case in expected[torch.float64].items():
        sizes = {
            prefix: [v.norm() for n, v in of_case.items() if n.startswith(prefix)] for prefix in ("encoder", "second")
        }
        assert max(sizes["encoder"]) > 1e-3
        assert bool(sizes["second"]) == (case not in ("no_adv", "adversarial"))
        assert not sizes["second"] or (max(sizes["second"]) > 1e-3) == (case != "no pair")


def test_plain_torch_in_float64(ranks, expected):
    num_ranks, found = ranks
    for case in CASES:
        # A cosine's rounding, and sums in another order.
        assert_near(found["float64"][case], expected[torch.float64][case], 1e-12, f"{case}, {num_ranks} ranks")


def test_deepspeed_at_every_stage(ranks, expected):
    num_ranks, found = ranks
    assert len(found["deepspeed"]) == (len(CASES) + 3 * len(CUT_UP) if num_ranks < 3 else 0)
    for key, of_case in found["deepspeed"].items():
        case = key.rpartition(", stage")[0]
        assert_near(of_case, expected[torch.float32][case], 1e-6, f"{key}, {num_ranks} ranks")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_shows(ranks, expected, name):
    num_ranks, found = ranks
    right = expected[torch.float64][MUTANTS[name][0]]
    furthest = max((found["mutants"][name][key] - value).norm() / (value.norm() + 1e-6) for key, value in right.items())
    # Keys without a gradient are a mistake on one process, too.
    assert (furthest > 1e-3) == (num_ranks > 1 or name == "keys without a gradient")
