"""The parts of a run as `build` makes them: what it refuses before anything trains."""

import pytest

from fastadv.engine.build import build_encoder, build_step, check_resolution
from fastadv.engine.training_data import TrainingData
from fastadv.errors import UserError

# Half a unit in the last place is 2^-8 to 2^-9 of an entry in bfloat16, 2^-24 to 2^-25 in float32: this radius, a
# share of the entries' root mean square, lies far below the one and far above the other.
BETWEEN = 1e-4


def check(config):
    encoder = build_encoder(config)
    data = TrainingData(config, encoder, progress=False)
    check_resolution(config, build_step(config, encoder), data.first_batch())


def test_the_resolution_is_that_of_the_compute_type(make_config):
    """The weights are float32 when this is asked, whatever the engine will compute in."""
    options = {"perturbation.epsilon_relative": BETWEEN}
    check(make_config(**options, **{"engine.precision": "fp32"}))
    with pytest.raises(UserError, match="below the resolution of bfloat16") as caught:
        check(make_config(**options, **{"engine.precision": "bf16"}))
    assert "\n" not in str(caught.value)
    check(make_config(**{"perturbation.epsilon_relative": 0.1, "engine.precision": "bf16"}))


def test_a_run_without_an_adversary_has_no_radius_to_check(make_config):
    options = {"perturbation.epsilon_relative": BETWEEN, "engine.precision": "bf16"}
    check(make_config(objective="simcse", **options))
