"""Adapters, frozen layers and a rate of its own for each layer: what is trained, how fast, and what comes out."""

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel

from fastadv.config.schema import OptimizerConfig
from fastadv.distributed.optimizer import build_optimizer, linear_schedule
from fastadv.encoder import Encoder
from fastadv.encoder.weights.depth import freeze_layers
from fastadv.encoder.weights.lora import add_lora
from fastadv.errors import UserError
from fastadv.launch.checks import check_config, check_encoder
from tests.quick_trainer import Trainer

aten = torch.ops.aten
RANK = 3


class WeightGradients(TorchDispatchMode):
    """The shapes of gradients of matrices, tables and LayerNorms computed while it is on."""

    def __init__(self, module):
        super().__init__()
        shapes = {tuple(p.shape) for p in module.parameters() if p.ndim == 2}
        self.shapes = shapes | {shape[::-1] for shape in shapes}
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        if function is aten.mm.default and tuple(output.shape) in self.shapes:
            self.seen.append(tuple(output.shape))
        elif function is aten.embedding_dense_backward.default:
            self.seen.append(tuple(output.shape))
        elif function is aten.native_layer_norm_backward.default and any(args[-1][1:]):
            self.seen.append(tuple(args[1].shape))
        return output


def count(recorded, batch):
    """What WeightGradients saw in the search, and in all the rest of a step."""
    step = recorded.step
    inner, whole = WeightGradients(step), WeightGradients(step)
    search = step.search.search

    def counted(*arguments):
        with inner:
            return search(*arguments)

    step.search.search = counted
    with whole:
        step(batch).backward()
    outer = list(whole.seen)
    for shape in inner.seen:
        if shape in outer:
            outer.remove(shape)
    return inner.seen, outer


def prepare(step, how):
    encoder = step.encoder
    if how == "lora":
        add_lora(encoder.hf, RANK)
    elif how == "lora above a frozen layer":
        freeze_layers(encoder.hf, 1)
        add_lora(encoder.hf, RANK)
    elif how == "frozen layer":
        freeze_layers(encoder.hf, 1)
    for name, parameter in encoder.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.2 * torch.randn_like(parameter)


