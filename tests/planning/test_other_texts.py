"""What other texts of the sentences and a second network cost, against what torch counts in real steps."""

from dataclasses import replace

import pytest
import torch

from bench.steps.cost import StepCounter
from fastadv.config.schema import Config
from fastadv.distributed.optimizer import build_optimizer
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import LinearHead
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.planning.costs import BatchSize, StepCosts
from fastadv.planning.memory import activations, memory
from fastadv.planning.wire import traffic
from tests.planning.test_costs import NoTokenizer, make_batch, model_config

CASES = {
    "two networks": {},
    "no contrast": {"ablation": "no_ctr"},
    "one network": {"ablation": "no_adv"},
    "distances": {"similarity": "neg_l2"},
}


def make(options, hf_config=None):
    """A step of TaiChi, its costs, and a batch whose attacked texts are as long as its sentences."""
    from transformers import BertModel

    hf_config = hf_config or model_config()
    config = Config(objective="taichi", objective_options=dict(options))
    config.encoder.pooling, config.encoder.dropout = "mean", 0.0
    config.engine.attention = "matmul"
    encoders = []
    for _ in range(2):
        hf = BertModel(hf_config, add_pooling_layer=False)
        encoders.append(Encoder(hf, NoTokenizer(), "mean", 32, 0.0, attention="matmul"))
    hidden = encoders[0].hidden_size
    objective = resolve_objective("taichi")(hidden, LinearHead(hidden, 2), **options)
    second = None
    if objective.needs.second_network:
        second, objective.second_classifier = encoders[1], LinearHead(hidden, 2)
    step = Step(encoders[0], objective, config.perturbation, second=second).train()
    batch = make_batch()
    attacked = replace(make_batch(), labels=None, is_present=torch.arange(batch.num_sentences) % 3 > 0)
    return step, StepCosts(config, hf_config), replace(batch, variants={"adversarial": attacked})


def size_of(batch):
    return BatchSize(batch.num_sentences, batch.num_tokens, batch.max_seqlen)


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_torch_counts(case):
    step, costs, batch = make(CASES[case])
    with StepCounter() as counter:
        step(batch).backward()
    expected = costs.flops(size_of(batch))
    assert sum(expected.values()) == pytest.approx(counter.flops, rel=0.001)
    assert expected["other texts"] == expected["clean views"]
    assert expected.get("second network", 0) == (0 if case == "one network" else 2 * expected["clean views"])
    assert ("contrasts" in expected) == (case in ("two networks", "one network"))


@pytest.mark.parametrize("case", ["two networks", "one network"])
def test_state_is_what_lies_in_memory(case):
    """Weights, gradients and AdamW's means of both networks and both heads."""
    step, costs, batch = make(CASES[case])
    optimizer = build_optimizer(step, costs.config.optimizer)
    step(batch).backward()
    optimizer.step()

    def bytes_of(tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    found = memory(costs, size_of(batch))
    assert found.weights == bytes_of(step.parameters())
    assert found.gradients == bytes_of(p.grad for p in step.parameters())
    state = [value for of_one in optimizer.state.values() for value in of_one.values() if value.ndim]
    assert found.optimizer == bytes_of(state)


def test_bfloat16_copies_are_of_both_networks():
    found = {}
    for case in ("two networks", "one network"):
        _, costs, batch = make(CASES[case])
        costs.config.engine.precision = "bf16"
        found[case] = memory(costs, size_of(batch)).buffers
    assert found["two networks"] == 2 * found["one network"] > 0


def test_activations_are_of_all_passes():
    from bench.steps.cost import measure_costs

    hf_config = model_config(hidden_size=128, intermediate_size=512, num_hidden_layers=4)
    found = {}
    for case in ("two networks", "one network"):
        step, costs, batch = make(CASES[case], hf_config)
        parameters = list(step.parameters())
        step(batch).backward()
        measured = measure_costs(lambda s=step, b=batch: s(b).backward(), parameters, 0)["working_mib"] * 2**20
        found[case] = activations(costs, size_of(batch), 1, is_fused=False)
        assert found[case] == pytest.approx(measured, rel=0.1)
    assert found["two networks"] == pytest.approx(2 * found["one network"], rel=0.05)


def test_keys_of_both_contrasts_are_sent():
    costs = {case: make(CASES[case])[1] for case in CASES}
    size, sent = BatchSize(24, 480, 20), {}
    for case, of_case in costs.items():
        sent[case] = {part.part: part.payload for part in traffic(of_case, size, 2)}
    assert sent["two networks"]["keys"] == 2 * sent["one network"]["keys"] > 0
    assert "keys" not in sent["no contrast"]
    ratio = sent["two networks"]["gradients"] / sent["one network"]["gradients"]
    assert ratio == pytest.approx(2)
