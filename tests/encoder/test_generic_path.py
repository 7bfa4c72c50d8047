"""Any AutoModel, split by a hook, computes what it computes whole."""

import logging

import pytest
import torch

from fastadv.errors import UserError

GENERIC = ["DistilBert", "MPNet", "Deberta", "DebertaV2", "ModernBert"]


def relative(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("family", GENERIC)
@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last"])
def test_embed_and_encode_compose_to_the_model(family, pooling, family_encoder, padded_reference, sentences):
    encoder = family_encoder(family, pooling=pooling)
    assert encoder.path == "generic"
    batch = encoder.pack(sentences)
    x = encoder.embed(batch)
    assert x.shape == (batch.num_tokens, encoder.embedding_size)
    expected = padded_reference(encoder.hf, batch, pooling)
    assert relative(encoder.encode(x, batch), expected) < 1e-12


@pytest.mark.parametrize("family", [*GENERIC, "GPT2"])
def test_word_rows_compose_to_the_model(family, family_encoder, padded_reference, sentences):
    encoder = family_encoder(family, pooling="mean", perturb_at="word")
    batch = encoder.pack(sentences)
    x = encoder.embed(batch)
    assert torch.equal(x, encoder.hf.get_input_embeddings().weight[batch.input_ids])
    assert relative(encoder.encode(x, batch), padded_reference(encoder.hf, batch, "mean")) < 1e-12


@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last"])
@pytest.mark.parametrize("perturb_at", ["embedding", "word"])
def test_generic_and_packed_agree_on_bert(pooling, perturb_at, tiny_encoder, sentences):
    options = {"pooling": pooling, "perturb_at": perturb_at}
    packed, generic = (tiny_encoder(path=path, **options).eval() for path in ("packed", "generic"))
    batch = packed.pack(sentences)
    upstream = torch.randn(len(sentences), packed.hidden_size, dtype=torch.float64)
    results = []
    for encoder in (packed, generic):
        x = encoder.embed(batch)
        moved = (x + 0.1 * x.flip(1)).detach().requires_grad_()
        h = encoder.encode(moved, batch)
        results.append((x, h, torch.autograd.grad(h, moved, upstream)[0]))
    for one, other in zip(*results, strict=True):
        assert relative(one, other) < 1e-12
    states = [encoder.token_states(results[0][0], batch) for encoder in (packed, generic)]
    assert relative(*states) < 1e-12


def test_parameter_gradients_pass_through_both_halves(family_encoder, padded_reference, sentences):
    encoder = family_encoder("DistilBert", pooling="mean")
    batch = encoder.pack(sentences)
    parameters = list(encoder.parameters())
    expected = torch.autograd.grad(padded_reference(encoder.hf, batch, "mean").square().sum(), parameters)
    actual = torch.autograd.grad(encoder(batch).square().sum(), parameters)
    scale = max(grad.abs().max() for grad in expected)
    assert max((a - b).abs().max() for a, b in zip(actual, expected, strict=True)) < 1e-12 * scale


def test_padding_and_order_do_not_matter(family_encoder, sentences):
    encoder = family_encoder("MPNet", pooling="mean")
    together = encoder(encoder.pack(sentences))
    alone = torch.cat([encoder(encoder.pack([text])) for text in sentences])
    assert relative(alone, together) < 1e-12
    assert relative(encoder(encoder.pack(sentences[::-1])), together.flip(0)) < 1e-12


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


def test_dropout_masks_come_back_with_the_generator_state(family_encoder, sentences):
    encoder = family_encoder("DistilBert").train()
    batch = encoder.pack(sentences)
    x = encoder.embed(batch)
    state = torch.get_rng_state()
    first = encoder.encode(x, batch)
    torch.set_rng_state(state)
    assert torch.equal(encoder.encode(x, batch), first)


def test_hooks_are_gone_after_a_failure(family_encoder, sentences):
    encoder = family_encoder("DistilBert", pooling="mean")
    batch = encoder.pack(sentences)
    expected = encoder(batch)
    with pytest.raises(RuntimeError):
        encoder.encode(torch.zeros(batch.num_tokens, 7, dtype=torch.float64), batch)
    assert not encoder.hf.embeddings._forward_hooks
    assert torch.equal(encoder(batch), expected)


def test_dropout_override_reaches_attention_kept_as_a_function(family_encoder, sentences):
    encoder = family_encoder("DistilBert", pooling="mean", dropout=0.0).train()
    batch = encoder.pack(sentences)
    assert torch.equal(encoder(batch), encoder.eval()(batch))


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
