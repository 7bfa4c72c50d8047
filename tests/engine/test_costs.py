"""The cost model against what torch counts in real steps, and against sizes that are published."""

import pytest
import torch

from bench.step_cost import StepCounter
from fastadv.config import Config, DataConfig, EncoderConfig, PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.encoder import Encoder
from fastadv.engine.costs import BatchSize, StepCosts
from fastadv.engine.step import Step
from fastadv.engine.wire import Traffic, bytes_sent
from fastadv.objectives import resolve_objective
from fastadv.objectives.rtd import build_detection

RELATIVE = {"epsilon_relative": 0.1, "alpha": 0.5, "beta": 0.4, "gamma": 0.7}
RTD = {"rtd_generator": "unigram"}
FGM = {"method": "fgm", "epsilon_relative": 0.1}
CASES = {
    "simcse": ("simcse", {}, {}, {}),
    "simcse, mean pooling, no head": ("simcse", {"head": "none"}, {}, {"pooling": "mean"}),
    "simcse, bn_mlp": ("simcse", {"head": "bn_mlp"}, {}, {}),
    "simcse, 1 of 3 layers frozen": ("simcse", {}, {}, {"num_frozen_layers": 1}),
    "uscal, clean graph": ("uscal", {}, FGM, {}),
    "uscal, clean graph, frozen embeddings": ("uscal", {}, FGM, {"num_frozen_layers": 0}),
    "uscal, dropout off inside": ("uscal", {}, {**FGM, "inner_dropout": "off"}, {"dropout": 0.1}),
    "exact, N = 1": ("robustsentembed", {}, {**RELATIVE, "num_steps": 1}, {}),
    "exact, N = 5": ("robustsentembed", {}, {**RELATIVE, "num_steps": 5}, {}),
    "exact, N = 5, clean graph": (
        "robustsentembed",
        {},
        {**RELATIVE, "num_steps": 5, "sigma": 0.0, "use_eta": False},
        {"dropout": 0.0},
    ),
    "exact, separate gradients": ("robustsentembed", {}, {**RELATIVE, "num_steps": 2, "gradient": "separate"}, {}),
    "exact, detection": ("robustsentembed", RTD, {**RELATIVE, "num_steps": 5}, {}),
    "exact, mean pooling, detection": ("robustsentembed", RTD, {**RELATIVE, "num_steps": 1}, {"pooling": "mean"}),
    "exact, padded": ("robustsentembed", {}, {**RELATIVE, "num_steps": 2}, {"path": "generic"}),
    "none, N = 1": ("robustsentembed", {}, {**RELATIVE, "num_steps": 1, "reuse": "none"}, {}),
    "none, N = 5, detection": ("robustsentembed", RTD, {**RELATIVE, "num_steps": 5, "reuse": "none"}, {}),
    "none, no eta": ("robustsentembed", {}, {**RELATIVE, "num_steps": 2, "reuse": "none", "use_eta": False}, {}),
    "free, N = 1": ("robustsentembed", {}, {**RELATIVE, "num_steps": 1, "reuse": "free"}, {}),
    "free, N = 5, detection": ("robustsentembed", RTD, {**RELATIVE, "num_steps": 5, "reuse": "free"}, {}),
    "adaptive, N = 1": ("robustsentembed", {}, {**RELATIVE, "num_steps": 1, "reuse": "adaptive"}, {}),
    "adaptive, N = 5, detection": ("robustsentembed", RTD, {**RELATIVE, "num_steps": 5, "reuse": "adaptive"}, {}),
}


class NoTokenizer:
    """What an encoder and replaced token detection ask of a tokenizer when they are given ids."""

    all_special_ids, unk_token_id = [0, 1, 2], 1

    def num_special_tokens_to_add(self):
        return 2


def model_config(**changes):
    from transformers import BertConfig

    sizes = {
        "vocab_size": 99,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 160,
    }
    return BertConfig(max_position_embeddings=64, **{**sizes, **changes})


def make_batch(num_sentences=24, longest=20):
    lengths = [longest - (3 * i) % 13 for i in range(num_sentences)]
    ids = [[3 + (7 * i + j) % 96 for j in range(length)] for i, length in enumerate(lengths)]
    special = [[j in (0, length - 1) for j in range(length)] for length in lengths]
    return PackedBatch.from_token_lists(ids, special)


def make_config(case):
    objective, options, perturbation, encoder = CASES[case]
    settings = {"max_length": 32, **encoder}
    config = Config(EncoderConfig(**settings), DataConfig(), objective, dict(options))
    config.perturbation = PerturbationConfig(**perturbation)
    return config


def make_step(config, hf_config):
    from transformers import BertModel

    asked = config.encoder
    hf = BertModel(hf_config, add_pooling_layer=False)
    encoder = Encoder(hf, NoTokenizer(), asked.pooling, asked.max_length, asked.dropout, asked.path)
    if asked.num_frozen_layers is not None:
        from fastadv.encoder.depth import freeze_layers

        freeze_layers(encoder.hf, asked.num_frozen_layers)
    objective = resolve_objective(config.objective)(encoder.hidden_size, **config.objective_options)
    detection = None
    if objective.detection is not None:
        counts = torch.ones(encoder.vocab_size, dtype=torch.int64)
        detection = build_detection(objective.detection, encoder, lambda: counts)
    return Step(encoder, objective, config.perturbation, detection).train()


def counted(step, batch):
    step.zero_grad(set_to_none=True)
    with StepCounter() as counter:
        step(batch).backward()
    step.commit()
    return counter.flops


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_torch_counts(case):
    config, hf_config, batch = make_config(case), model_config(), make_batch()
    step, model = make_step(config, hf_config), StepCosts(config, hf_config)
    size = BatchSize(batch.num_sentences, batch.num_tokens, batch.max_seqlen)
    expected = model.flops(size, is_probe=True)
    # An inner step needs two products of its contrastive loss, and the fused operation forms three. The padded path
    # runs torch's fused attention, whose backward forms the logits once more.
    tolerance = 0.02 if config.encoder.path == "generic" else 0.001
    assert sum(expected.values()) == pytest.approx(counted(step, batch), rel=tolerance)
    if config.perturbation.reuse == "adaptive":
        found = counted(step, batch)
        taken = int(step.metrics["num_gradients"])
        assert sum(model.flops(size, taken, is_probe=False).values()) == pytest.approx(found, rel=tolerance)


def test_a_ring_sends_what_it_must():
    # Of two ranks each has a half: it sends that to gather, and for a sum its half and then the sum of the other.
    assert Traffic("", "all_gather", 100.0).sent(2) == 50 and Traffic("", "reduce_scatter", 100.0).sent(2) == 50
    assert Traffic("", "all_reduce", 100.0).sent(2) == 100 and Traffic("", "all_reduce", 100.0).sent(4) == 150
    assert bytes_sent([Traffic("", "all_gather", 100.0), Traffic("", "all_reduce", 100.0)], 2) == 150
