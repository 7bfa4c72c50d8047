"""The cost model against what torch counts in real steps, and against sizes that are published."""

from unittest import mock

import numpy as np
import pytest
import torch

from bench.steps.cost import StepCounter, bytes_of, measure_costs
from fastadv.config.schema import Config, DataConfig, EncoderConfig, PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.distributed.optimizer import build_optimizer
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import make_head
from fastadv.encoder.weights.depth import freeze_layers
from fastadv.encoder.weights.lora import add_lora
from fastadv.encoder.weights.source import find_model
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts
from fastadv.objectives.original import OriginalEncoder
from fastadv.objectives.sentences.rtd import build_detection
from fastadv.planning.cards import CARDS, find_card, peak_flops
from fastadv.planning.costs import BatchSize, StepCosts, step_flops
from fastadv.planning.memory import activations, memory
from fastadv.planning.model_shape import Count, shape_of
from fastadv.planning.wire import Traffic, bytes_sent
from fastadv_kernels import backend

RELATIVE = {"epsilon_relative": 0.1, "alpha": 0.5, "beta": 0.4, "gamma": 0.7}
RTD = {"rtd_generator": "unigram"}
FGM = {"method": "fgm", "epsilon_relative": 0.1}
SMART = {"method": "pgd", "num_steps": 2, "start": "normal", "sigma": 0.05, "epsilon": 0.1, "alpha": 0.1}
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
    "freelb, N = 3": ("adversarial_training", {"weight_clean": 0.0}, {"method": "freelb", "num_steps": 3}, {}),
    "smart": ("smart", {}, {**SMART, "inner_dropout": "frozen"}, {"dropout": 0.1}),
    "smart, dropout off inside": ("smart", {}, {**SMART, "inner_dropout": "off"}, {"dropout": 0.1}),
    "smart, no dropout": ("smart", {}, SMART, {"dropout": 0.0}),
    "smart, reference": ("smart", {}, {**SMART, "reuse": "none"}, {"dropout": 0.0}),
    "smart, no average": ("smart", {"weight_momentum": 0.0}, SMART, {"dropout": 0.0}),
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
    return PackedBatch.from_token_lists(ids, special, labels=[i % 2 for i in range(num_sentences)])


def make_config(case, cases=CASES):
    objective, options, perturbation, encoder = cases[case]
    settings = {"pooling": "cls", "max_length": 32, **encoder}
    config = Config(EncoderConfig(**settings), DataConfig(), objective, dict(options))
    config.perturbation = PerturbationConfig(**perturbation)
    return config


def make_step(config, hf_config, of_encoder=(), of_step=(), num_rows=24):
    from transformers import BertModel

    asked = config.encoder

    def make_encoder():
        hf, options = BertModel(hf_config, add_pooling_layer=False), dict(of_encoder)
        made = Encoder(hf, NoTokenizer(), asked.pooling, asked.max_length, asked.dropout, asked.path, **options)
        if asked.num_frozen_layers is not None:
            freeze_layers(made.hf, asked.num_frozen_layers)
        return made

    encoder, kind = make_encoder(), resolve_objective(config.objective)
    given = (make_head(asked.pooling, encoder.hidden_size, 2),) if kind.needs.labels else ()
    objective = kind(encoder.hidden_size, *given, **config.objective_options)
    objective.bind(encoder)
    objective.begin(RunFacts(num_rows, batches_per_epoch=1, total_steps=20, row_labels=np.arange(num_rows) % 2))
    if objective.needs.original:
        objective.original_vectors = OriginalEncoder(encoder)
    detection = None
    if objective.needs.detection is not None:
        counts = torch.ones(encoder.vocab_size, dtype=torch.int64)
        detection = build_detection(objective.needs.detection, encoder, lambda: counts)
    second = make_encoder() if objective.needs.second_network else None
    return Step(encoder, objective, config.perturbation, detection, second=second, **dict(of_step)).train()


def size_of(batch):
    return BatchSize(batch.num_sentences, batch.num_tokens, batch.max_seqlen)


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
    size = size_of(batch)
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


def test_step_flops_takes_what_a_loop_knows():
    config, hf_config, batch = make_config("exact, N = 5"), model_config(), make_batch()
    counted_there = counted(make_step(config, hf_config), batch)
    found = step_flops(config, hf_config, batch.num_tokens, batch.num_sentences, batch.max_seqlen)
    assert found == pytest.approx(counted_there, rel=0.001)
    # At the length that sentences are cut to, attention is laid out wider.
    assert found < step_flops(config, hf_config, batch.num_tokens, batch.num_sentences)
    config.perturbation.num_steps = 1
    assert step_flops(config, hf_config, batch.num_tokens, batch.num_sentences, batch.max_seqlen) < 0.7 * found


