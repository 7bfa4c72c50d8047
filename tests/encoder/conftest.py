"""Random models of several families, and Hugging Face's own padded pass to compare with."""

import pytest
import torch

# [MASK], which no text gives: a padding id other than 0 moves RoBERTa's first position.
PAD_ID = 4

FAMILIES = {
    # transformers' class: its names for width, layers, heads, feed-forward size, positions
    "Bert": {},
    "Roberta": {},
    "XLMRoberta": {},
    "Camembert": {},
    "Data2VecText": {},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "MPNet": {},
    "Albert": {"embedding_size": 16},
    "Electra": {"embedding_size": 16},
    "Deberta": {"pos_att_type": ["c2p", "p2c"], "relative_attention": True, "position_biased_input": False},
    "DebertaV2": {"pos_att_type": ["c2p", "p2c"], "relative_attention": True, "embedding_size": 16},
    "ModernBert": {"local_attention": 4, "global_attn_every_n_layers": 2},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def relative(actual, expected):
    """The largest difference over the largest of the expected."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def make_model(family: str, vocab_size: int, dtype=torch.float64, **options):
    import transformers

    own = FAMILIES[family]
    sizes = {} if family in ("DistilBert", "GPT2") else SIZES
    common = {"max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": PAD_ID}
    config = getattr(transformers, f"{family}Config")(vocab_size=vocab_size, **{**common, **sizes, **own, **options})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}Model")(config)
    # Zero biases and unit LayerNorms would hide one taken for another.
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model.to(dtype)


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_bert_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_bert_dir)


@pytest.fixture
def family_encoder(tiny_tokenizer):
    """A factory: ``family_encoder("Roberta", pooling="mean", dtype=..., config={...})``."""
    from fastadv.encoder import Encoder

    def make(family, dtype=torch.float64, config=None, tokenizer=tiny_tokenizer, **options):
        model = make_model(family, len(tokenizer), dtype, **(config or {}))
        return Encoder(model, tokenizer, **options).eval()

    return make


def hub_vectors(folder, texts, pooling):
    """Vectors by transformers alone, as a reader of the model card would compute them."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    states = output.last_hidden_state
    if pooling == "cls":
        return states[:, 0].numpy()
    if pooling == "first_last":
        states = (states + output.hidden_states[0]) / 2
    mask = inputs["attention_mask"][..., None]
    return ((states * mask).sum(1) / mask.sum(1)).numpy()


def sentence_transformer_vectors(folder, texts):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)


def pad_batch(batch, pad_id):
    """input_ids and attention_mask (B, L) of a PackedBatch, by a loop of its own."""
    rows = [batch.input_ids[a:b] for a, b in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return ids, mask


@pytest.fixture
def padded_reference():
    """A function (hf, batch, pooling, **inputs) -> (B, D) that pads, runs the model whole, and pools."""

    def run(hf, batch, pooling, **inputs):
        ids, mask = pad_batch(batch, hf.config.pad_token_id or 0)
        if "inputs_embeds" not in inputs:
            inputs["input_ids"] = ids
        output = hf(**inputs, attention_mask=mask, output_hidden_states=True)
        states = output.last_hidden_state
        if pooling == "cls":
            return states[:, 0]
        if pooling == "first_last":
            states = (output.hidden_states[0] + states) / 2
        weights = mask[..., None].to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)

    return run
