"""``engine.offload_*``: another place for the same numbers."""

import pytest
import torch

from fastadv.config.schema import Config
from fastadv.distributed import processes, zero
from fastadv.errors import UserError
from fastadv.launch.checks import check_config
from tests.ranks.cases.steps import SENTENCES, make_step, same_tokens_replaced
from tests.ranks.cases.steps import make_config as make_config_of

OFFLOADS = [(1, "cpu", "none"), (2, "cpu", "none"), (3, "cpu", "none"), (3, "none", "cpu"), (3, "cpu", "cpu")]


def train(folder, stage, precision, optimizer="none", parameters="none"):
    """Losses, norms and weights of four steps."""
    config = make_config_of(stage, precision)
    config.engine.offload_optimizer, config.engine.offload_parameters = optimizer, parameters
    check_config(config)
    processes.init_distributed()
    step = make_step(folder, "pgd")
    engine, values = zero.initialise(step, config, 10), []
    try:
        places = engine.zero_offload_optimizer(), engine.zero_offload_param()
        for number in range(1, 5):
            torch.manual_seed(number)
            with same_tokens_replaced():
                values += zero.update(engine, engine(step.encoder.pack(SENTENCES)), 1.0, number)
            step.commit()
        weights = zero.full_precision_weights(step)
    finally:
        zero.destroy(engine)
    return [place is not None and place.device == "cpu" for place in places], values, weights


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage, optimizer, parameters", OFFLOADS)
def test_what_lies_on_the_host_trains_the_same(tiny_bert_dir, stage, precision, optimizer, parameters):
    moved, found, weights = train(str(tiny_bert_dir), stage, precision, optimizer, parameters)
    assert moved == [optimizer == "cpu", parameters == "cpu"]
    moved, expected, others = train(str(tiny_bert_dir), stage, precision)
    assert moved == [False, False]
    if optimizer == "cpu":
        # The gradient norm is summed in another order there, and clips; on some processors the two sums are equal.
        assert found == pytest.approx(expected, rel=1e-6)
        # A step of Adam is about the rate, 1e-3, whatever the gradient, so where that is rounding, so is the step.
        for name, value in weights.items():
            assert name.endswith("key.bias") or ((value - others[name]).abs() <= 1e-5).float().mean() > 0.99, name
    else:
        assert found == expected and all(torch.equal(value, others[name]) for name, value in weights.items())


@pytest.mark.parametrize("name, stage", [("optimizer", 0), *(("parameters", stage) for stage in (0, 1, 2))])
def test_a_stage_that_has_nothing_to_move_is_refused(name, stage):
    config = Config()
    config.engine.zero_stage = stage
    setattr(config.engine, f"offload_{name}", "cpu")
    with pytest.raises(
        UserError, match=rf"^engine.offload_{name} = cpu: expected none at engine.zero_stage {stage}, or"
    ):
        check_config(config)


@pytest.mark.parametrize("stage", [1, 3])
def test_the_reduction_bucket_is_no_larger_than_the_model_and_torch_is_left_as_it_was(tiny_bert_dir, stage):
    linear = torch.nn.functional.linear
    processes.init_distributed()
    step = make_step(str(tiny_bert_dir), "pgd")
    num_parameters = sum(p.numel() for p in step.parameters())
    engine = zero.initialise(step, make_config_of(stage), 10)
    try:
        assert stage == 3 or engine.zero_reduce_bucket_size() == num_parameters
    finally:
        zero.destroy(engine)
    assert torch.nn.functional.linear is linear
