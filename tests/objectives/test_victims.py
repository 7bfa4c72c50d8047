"""The frozen victim of soft targets: transformers' own probabilities, in the run's order of classes; refusals."""

import numpy as np
import pytest
import torch
import transformers

from fastadv import UserError
from fastadv.data.packing import PackedBatch
from fastadv.objectives.texts.victims import build_victim, check_victim

NAMES = ("world", "sports", "business", "science")
WIDE = dict(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=66
)
FAMILIES = {
    "bert": (transformers.BertConfig, WIDE),
    "roberta": (transformers.RobertaConfig, {**WIDE, "type_vocab_size": 1}),
    "distilbert": (
        transformers.DistilBertConfig,
        dict(dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=64),
    ),
}


@pytest.fixture(scope="session")
def victim_folder(tiny_bert_dir, tmp_path_factory):
    """A factory of random classifiers that read the tiny BERT's tokens."""

    def make(kind="bert", names=NAMES, **changes):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_bert_dir)
        config_class, sizes = FAMILIES[kind]
        config = config_class(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.3,
            **{**sizes, **changes},
        )
        config.id2label = dict(enumerate(names))
        config.label2id = {name: i for i, name in enumerate(names)}
        torch.manual_seed(3)
        folder = tmp_path_factory.mktemp(kind)
        transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return make


def pack(encoder, first, second=None):
    if second is None:
        return encoder.pack(first)
    tokens, special, types = encoder.tokenize_pairs(first, second)
    return PackedBatch.from_token_lists(
        tokens, special, token_type_lists=types, position_offset=encoder.position_offset
    )


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_probabilities_are_those_of_transformers(kind, is_pair, victim_folder, tiny_encoder, sentences):
    folder, encoder = victim_folder(kind), tiny_encoder(dtype=torch.float32)
    second = sentences[::-1] if is_pair else None
    order = ("science", "world", "business", "sports")
    found = build_victim(folder, encoder, order)(pack(encoder, sentences, second))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = []
    for i, text in enumerate(sentences):
        inputs = tokenizer(text, *([second[i]] if is_pair else []), return_tensors="pt")
        if kind != "bert":
            inputs.pop("token_type_ids")
        with torch.no_grad():
            expected.append(model(**inputs).logits[0].softmax(0)[[NAMES.index(name) for name in order]])
    np.testing.assert_allclose(found.numpy(), torch.stack(expected).numpy(), atol=1e-6)
    assert not found.requires_grad and found.shape == (len(sentences), 4)


def test_a_victim_draws_nothing_and_changes_nothing(victim_folder, tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.float32)
    victim, batch = build_victim(victim_folder(), encoder, NAMES), encoder.pack(sentences)
    positions, state = batch.position_ids.clone(), torch.get_rng_state()
    first = victim(batch)
    assert torch.equal(first, victim(batch))
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(batch.position_ids, positions)
    # No module, whose parameters an optimizer or a checkpoint would find.
    assert not isinstance(victim, torch.nn.Module)


def test_the_type_it_computes_in(victim_folder, tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.float32)
    folder, batch = victim_folder(), encoder.pack(sentences)
    exact = build_victim(folder, encoder, NAMES)(batch)
    half = build_victim(folder, encoder, NAMES, torch.bfloat16)(batch)
    assert half.dtype == torch.float32
    assert 0 < (half - exact).abs().max() < 0.05


def test_what_cannot_serve_is_refused(victim_folder, tiny_encoder, tiny_bert_dir, minilm_dir, tmp_path):
    encoder = tiny_encoder(dtype=torch.float32, max_length=12)
    with pytest.raises(UserError, match="objective_options.victim: model folder .*nowhere"):
        build_victim(str(tmp_path / "nowhere"), encoder, NAMES)
    with pytest.raises(UserError, match="its vocabulary of [0-9]+ tokens is not the encoder's of"):
        build_victim(str(minilm_dir), encoder, NAMES)
    with pytest.raises(UserError, match="its classes are 'world', .*; expected those of the data, 'bad', 'good'"):
        build_victim(victim_folder(), encoder, ("bad", "good"))
    with pytest.raises(UserError, match="it has 8 positions, fewer than encoder.max_length = 12"):
        check_victim(victim_folder(max_position_embeddings=8), encoder.tokenizer, 12)
    with pytest.raises(UserError, match="objective_options.victim: .* no trained classifier"):
        build_victim(str(tiny_bert_dir), encoder, ("LABEL_0", "LABEL_1"))
