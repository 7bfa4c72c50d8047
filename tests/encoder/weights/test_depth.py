"""Which layer a parameter belongs to, and what is frozen."""

import pytest
import torch

from fastadv.encoder import Encoder
from fastadv.encoder.weights.depth import freeze_layers, layer_modules, parameter_depths
from fastadv.errors import UserError

FAMILIES = ["Bert", "Roberta", "Electra", "Albert", "DistilBert", "MPNet", "DebertaV2", "ModernBert", "GPT2"]


def hf_of(family_encoder, family, **config):
    return family_encoder(family, perturb_at="word", config=config).hf


@pytest.mark.parametrize("family", FAMILIES)
def test_depths_follow_the_model(family, family_encoder):
    hf = hf_of(family_encoder, family)
    depths = parameter_depths(hf)
    assert set(depths) == {name for name, _ in hf.named_parameters()}
    num_layers = len(layer_modules(hf))
    assert num_layers == hf.config.num_hidden_layers == 2
    tables = {name for name, depth in depths.items() if depth == 0}
    words = next(name for name, p in hf.named_parameters() if p is hf.get_input_embeddings().weight)
    assert words in tables
    assert not any("pooler" in name or "norm" in name.lower() and "embed" not in name for name in tables)
    is_shared = family == "Albert"
    assert set(depths.values()) - {3} == ({0, 2} if is_shared else {0, 1, 2})
    # Each layer's own parameters, and no other's.
    for depth, layer in enumerate(layer_modules(hf), start=1):
        if not is_shared:
            own = {id(p) for p in layer.parameters()}
            assert {id(p) for n, p in hf.named_parameters() if depths[n] == depth} == own


def test_what_maps_e_to_d_counts_as_embedding(family_encoder):
    assert parameter_depths(hf_of(family_encoder, "Electra"))["embeddings_project.weight"] == 0
    assert parameter_depths(hf_of(family_encoder, "Albert"))["encoder.embedding_hidden_mapping_in.weight"] == 0
    # A table of relative positions is built behind the layers, and read by each.
    assert parameter_depths(hf_of(family_encoder, "DebertaV2"))["encoder.rel_embeddings.weight"] == 0
    assert parameter_depths(hf_of(family_encoder, "ModernBert"))["final_norm.weight"] == 3


def test_a_shared_layer_counts_for_its_last_use(family_encoder):
    depths = parameter_depths(hf_of(family_encoder, "Albert", num_hidden_layers=4, num_hidden_groups=2))
    groups = {name.split(".")[2]: depth for name, depth in depths.items() if "albert_layer_groups" in name}
    assert groups == {"0": 2, "1": 4}


@pytest.mark.parametrize("num_frozen", [0, 1, 2])
@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
def test_frozen_are_embeddings_and_first_layers(family, num_frozen, family_encoder):
    hf = hf_of(family_encoder, family)
    freeze_layers(hf, num_frozen)
    depths = parameter_depths(hf)
    assert all(p.requires_grad == (depths[name] > num_frozen) for name, p in hf.named_parameters())


def test_from_pretrained_freezes(tiny_bert_dir, sentences):
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), num_frozen_layers=1)
    assert encoder.num_layers == 2
    encoder(encoder.pack(sentences)).square().sum().backward()
    graded = {name for name, p in encoder.hf.named_parameters() if p.grad is not None}
    assert graded == {name for name, depth in encoder.parameter_depths().items() if depth == 2}
    free = Encoder.from_pretrained(str(tiny_bert_dir))
    assert all(parameter.requires_grad for parameter in free.parameters())


def test_mistakes(family_encoder):
    bert = hf_of(family_encoder, "Bert")
    with pytest.raises(UserError, match="^num_frozen_layers = 3: expected at most 2, the layers of the encoder$"):
        freeze_layers(bert, 3)
    with pytest.raises(UserError, match="num_frozen_layers = -1"):
        freeze_layers(bert, -1)
    albert = hf_of(family_encoder, "Albert", num_hidden_layers=4, num_hidden_groups=2)
    with pytest.raises(UserError, match="num_frozen_layers = 1: expected one of 0, 2, 4, or null.*albert share"):
        freeze_layers(albert, 1)
    assert all(parameter.requires_grad for parameter in albert.parameters())
    freeze_layers(albert, 2)
    assert not albert.encoder.albert_layer_groups[0].albert_layers[0].ffn.weight.requires_grad
    odd = torch.nn.Linear(2, 2)
    odd.config = bert.config.__class__(num_hidden_layers=5)
    odd.config.model_type = "odd"
    with pytest.raises(UserError, match="Linear has no list of 5 layers"):
        layer_modules(odd)
