"""What CARL and RAR cost, against what torch counts in real steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.steps.cost import StepCounter
from fastadv.config.schema import Config, DataConfig, EncoderConfig, PerturbationConfig
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts
from fastadv.planning import wire
from fastadv.planning.costs import BatchSize, StepCosts
from tests.planning.test_costs import NoTokenizer, make_batch, model_config

CASES = {
    "carl, nce": ("carl", {"num_negatives": 5000, "start_step": 0}),
    "carl, softmax, per row": (
        "carl",
        {"num_negatives": 5000, "start_step": 0, "estimator": "softmax", "negatives": "per_row"},
    ),
    "rar": ("rar", {}),
}


def make(case):
    from transformers import BertModel

    name, options = CASES[case]
    search = PerturbationConfig(method="freelb", num_steps=3, epsilon=None)
    config = Config(EncoderConfig(max_length=32), DataConfig(), name, options)
    config.perturbation, hf_config = search, model_config(vocab_size=300)
    encoder = Encoder(BertModel(hf_config, add_pooling_layer=False), NoTokenizer(), "cls", 32)
    objective = resolve_objective(name)(encoder.hidden_size, ClassificationHead(encoder.hidden_size, 2), **options)
    objective.bind(encoder)
    return config, hf_config, Step(encoder, objective, search).train()


def labelled(num_sentences):
    batch = make_batch(num_sentences)
    rows = torch.arange(num_sentences)
    return replace(batch, labels=rows % 2, row_ids=rows)


@pytest.mark.parametrize("num_sentences", [24, 90])
@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_torch_counts(case, num_sentences):
    """Of RAR also where logits are computed once more: 90 sentences have more tokens than are alive together."""
    (config, hf_config, step), batch = make(case), labelled(num_sentences)
    step.objective.begin(RunFacts(num_sentences, 1, 10, row_labels=np.arange(num_sentences) % 2))
    step(batch)
    step.commit()
    step.zero_grad(set_to_none=True)
    with StepCounter() as counter:
        step(batch).backward()
    expected = StepCosts(config, hf_config).flops(BatchSize(num_sentences, batch.num_tokens, batch.max_seqlen))
    assert sum(expected.values()) == pytest.approx(counter.flops, rel=0.002)
    assert expected["reconstruction" if case == "rar" else "negatives"] > 0.01 * counter.flops


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_the_step(case):
    config, hf_config, step = make(case)
    assert StepCosts(config, hf_config).parameters.total == sum(p.numel() for p in step.parameters())


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