@pytest.mark.parametrize("how", ["all", "lora", "lora above a frozen layer", "frozen layer"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_no_weight_gradient_in_the_inner_loop(how, pooling, make_step, sentences):
    recorded = make_step(pooling=pooling, num_steps=2)
    prepare(recorded.step, how)
    batch = recorded.step.encoder.pack(sentences)
    # The counter tells weights by their shapes, which no activation may have.
    assert not {batch.num_tokens, batch.num_sentences} & {RANK, 32, 64}
    inner, outer = count(recorded, batch)
    assert inner == [] and outer
    graded = {name for name, p in recorded.step.named_parameters() if p.grad is not None}
    assert graded == {name for name, p in recorded.step.named_parameters() if p.requires_grad}
    if how.startswith("lora"):
        head = {tuple(p.shape) for p in recorded.step.objective.parameters()}
        assert all(RANK in shape or shape in head for shape in outer)
        assert {name for name in graded if name.startswith("encoder.") and "lora_" not in name} == set()


def test_the_counter_sees_what_the_reference_computes(make_step, sentences):
    recorded = make_step(num_steps=2, reuse="none")
    prepare(recorded.step, "lora")
    inner, _ = count(recorded, recorded.step.encoder.pack(sentences))
    assert any(RANK in shape for shape in inner)


@pytest.mark.parametrize("how", ["lora", "frozen layer"])
def test_reuse_changes_nothing(how, make_step, sentences):
    results = []
    for reuse in ("none", "exact"):
        recorded = make_step(num_steps=2, reuse=reuse)
        torch.manual_seed(5)
        prepare(recorded.step, how)
        torch.manual_seed(6)
        results.append(recorded.run(recorded.step.encoder.pack(sentences)))
    (loss, grads), (other_loss, other_grads) = results
    assert grads.keys() == other_grads.keys()
    assert abs(loss - other_loss) < 1e-12 * abs(loss)
    for name, grad in grads.items():
        assert (grad - other_grads[name]).norm() <= 1e-10 * grad.norm() + 1e-14, name


def rates(step, **settings):
    optimizer = build_optimizer(step, OptimizerConfig(lr=1e-3, weight_decay=0.1, **settings))
    of_parameter = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    return optimizer, {n: of_parameter[id(p)] for n, p in step.named_parameters() if id(p) in of_parameter}


def test_the_rate_falls_from_layer_to_layer(make_step):
    step = make_step().step
    optimizer, groups = rates(step, layer_lr_decay=0.5)
    assert groups.keys() == {name for name, _ in step.named_parameters()}
    for name, group in groups.items():
        factor = 1.0
        if name.startswith("encoder."):
            factor = 0.125 if ".embeddings." in name else 0.25 if ".layer.0." in name else 0.5
        assert group["lr"] == pytest.approx(1e-3 * factor, rel=1e-12), name
        assert group["weight_decay"] == (0.1 if step.get_parameter(name).ndim > 1 else 0.0)
    assert optimizer.param_groups[0]["lr"] == 1e-3
    schedule = linear_schedule(optimizer, 0.5, 4)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups][0] == pytest.approx(5e-4)
    assert min(group["lr"] for group in optimizer.param_groups) == pytest.approx(6.25e-5)


def test_without_decay_there_are_two_groups_in_the_old_order(make_step):
    step = make_step().step
    optimizer, _ = rates(step)
    matrices, others = ([id(p) for p in group["params"]] for group in optimizer.param_groups)
    assert matrices == [id(p) for p in step.parameters() if p.ndim > 1]
    assert others == [id(p) for p in step.parameters() if p.ndim <= 1]


def test_adapters_take_their_layers_rate(make_step):
    step = make_step().step
    prepare(step, "lora")
    _, groups = rates(step, layer_lr_decay=0.5)
    lr = {name.split(".")[4]: group["lr"] for name, group in groups.items() if "lora_" in name}
    assert lr == {"0": pytest.approx(2.5e-4), "1": pytest.approx(5e-4)}
    assert not [name for name in groups if name.startswith("encoder.") and "lora_" not in name]


PARTS = {
    "encoder.lora_rank": 2,
    "encoder.num_frozen_layers": 1,
    "optimizer.layer_lr_decay": 0.5,
    "optimizer.lr": 1e-2,
    "train.max_steps": 4,
}


@pytest.mark.parametrize("stage, precision", [(0, "fp32"), (1, "bf16"), (3, "fp32"), (3, "bf16")])
def test_a_run_exports_merged_weights(stage, precision, make_config, tiny_bert_dir):
    engine = {"engine.zero_stage": stage, "engine.precision": precision}
    # bfloat16 would round a small ball away.
    folder = Trainer(make_config(**PARTS, **engine, **{"perturbation.epsilon_relative": 0.5})).fit()
    before, after = (load_file(path / "model.safetensors") for path in (tiny_bert_dir, folder / "model"))
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name].to(before[name].dtype))}
    adapted = ("attention.self.query", "attention.self.key", "attention.self.value", "dense")
    assert changed and all(name.startswith("encoder.layer.1.") and "bias" not in name for name in changed)
    if precision == "fp32":
        assert changed == {n for n in before if n.startswith("encoder.layer.1.") and n.endswith("weight")} & {
            name for name in before if any(f"{part}.weight" in name for part in adapted)
        }
    assert AutoModel.from_pretrained(folder / "model") is not None
    assert not [path for path in (folder / "model").rglob("*") if "adapter" in path.name]


def refused(config):
    with pytest.raises(UserError) as caught:
        check_config(config)
        check_encoder(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_mistakes_before_weights_are_read(make_config, monkeypatch):
    message = refused(make_config(**{"encoder.num_frozen_layers": 3}))
    assert message == "encoder.num_frozen_layers = 3: expected at most 2, the layers of the encoder"
    assert refused(make_config(**{"encoder.lora_alpha": 4.0})) == (
        "encoder.lora_alpha = 4.0: expected null where encoder.lora_rank is null"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(make_config(**{"encoder.lora_rank": 8})) == (
        "encoder.lora_rank = 8: needs peft, which is not installed: pip install 'fastadv[peft]'"
    )


def test_nothing_left_to_train(make_step):
    step = make_step(objective_options={"head": "none"}).step
    freeze_layers(step.encoder.hf, 2)
    with pytest.raises(UserError, match="^nothing is left to train: encoder.num_frozen_layers freezes all there is$"):
        rates(step)


def test_adapters_of_equal_seeds_are_equal(make_config):
    from fastadv.engine.build import build_encoder

    encoders = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        encoders.append(build_encoder(make_config(**{"encoder.lora_rank": 2})))
    assert isinstance(encoders[0], Encoder)
    for one, other in zip(*(encoder.parameters() for encoder in encoders), strict=True):
        assert torch.equal(one, other)