@pytest.mark.parametrize(("objective", "encoder"), [("robustsentembed", {"lora_rank": 2}), ("rar", {})])
def test_a_run_that_measures_itself_draws_no_number(objective, encoder):
    """On a GPU the first line of the log measures the model, and one that is resumed has lines of its own."""
    config = Config(objective=objective, encoder=EncoderConfig(**encoder))
    before = torch.get_rng_state()
    StepCosts(config, model_config())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_is_counted_to_its_last_masked_token():
    from transformers import BertForMaskedLM

    from fastadv.objectives.sentences.rtd_generators import MaskedLanguageModelGenerator

    hf_config, batch = model_config(), make_batch()
    generator = MaskedLanguageModelGenerator(BertForMaskedLM(hf_config), 2, [0, 1, 2], 99)
    masked = torch.arange(batch.num_tokens) % 3 == 1
    with StepCounter() as counter:
        generator.fill(batch, masked, "sample")
    config = make_config("exact, detection")
    size = size_of(batch)
    parts = [
        StepCosts(config, hf_config, generator_config).flops(size, num_masked=int(masked.sum()))
        for generator_config in (None, hf_config)
    ]
    without, with_generator = (part["replaced token detection"] for part in parts)
    assert with_generator - without == counter.flops


def test_low_rank_adapters_are_what_is_trained():
    pytest.importorskip("peft")
    config, hf_config, batch = make_config("simcse"), model_config(), make_batch()
    config.encoder.lora_rank = 4
    step = make_step(config, hf_config)
    add_lora(step.encoder.hf, 4)
    model = StepCosts(config, hf_config)
    assert model.parameters.trained == sum(p.numel() for p in step.parameters() if p.requires_grad)
    size = size_of(batch)
    assert sum(model.flops(size).values()) == pytest.approx(counted(step, batch), rel=0.01)


@pytest.mark.parametrize("case", ["simcse", "exact, N = 5", "exact, detection", "none, no eta", "uscal, clean graph"])
@pytest.mark.parametrize(
    "attention, dropout",
    [
        ("sdpa", 0.0),
        ("matmul", 0.0),
        # The reference keeps its masks; the library draws them again.
        pytest.param("matmul", 0.1, marks=pytest.mark.skipif(backend.native_library is None, reason="no C++ library")),
    ],
)
def test_activations_are_the_peak_of_live_tensors(case, attention, dropout):
    config, batch = make_config(case), make_batch(32, 32)
    hf_config = model_config(hidden_size=128, intermediate_size=512, num_hidden_layers=4)
    config.encoder.dropout, config.engine.attention = dropout, attention
    step = make_step(config, hf_config)
    for encoder in (step.encoder, *([step.detection.discriminator] if step.detection else [])):
        encoder._model.attention = config.engine.attention
    parameters = list(step.parameters())
    # The first step makes what stays: layouts by head, the table's place.
    measure_costs(lambda: counted(step, batch), parameters, 0)
    found = measure_costs(lambda: step(batch).backward(), parameters, 0)["working_mib"] * 2**20
    size = size_of(batch)
    is_fused = attention == "sdpa"
    assert activations(StepCosts(config, hf_config), size, 1, is_fused) == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("micro_batch_size, is_checkpointed", [(16, False), (None, True), (16, True)])
@pytest.mark.parametrize("case", ["simcse", "exact, N = 5", "exact, detection", "uscal, clean graph"])
def test_what_is_run_again_is_counted_and_what_is_not_kept_is_not(case, micro_batch_size, is_checkpointed):
    config, batch = make_config(case), make_batch(64, 32)
    hf_config = model_config(hidden_size=128, intermediate_size=512, num_hidden_layers=4)
    config.encoder.dropout, config.train.batch_size = 0.0, 64
    config.train.micro_batch_size, config.engine.checkpoint_activations = micro_batch_size, is_checkpointed
    step = make_step(
        config, hf_config, {"checkpoint_activations": is_checkpointed}, {"micro_batch_size": micro_batch_size}
    )
    parameters = list(step.parameters())
    measure_costs(lambda: counted(step, batch), parameters, 0)
    step.zero_grad(set_to_none=True)
    found = measure_costs(lambda: step(batch).backward(), parameters, 0)
    model, size = StepCosts(config, hf_config), size_of(batch)
    flops = sum(model.flops(size, is_probe=True).values()) + model.recomputed(size)
    assert flops == pytest.approx(found["flops"], rel=0.001)
    # The sums of pieces' gradients, and the largest that is added to one, are on their way to where they count as such.
    largest = 4 * hf_config.hidden_size * hf_config.intermediate_size
    of_gradients = memory(model, size).gradients + largest if micro_batch_size else 0.0
    expected, working = activations(model, size, 1, False), found["working_mib"] * 2**20
    # Vectors stay until the next step, so that a guard can say which went wrong.
    of_guard = bytes_of(step.watch.vectors.values())
    assert 0.85 * expected <= working <= 1.15 * expected + of_gradients + of_guard


