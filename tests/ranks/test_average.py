"""The average model on 1 and 2 ranks at every ZeRO stage: bit for bit that of the weights in full precision."""

import pytest
import torch

from tests.conftest import write_tiny_bert
from tests.ranks.workers.average_worker import MODES, NUM_STEPS
from tests.ranks.workers.start import run_ranks

pytestmark = pytest.mark.several_processes

NAMES = [f"stage {stage}, {precision}" for stage, precision in MODES]
UPDATES = "average_model.num_updates"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What 1 and 2 ranks found, by their number."""
    folder = tmp_path_factory.mktemp("ranks")
    encoder = write_tiny_bert(folder / "tiny-bert", initializer_range=0.07)
    found = {}
    for num_ranks in (1, 2):
        run_ranks(num_ranks, "average_worker.py", str(encoder), str(folder / f"{num_ranks}.pt"), timeout_s=900)
        found[num_ranks] = torch.load(folder / f"{num_ranks}.pt", weights_only=True)
    return found


def source_of(name):
    """The step's own name of a parameter of the average model."""
    part, _, rest = name.removeprefix("average_model.").partition(".")
    return f"encoder.{rest}" if part == "encoder" else f"objective.classifier.{rest}"


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_is_the_average_of_the_weights_after_each_step(runs, name, num_ranks):
    found = runs[num_ranks][name]
    # Of twenty steps two at 0.99.
    for number, decay in enumerate([0.99, 0.99, 0.999, 0.999], start=1):
        before, after, weights = found["averages"][number - 1], found["averages"][number], found["weights"][number - 1]
        assert int(after[UPDATES]) == number
        assert len(after) == len(weights) + 1
        for key, value in before.items():
            if key != UPDATES:
                expected = torch.lerp(value, weights[source_of(key)], 1 - decay)
                assert torch.equal(after[key], expected), (number, key)
    assert any(not torch.equal(value, found["averages"][-1][key]) for key, value in found["averages"][0].items())


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_is_whole_in_float32_the_same_on_all_ranks_and_outside_of_deepspeed(runs, name, num_ranks):
    found = runs[num_ranks][name]
    assert found["ranks_agree"] and found["dtype"] == "torch.float32"
    assert not found["has_grad"] and not found["is_part_of_the_engine"]


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_skipped_leaves_it_alone(runs, name, num_ranks):
    *_, before, after = runs[num_ranks][name]["averages"]
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_every_stage_lowers_the_same_losses(runs, name, num_ranks):
    losses, expected = runs[num_ranks][name]["losses"], runs[1]["stage 0, fp32"]["losses"]
    assert len(losses) == NUM_STEPS and losses[0] > losses[2] and losses[1] > losses[3]
    # bfloat16 has 8 bits; in float32 Adam's first steps enlarge the rounding of gradients near 0.
    assert losses == pytest.approx(expected, rel=0.02 if name.endswith("bf16") else 1e-4)
