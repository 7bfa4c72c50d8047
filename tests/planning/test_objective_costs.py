"""What CARL, RAR and TaiChi cost, against what torch counts in real steps."""

from dataclasses import replace

import pytest
import torch

from bench.steps.cost import measure_costs
from fastadv.config.schema import Config, PerturbationConfig
from fastadv.planning import wire
from fastadv.planning.costs import BatchSize, StepCosts
from fastadv.planning.memory import activations, memory
from tests.planning.test_costs import check_state, counted, make_batch, make_config, make_step, model_config, size_of

CARL = {"num_negatives": 5000, "start_step": 0}
FREELB = {"method": "freelb", "num_steps": 3, "epsilon": None, "alpha": 0.5}
MEAN = {"pooling": "mean", "dropout": 0.0}
CASES = {
    "carl, nce": ("carl", CARL, FREELB, {}),
    "carl, softmax, per row": ("carl", {**CARL, "estimator": "softmax", "negatives": "per_row"}, FREELB, {}),
    "rar": ("rar", {}, FREELB, {}),
}
TAICHI = {
    "two networks": ("taichi", {}, {}, MEAN),
    "no contrast": ("taichi", {"ablation": "no_ctr"}, {}, MEAN),
    "one network": ("taichi", {"ablation": "no_adv"}, {}, MEAN),
    "distances": ("taichi", {"similarity": "neg_l2"}, {}, MEAN),
}


def make_taichi(case, hf_config=None):
    """A step of TaiChi, its costs, and a batch whose attacked texts are as long as its sentences."""
    config, hf_config, batch = make_config(case, TAICHI), hf_config or model_config(), make_batch()
    config.engine.attention = "matmul"
    step = make_step(config, hf_config, {"attention": "matmul"})
    attacked = replace(make_batch(), labels=None, is_present=torch.arange(batch.num_sentences) % 3 > 0)
    return step, StepCosts(config, hf_config), replace(batch, variants={"adversarial": attacked})


@pytest.mark.parametrize("num_sentences", [24, 90])
@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_torch_counts(case, num_sentences):
    """Of RAR also where logits are computed once more: 90 sentences have more tokens than are alive together."""
    config, hf_config = make_config(case, CASES), model_config(vocab_size=300)
    batch, rows = make_batch(num_sentences), torch.arange(num_sentences)
    batch = replace(batch, labels=rows % 2, row_ids=rows)
    step, costs = make_step(config, hf_config, num_rows=num_sentences), StepCosts(config, hf_config)
    assert costs.parameters.total == sum(p.numel() for p in step.parameters())
    step(batch)
    step.commit()
    found, expected = counted(step, batch), costs.flops(size_of(batch))
    assert sum(expected.values()) == pytest.approx(found, rel=0.002)
    assert expected["reconstruction" if case == "rar" else "negatives"] > 0.01 * found


@pytest.mark.parametrize("case", TAICHI)
def test_flops_of_other_texts_are_those_torch_counts(case):
    step, costs, batch = make_taichi(case)
    expected = costs.flops(size_of(batch))
    assert sum(expected.values()) == pytest.approx(counted(step, batch), rel=0.001)
    assert expected["other texts"] == expected["clean views"]
    assert expected.get("second network", 0) == (0 if case == "one network" else 2 * expected["clean views"])
    assert ("contrasts" in expected) == (case in ("two networks", "one network"))


def test_memory_is_of_both_networks_and_all_passes():
    small, large = model_config(), model_config(hidden_size=128, intermediate_size=512, num_hidden_layers=4)
    buffers, kept = {}, {}
    for case in ("two networks", "one network"):
        step, costs, batch = make_taichi(case, small)
        check_state(step, costs, batch)
        costs.config.engine.precision = "bf16"
        buffers[case] = memory(costs, size_of(batch)).buffers
        step, costs, batch = make_taichi(case, large)
        step(batch).backward()
        measured = measure_costs(lambda s=step, b=batch: s(b).backward(), list(step.parameters()), 0)["working_mib"]
        kept[case] = activations(costs, size_of(batch), 1, is_fused=False)
        assert kept[case] == pytest.approx(measured * 2**20, rel=0.1)
    # Copies in bfloat16 are of both networks, and so are activations.
    assert buffers["two networks"] == 2 * buffers["one network"] > 0
    assert kept["two networks"] == pytest.approx(2 * kept["one network"], rel=0.05)


def test_keys_of_both_contrasts_are_sent():
    costs = {case: StepCosts(make_config(case, TAICHI), model_config()) for case in TAICHI}
    size, sent = BatchSize(24, 480, 20), {}
    for case, of_case in costs.items():
        sent[case] = {part.part: part.payload for part in wire.traffic(of_case, size, 2)}
    assert sent["two networks"]["keys"] == 2 * sent["one network"]["keys"] > 0
    assert "keys" not in sent["no contrast"]
    ratio = sent["two networks"]["gradients"] / sent["one network"]["gradients"]
    assert ratio == pytest.approx(2)


@pytest.mark.parametrize(
    ("objective", "perturbation", "num_sets"),
    [
        ("fine_tuning", {}, 0),
        ("adversarial_training", {"method": "fgm", "epsilon": 1.0}, 0),
        ("scal", {"method": "fgm", "epsilon": 1.0}, 1),
        ("uscal", {"method": "fgm", "epsilon": 1.0}, 2),
        ("robustsentembed", {"num_steps": 3, "reuse": "free"}, 4),
    ],
)
def test_only_vectors_that_are_compared_are_sent(objective, perturbation, num_sets):
    config = Config(objective=objective, perturbation=PerturbationConfig(**perturbation))
    costs = StepCosts(config, model_config())
    assert costs.num_key_sets == num_sets
    sent = {traffic.part for traffic in wire.traffic(costs, BatchSize(16, 200, 20), 2)}
    assert ("keys" in sent) == (num_sets > 0)
