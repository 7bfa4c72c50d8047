"""Texts in, vectors out: tokenising, packing, lengths, and what users get wrong."""

import numpy as np
import pytest
import torch

from fastadv.encoder import Encoder, make_head
from fastadv.errors import UserError


def test_encode_texts_keeps_order_and_ignores_dropout(tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean").train()
    texts = [*sentences, "", "the " * 200]
    vectors = encoder.encode_texts(texts, batch_size=3)
    assert vectors.dtype == np.float32 and vectors.shape == (len(texts), encoder.hidden_size)
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert encoder.training and torch.is_grad_enabled() and encoder.encode_texts([]).shape == (0, 32)
    encoder.eval()
    alone = torch.cat([encoder(encoder.pack([text])) for text in texts]).detach().numpy()
    np.testing.assert_allclose(vectors, alone, rtol=0, atol=1e-5 * np.abs(alone).max())


def test_encode_texts_across_its_chunks_and_callbacks(tiny_encoder):
    encoder = tiny_encoder(dtype=torch.float32)
    texts = ["the film", "never", "it is a very dull plot"] * 50
    seen = []
    vectors = encoder.encode_texts(texts, batch_size=1, on_batch=seen.append)
    assert sum(seen) == len(texts)
    assert np.array_equal(vectors[:3], vectors[-3:])


def test_pack(tiny_encoder, sentences):
    encoder = tiny_encoder(max_length=8)
    batch = encoder.pack([*sentences, ""], labels=[*range(len(sentences)), 7])
    assert batch.labels.tolist() == list(range(8))
    assert batch.max_seqlen == batch.lengths.max() == 8
    assert batch.lengths[-1] == 2
    assert batch.sentence_ids[0] == batch.sentence_ids[6]
    assert len(set(batch.sentence_ids.tolist())) == 7
    starts, ends = batch.cu_seqlens[:-1].long(), batch.cu_seqlens[1:].long() - 1
    special = torch.zeros(batch.num_tokens, dtype=torch.bool)
    special[starts] = special[ends] = True
    assert torch.equal(batch.is_special, special)
    assert (batch.input_ids[starts] == encoder.tokenizer.cls_token_id).all()
    assert (batch.position_ids[starts] == 0).all()


def test_sentence_ids_are_taken_after_truncation(tiny_encoder):
    batch = tiny_encoder(max_length=5).pack(["the film was good", "the film was bad", "the actor was good"])
    first, second, third = batch.sentence_ids.tolist()
    assert first == second != third


def test_positions_of_roberta_start_behind_the_padding_id(family_encoder):
    encoder = family_encoder("Roberta")
    assert encoder.position_offset == 5
    assert encoder.pack(["never"]).position_ids.tolist() == [5, 6, 7]
    assert encoder.max_length == 64 - 5


@pytest.mark.parametrize("family", ["Bert", "Roberta", "MPNet"])
def test_the_longest_text_a_model_takes(family, family_encoder):
    encoder = family_encoder(family)
    batch = encoder.pack(["the " * 500])
    assert batch.num_tokens == encoder.max_length
    assert encoder(batch).isfinite().all()


def test_sizes(family_encoder, tiny_encoder):
    albert = family_encoder("Albert")
    assert (albert.embedding_size, albert.hidden_size) == (16, 32)
    bert = tiny_encoder()
    assert (bert.embedding_size, bert.hidden_size, bert.path) == (32, 32, "packed")
    assert bert.vocab_size == len(bert.tokenizer)
    assert bert.dtype == torch.float64 and bert.device.type == "cpu"


def test_tokenizer_fingerprint_does_not_depend_on_calls(tiny_encoder, minilm_dir):
    one, other = tiny_encoder(max_length=8), tiny_encoder(max_length=16)
    one.tokenizer(["the film"], padding=True, truncation=True, max_length=4)
    assert one.tokenizer_fingerprint == other.tokenizer_fingerprint
    assert one.tokenizer_fingerprint != Encoder.from_pretrained(str(minilm_dir)).tokenizer_fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "median"}, "pooling 'median' is not one of cls, mean, first_last, max, "),
        ({"pooling": ""}, "pooling '' is not one of cls, mean, first_last, max, "),
        ({"pooling": "first_last+cls"}, "pooling 'first_last+cls' is not one of cls, mean, first_last, max, "),
        ({"prompt_name": "query"}, "prompt_name 'query': the model has no such prompt; it has no prompts"),
        ({"path": "fast"}, "path 'fast' is not one of auto, packed, generic"),
        ({"perturb_at": "token"}, "perturb_at 'token' is not one of embedding, word"),
        ({"dropout": 1.5}, "dropout 1.5 is not a probability in [0, 1)"),
        ({"max_length": 65}, "max_length 65 is above the 64 positions of encoder"),
        ({"max_length": 2}, "max_length 2 leaves no room beside the tokenizer's 2 special tokens"),
        ({"max_length": 0}, "max_length 0 leaves no room beside the tokenizer's 2 special tokens"),
    ],
)
def test_a_wrong_value_is_one_line(options, message, tiny_encoder):
    with pytest.raises(UserError) as caught:
        tiny_encoder(**options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_heads():
    h = torch.randn(6, 8)
    assert torch.equal(make_head("none", 8)(h), h)
    mlp = make_head("mlp", 8)
    assert torch.equal(mlp(h), torch.tanh(h @ mlp[0].weight.T + mlp[0].bias))
    z = make_head("bn_mlp", 8)(h)
    torch.testing.assert_close(z.mean(0), torch.zeros(8), atol=1e-6, rtol=0)
    with pytest.raises(UserError, match="head 'linear' is not one of mlp, bn_mlp, none"):
        make_head("linear", 8)
