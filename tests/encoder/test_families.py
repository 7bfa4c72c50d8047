"""What sets the packed families apart: embeddings of another width, shared layers, positions counted from padding."""

import pytest

from tests.encoder.conftest import relative

ALBERTS = {
    # groups of layers that share weights, layers in a group
    "all shared": {"num_hidden_layers": 3},
    "two groups": {"num_hidden_layers": 4, "num_hidden_groups": 2},
    "groups of uneven use": {"num_hidden_layers": 5, "num_hidden_groups": 2},
    "nothing shared": {"num_hidden_layers": 3, "num_hidden_groups": 3},
    "two layers in a group": {"num_hidden_layers": 2, "inner_group_num": 2},
}


@pytest.mark.parametrize("shape", ALBERTS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_albert_runs_its_groups_in_order(shape, pooling, family_encoder, padded_reference, sentences):
    encoder = family_encoder("Albert", pooling=pooling, config=ALBERTS[shape])
    assert encoder.path == "packed"
    batch = encoder.pack(sentences)
    assert relative(encoder(batch), padded_reference(encoder.hf, batch, pooling)) < 1e-12


@pytest.mark.parametrize("family", ["Electra", "Albert"])
@pytest.mark.parametrize("embedding_size", [16, 32])
@pytest.mark.parametrize("perturb_at", ["embedding", "word"])
def test_x_is_as_wide_as_embeddings(family, embedding_size, perturb_at, family_encoder, padded_reference, sentences):
    config = {"embedding_size": embedding_size}
    encoder = family_encoder(family, pooling="first_last", perturb_at=perturb_at, config=config)
    assert (encoder.path, encoder.embedding_size, encoder.hidden_size) == ("packed", embedding_size, 32)
    batch = encoder.pack(sentences)
    x = encoder.embed(batch)
    assert x.shape == (batch.num_tokens, embedding_size)
    h = encoder.encode(x, batch)
    assert h.shape == (len(sentences), 32)
    assert relative(h, padded_reference(encoder.hf, batch, "first_last")) < 1e-12


def test_a_shared_layer_is_cut_short_only_where_it_runs_last(family_encoder, sentences):
    encoder = family_encoder("Albert", pooling="cls", config={"num_hidden_layers": 3})
    (layer,) = encoder.hf.encoder.albert_layer_groups[0].albert_layers
    rows = {"query": [], "key": [], "ffn": []}
    for name, module in (("query", layer.attention.query), ("key", layer.attention.key), ("ffn", layer.ffn)):
        module.register_forward_hook(lambda _, args, output, name=name: rows[name].append(len(args[0])))
    batch = encoder.pack(sentences)
    encoder(batch)
    num_tokens, num_sentences = batch.num_tokens, batch.num_sentences
    assert rows["query"] == rows["ffn"] == [num_tokens, num_tokens, num_sentences]
    assert rows["key"] == [num_tokens] * 3


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta"])
def test_514_positions_hold_512_tokens(family, family_encoder, padded_reference):
    encoder = family_encoder(
        family, pooling="mean", config={"pad_token_id": 1, "max_position_embeddings": 514, "num_hidden_layers": 1}
    )
    # The tokenizer's own limit is lower; the model's is what counts here.
    encoder.max_length = 512
    batch = encoder.pack(["the " * 600, "never"])
    assert batch.max_seqlen == 512 and batch.position_ids.max() == 513
    assert relative(encoder(batch), padded_reference(encoder.hf, batch, "mean")) < 1e-12
