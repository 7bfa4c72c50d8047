"""Any AutoModel, split by a hook, computes what it computes whole."""

import logging

import pytest
import torch

from fastadv.errors import UserError
from tests.encoder.conftest import relative

GENERIC = ["DistilBert", "MPNet", "Deberta", "DebertaV2", "ModernBert"]


@pytest.mark.parametrize("family", [*GENERIC, "GPT2"])
def test_word_rows_compose_to_the_model(family, family_encoder, padded_reference, sentences):
    encoder = family_encoder(family, pooling="mean", perturb_at="word")
    batch = encoder.pack(sentences)
    x = encoder.embed(batch)
    assert torch.equal(x, encoder.hf.get_input_embeddings().weight[batch.input_ids])
    assert relative(encoder.encode(x, batch), padded_reference(encoder.hf, batch, "mean")) < 1e-12


def test_parameter_gradients_pass_through_both_halves(family_encoder, padded_reference, sentences):
    encoder = family_encoder("DistilBert", pooling="mean")
    batch = encoder.pack(sentences)
    parameters = list(encoder.parameters())
    expected = torch.autograd.grad(padded_reference(encoder.hf, batch, "mean").square().sum(), parameters)
    actual = torch.autograd.grad(encoder(batch).square().sum(), parameters)
    scale = max(grad.abs().max() for grad in expected)
    assert max((a - b).abs().max() for a, b in zip(actual, expected, strict=True)) < 1e-12 * scale


def test_dropout_switch_restores_every_mode(family_encoder, sentences):
    encoder = family_encoder("DistilBert", pooling="mean").train()
    frozen = encoder.hf.transformer.layer[0].eval()
    modes = [module.training for module in encoder.modules()]
    batch = encoder.pack(sentences)
    off = encoder.encode(encoder.embed(batch, dropout=False), batch, dropout=False)
    assert [module.training for module in encoder.modules()] == modes and not frozen.training
    assert torch.equal(encoder.eval()(batch), off)
    on = encoder.encode(encoder.embed(batch, dropout=True), batch, dropout=True)
    assert relative(on, off) > 1e-3 and not encoder.hf.training


def test_hooks_are_gone_after_a_failure(family_encoder, sentences):
    encoder = family_encoder("DistilBert", pooling="mean")
    batch = encoder.pack(sentences)
    expected = encoder(batch)
    with pytest.raises(RuntimeError):
        encoder.encode(torch.zeros(batch.num_tokens, 7, dtype=torch.float64), batch)
    assert not encoder.hf.embeddings._forward_hooks
    assert torch.equal(encoder(batch), expected)


def test_a_model_without_embeddings_module_is_told_so(family_encoder):
    with pytest.raises(UserError, match="no module called embeddings.*'word'"):
        family_encoder("GPT2")


def test_packed_is_refused_where_it_cannot_run(family_encoder):
    with pytest.raises(UserError, match="'packed'.*distilbert.*'generic'"):
        family_encoder("DistilBert", path="packed")
    with pytest.raises(UserError, match="position_embedding_type is relative_key"):
        family_encoder("Bert", path="packed", config={"position_embedding_type": "relative_key"})


def test_relative_positions_run_generic(family_encoder, padded_reference, sentences):
    encoder = family_encoder("Bert", pooling="mean", config={"position_embedding_type": "relative_key"})
    assert encoder.path == "generic"
    batch = encoder.pack(sentences)
    assert relative(encoder(batch), padded_reference(encoder.hf, batch, "mean")) < 1e-12


def test_the_path_is_said_once(family_encoder, sentences, caplog):
    with caplog.at_level(logging.INFO, logger="fastadv"):
        encoder = family_encoder("MPNet")
        encoder(encoder.pack(sentences))
    said = [record.message for record in caplog.records if record.name == "fastadv"]
    assert len(said) == 1 and "generic path" in said[0] and "mpnet" in said[0]
