"""Adapters: what they compute, what is trained, and an export that knows nothing of them."""

import copy
import json
import sys

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel

from fastadv.encoder import Encoder
from fastadv.encoder.weights.lora import add_lora, lora_modules, merged_state_dict
from fastadv.errors import UserError
from tests.encoder.conftest import hub_vectors, relative, sentence_transformer_vectors

FAMILIES = ["Bert", "Roberta", "Electra", "Albert", "DistilBert", "MPNet", "DebertaV2", "ModernBert", "GPT2"]


def stir(hf):
    """Adapters as training leaves them: B starts at zero."""
    for name, parameter in hf.named_parameters():
        if "lora_" in name:
            parameter.data = 0.2 * torch.randn_like(parameter)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target_modules", [None, "first"])
def test_every_family_equals_its_merged_weights(family, target_modules, family_encoder, sentences):
    encoder = family_encoder(family, pooling="mean", perturb_at="word")
    batch = encoder.pack(sentences)
    before = encoder(batch)
    plain = copy.deepcopy(encoder)
    if target_modules is not None:
        linear = [n for n, m in encoder.hf.named_modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
        target_modules = [next(name for name in linear if ".0." in name).split(".")[-1]]
    names = add_lora(encoder.hf, rank=3, alpha=7.5, target_modules=target_modules)
    assert names == [name for name, _ in lora_modules(encoder.hf)]
    assert relative(encoder(batch), before) < 1e-14
    stir(encoder.hf)
    moved = encoder(batch)
    assert relative(moved, before) > 1e-3
    merged = merged_state_dict(encoder.hf)
    assert set(merged) == set(plain.hf.state_dict())
    changed = {name for name, value in plain.hf.state_dict().items() if not torch.equal(value, merged[name])}
    assert changed == {f"{name}.weight" for name in names}
    plain.hf.load_state_dict(merged)
    assert relative(plain(batch), moved) < 1e-12


def test_formula(family_encoder):
    hf = family_encoder("Bert").hf
    weight = hf.encoder.layer[0].attention.self.query.weight.clone()
    add_lora(hf, rank=2, alpha=5, target_modules=["query"])
    stir(hf)
    query = hf.encoder.layer[0].attention.self.query
    a, b = query.lora_A["default"].weight, query.lora_B["default"].weight
    assert a.shape == (2, 32) and b.shape == (32, 2)
    x = torch.randn(4, 32, dtype=torch.float64)
    expected = x @ weight.T + query.base_layer.bias + 5 / 2 * x @ a.T @ b.T
    assert relative(query(x), expected) < 1e-14


def test_only_adapters_are_trained_and_by_default_in_every_linear_module(tiny_bert_dir, sentences):
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), lora_rank=2, dtype=torch.float64)
    assert encoder.path == "packed"
    assert [name for name, _ in lora_modules(encoder.hf)] == [
        f"encoder.layer.{i}.{part}"
        for i in (0, 1)
        for part in (
            *(f"attention.self.{name}" for name in ("query", "key", "value")),
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        )
    ]
    stir(encoder.hf)
    encoder(encoder.pack(sentences)).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.requires_grad == ("lora_" in name) == (parameter.grad is not None), name


def test_frozen_layers_get_no_adapter(tiny_bert_dir):
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), lora_rank=2, num_frozen_layers=1)
    assert {name.split(".")[2] for name, _ in lora_modules(encoder.hf)} == {"1"}
    assert {encoder.parameter_depths()[n] for n, p in encoder.hf.named_parameters() if p.requires_grad} == {2}


def test_equal_seeds_draw_equal_adapters(tiny_bert_dir):
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(Encoder.from_pretrained(str(tiny_bert_dir), lora_rank=2).state_dict())
    first, again, other = drawn
    key = "hf.encoder.layer.0.output.dense.lora_A.default.weight"
    assert torch.equal(first[key], again[key]) and not torch.equal(first[key], other[key])


@pytest.mark.parametrize("family, pooling", [("Bert", "cls"), ("Albert", "mean"), ("DistilBert", "mean")])
def test_the_export_is_an_ordinary_model(family, pooling, family_encoder, sentences, tmp_path):
    encoder = family_encoder(family, dtype=torch.float32, pooling=pooling)
    names = set(encoder.hf.state_dict())
    add_lora(encoder.hf, rank=2)
    stir(encoder.hf)
    ours = encoder.encode_texts(sentences)
    folder = encoder.save_pretrained(tmp_path / "export")
    assert next(lora_modules(encoder.hf), None) is not None
    tolerance = 1e-5 * np.abs(ours).max()
    assert set(AutoModel.from_pretrained(folder).state_dict()) == names
    routes = [
        hub_vectors(folder, list(sentences), pooling),
        Encoder.from_pretrained(str(folder)).encode_texts(sentences),
    ]
    if family != "DistilBert":  # its model refuses the token types that the tiny BERT's tokenizer gives
        routes.append(sentence_transformer_vectors(folder, sentences))
    for vectors in routes:
        np.testing.assert_allclose(vectors, ours, rtol=0, atol=tolerance)
    assert not [path for path in folder.rglob("*") if "adapter" in path.name]
    assert "lora" not in json.dumps(json.loads((folder / "config.json").read_text()))


def test_other_weights_are_merged_too(tiny_bert_dir, tmp_path):
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), lora_rank=2)
    stir(encoder.hf)
    finer = {name: 0.5 * value for name, value in encoder.hf.state_dict().items()}
    folder = encoder.save_pretrained(tmp_path / "export", state_dict=finer)
    encoder.hf.load_state_dict(finer)
    saved, expected = AutoModel.from_pretrained(folder).state_dict(), merged_state_dict(encoder.hf)
    assert all(torch.equal(value, saved[name]) for name, value in expected.items())


def test_half_precision_is_rounded_once(tiny_bert_dir):
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), lora_rank=2, dtype=torch.bfloat16)
    stir(encoder.hf)
    exact = copy.deepcopy(encoder.hf).double()
    merged, gold = merged_state_dict(encoder.hf), merged_state_dict(exact)
    key = "encoder.layer.0.output.dense.weight"
    assert merged[key].dtype == torch.bfloat16
    # Half a unit in the last place of bfloat16, with room for the float32 product's own rounding.
    assert ((merged[key].double() - gold[key]).abs() <= 2**-8 * gold[key].abs() + 1e-6).all()


def refused(hf, *arguments, **options):
    with pytest.raises(UserError) as caught:
        add_lora(hf, *arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_mistakes(family_encoder, monkeypatch):
    hf = family_encoder("Bert").hf
    assert refused(hf, 0).startswith("lora_rank = 0: expected a whole number of at least 1")
    assert refused(hf, 2, alpha=0) == "lora_alpha = 0: expected a number above 0, or null"
    message = refused(hf, 2, target_modules=["q_lin"])
    assert message == (
        'lora_target_modules: "q_lin" names no linear module of BertModel, whose are dense, key, query, value'
    )
    assert "names no linear module" in refused(hf, 2, target_modules=["uery"])
    assert "names no linear module" in refused(hf, 2, target_modules=["word_embeddings"])
    assert not any("lora_" in name for name in hf.state_dict())
    for parameter in hf.parameters():
        parameter.requires_grad_(False)
    assert refused(hf, 2).startswith("lora_rank: no linear module is left to adapt")
    for parameter in hf.parameters():
        parameter.requires_grad_(True)
    add_lora(hf, 2)
    assert refused(hf, 2) == "lora_rank: the model has adapters already"
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(hf, 2) == "lora_rank = 2: needs peft, which is not installed: pip install 'fastadv[peft]'"
