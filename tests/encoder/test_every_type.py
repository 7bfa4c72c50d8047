"""Every encoder type that transformers can build tiny: a text's vector is its own, whatever else is in the batch, or
the type is refused in one line."""

import inspect
import logging

import numpy as np
import pytest
import torch

from fastadv.encoder import Encoder
from fastadv.errors import UserError

# Tiny, by whatever a configuration calls it.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "emb_dim", "embedding_size", "entity_emb_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_inner", "feed_forward_size"), 64),
    **dict.fromkeys(("entity_vocab_size", "pronunciation_vocab_size", "shape_vocab_size"), 50),
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
OWN = {
    "funnel": {"block_sizes": [1, 1], "d_head": 12, "num_decoder_layers": 1},
    "longformer": {"attention_window": 8},
    # Else it is compiled.
    "modernbert": {"reference_compile": False},
    "perceiver": {"d_latents": 48, "num_latents": 8, "num_blocks": 1, "num_self_attends_per_block": 1},
    "reformer": {
        "axial_pos_embds_dim": (16, 32),
        "axial_pos_shape": (8, 8),
        "attention_head_size": 12,
        "attn_layers": ["local", "lsh"],
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
}
REFUSED = {
    # Not of texts alone, or not of tokens.
    "bros": "cannot be run here",
    "layoutlmv3": "cannot be run here",
    "lxmert": "cannot be run here",
    "perceiver": "has no hidden_size",
    # Embeddings with a scale beside them, or laid out the other way round.
    "ibert": "not one tensor",
    "xlnet": "cannot be run here",
    "canine": "has no word embeddings",
}
# Of sound, and one that reads from left to right.
NO_ENCODERS = {"wav2vec2", "mistral4"}
NEEDS_A_LIBRARY = {"layoutlmv2", "qdqbert"}
SEE_PADDING = {"big_bird", "convbert", "fnet", "funnel", "mobilebert", "nystromformer", "yoso"}

TEXTS = ["never", "the film was not very good . the film was not", "love this camera and this music . the"]


def encoder_types():
    """Model types that transformers has for words left out, or for marks on tokens, besides those that only go on with
    texts, and those that are put together of several models."""
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    masked, causal = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    marked = {**auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, **auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES}
    types = {*masked, *(name for name in marked if name not in causal), "xlnet"}
    return sorted(name for name in types - NO_ENCODERS if name in CONFIG_MAPPING and not _parts_of(name))


def _parts_of(name):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return getattr(CONFIG_MAPPING[name], "sub_configs", None)


def build(name, num_words):
    """A random model of a type; None for one that needs a library, or that reads one text and writes another."""
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    known = {*inspect.signature(config_class.__init__).parameters, *getattr(config_class, "attribute_map", {})}
    sizes = {key: value for key, value in SIZES.items() if key in known or key == "pad_token_id"}
    config = config_class(**{**sizes, "vocab_size": num_words, **OWN.get(name, {})})
    if getattr(config, "is_encoder_decoder", False):
        return None
    config.architectures = ["FunnelModel"] if name == "funnel" else None
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
    except ImportError:
        assert name in NEEDS_A_LIBRARY
        return None
    assert size < 3e6, f"{name} calls its sizes otherwise: {size} parameters"
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


def open_encoder(model, tokenizer):
    try:
        return Encoder(model, tokenizer, pooling="mean").eval()
    except UserError:
        # Some have no module of embeddings.
        return Encoder(model, tokenizer, pooling="mean", perturb_at="word").eval()


@pytest.fixture(scope="module")
def tokenizer(tiny_bert_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_bert_dir)


@pytest.mark.parametrize("name", encoder_types())
def test_a_vector_does_not_depend_on_the_batch(name, tokenizer, caplog):
    model = build(name, len(tokenizer))
    if model is None:
        return
    if name in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name]) as caught:
            open_encoder(model, tokenizer)
        assert "\n" not in str(caught.value)
        return
    with caplog.at_level(logging.WARNING, logger="fastadv"):
        encoder = open_encoder(model, tokenizer)
    said = [record.message for record in caplog.records if "batch" in record.message]
    assert bool(said) == (name in SEE_PADDING) and all(f"model type {name}: " in line for line in said)
    alone = np.concatenate([encoder.encode_texts([text]) for text in TEXTS])
    assert np.abs(alone[0] - alone[1]).max() > 1e-3 * np.abs(alone).max()
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), alone, rtol=0, atol=2e-6 * np.abs(alone).max())


def test_gradients_reach_each_text_of_a_batch_in_groups(tokenizer):
    """The groups of one length are one batch to whoever trains: X, its gradient and h are in the batch's order."""
    encoder = open_encoder(build("mobilebert", len(tokenizer)), tokenizer)
    batch = encoder.pack(TEXTS)
    x = encoder.embed(batch).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(encoder.encode(x, batch).square().sum(), x)
    starts = batch.cu_seqlens.tolist()
    for i, text in enumerate(TEXTS):
        own = encoder.pack([text])
        of_text = slice(starts[i], starts[i + 1])
        alone = encoder.embed(own).detach().requires_grad_()
        torch.testing.assert_close(x[of_text], alone)
        (expected,) = torch.autograd.grad(encoder.encode(alone, own).square().sum(), alone)
        torch.testing.assert_close(gradient[of_text], expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