def check_state(step, costs, batch):
    """Weights, gradients and AdamW's means at stage 0 are what lies in memory."""
    optimizer = build_optimizer(step, costs.config.optimizer)
    step(batch).backward()
    optimizer.step()
    held = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    found = memory(costs, BatchSize.assumed(costs.config))
    assert found.weights == bytes_of(step.parameters())
    assert found.gradients == bytes_of(p.grad for p in step.parameters())
    assert found.optimizer == bytes_of(held)
    assert found.state == found.weights + found.gradients + found.optimizer + found.eta_table
    return found


def test_state_at_stage_0_is_what_lies_in_memory():
    config, hf_config = make_config("exact, detection"), model_config()
    step = make_step(config, hf_config)
    table = step.eta_table.table
    found = check_state(step, StepCosts(config, hf_config), make_batch())
    assert found.eta_table == bytes_of([table]) + 4 * len(table)


def test_stages_share_out_what_they_say():
    config, hf_config = make_config("exact, detection"), model_config()
    config.engine.precision, config.train.batch_size = "bf16", 64
    costs, batch = StepCosts(config, hf_config), BatchSize(64, 1400, 32)
    num_parameters = costs.parameters.total
    by_stage = [memory(costs, batch, 8, stage) for stage in range(4)]
    assert [found.weights / num_parameters for found in by_stage] == [4, 2, 2, 2 + 2 / 8]
    assert [found.gradients / num_parameters for found in by_stage] == [4, 2, 2 / 8, 2 / 8]
    assert [found.optimizer / num_parameters for found in by_stage] == [8, 12 / 8, 12 / 8, 12 / 8]
    assert len({found.eta_table for found in by_stage}) == 1
    config.engine.offload_optimizer = config.engine.offload_parameters = "cpu"
    moved = memory(costs, batch, 8, 3)
    # Masters, means and a float32 gradient of the rank's share, and its piece of the weights.
    assert moved.optimizer == 0 and moved.on_host == (16 + 2) * num_parameters / 8
    assert moved.total < by_stage[3].total


def test_roberta_large_has_as_many_parameters_as_its_makers_say(tmp_path):
    """A folder with a configuration alone; Hugging Face's count has the pooler, which no run keeps."""
    large = roberta_large()
    large.save_pretrained(tmp_path)
    shape = shape_of(EncoderConfig(), find_model(str(tmp_path)).config)
    pooler = 1024 * 1024 + 1024
    assert shape.parameters == Count(354_310_144, 354_310_144)
    assert shape.parameters.total + pooler == 355_359_744
    frozen = shape_of(EncoderConfig(num_frozen_layers=24), large)
    assert frozen.parameters == Count(354_310_144, 0)


def roberta_large():
    from bench.pages.scaling_table import LARGE

    return LARGE


@pytest.mark.parametrize(
    "said, key",
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("AMD Instinct MI250X", "mi250x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("h100", "h100"),
    ],
)
def test_a_card_is_known_by_what_its_driver_calls_it(said, key):
    assert find_card(said) is CARDS[key]


def test_peaks():
    assert peak_flops("NVIDIA H100 80GB HBM3", torch.bfloat16) == 989.4e12
    assert peak_flops("Tesla T4", torch.bfloat16) is None and peak_flops("Tesla T4", torch.float32) == 8.1e12
    assert peak_flops("Some CPU", torch.float32) is None and peak_flops("NVIDIA L4", torch.float64) is None
    with mock.patch("torch.get_float32_matmul_precision", lambda: "high"):
        assert peak_flops("NVIDIA A100-SXM4-80GB", torch.float32) == 156e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", torch.float32) == 19.5e12
