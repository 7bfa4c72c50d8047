"""Encoders and classifiers travel to other processes whole: by pickle, as spawned workers and pools send them."""

import copy
import pickle
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.encoder.encoder import Encoder
from tests.conftest import write_tiny_bert
from tests.evaluation.attacked import make_classifier

TEXTS = ["the film was good", "never", "a sad plot but a wonderful camera"]

OPTIONS = [
    {},
    {"path": "generic"},
    {"perturb_at": "word"},
    {"path": "generic", "perturb_at": "word"},
    {"checkpoint_activations": True},
    {"checkpoint_activations": True, "path": "generic"},
    {"attention": "matmul"},
    {"pooling": "first_last", "max_length": 6},
    {"num_frozen_layers": 1},
    {"dtype": torch.bfloat16},
]


@pytest.mark.parametrize("again", [lambda encoder: pickle.loads(pickle.dumps(encoder)), copy.deepcopy])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_encoder_is_the_same_afterwards(tiny_bert_dir, options, again):
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), **options)
    expected = encoder.encode_texts(TEXTS)
    other = again(encoder)
    np.testing.assert_array_equal(other.encode_texts(TEXTS), expected)
    # Another model, not another view of this one: its layers run on its own weights.
    with torch.no_grad():
        for parameter in other.hf.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(encoder.encode_texts(TEXTS), expected)
    assert not other.encode_texts(TEXTS).any()


def test_adapters_travel_too(tiny_bert_dir):
    pytest.importorskip("peft")
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), lora_rank=2)
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again.encode_texts(TEXTS), encoder.encode_texts(TEXTS))


@pytest.mark.parametrize("kind", ["Electra", "Albert", "Roberta"])
def test_every_family_has_parts_with_names(tmp_path, kind):
    import transformers

    folder = write_tiny_bert(tmp_path / "bert")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, embedding_size=16)
    config = getattr(transformers, f"{kind}Config")(vocab_size=102, **sizes)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = Encoder(getattr(transformers, f"{kind}Model")(config), tokenizer, max_length=16)
    assert encoder.path == "packed"
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again.encode_texts(TEXTS), encoder.encode_texts(TEXTS))


@pytest.mark.several_processes
def test_a_spawned_process_computes_the_same(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32)
    encoder = classifier.encoder
    with get_context("spawn").Pool(1) as pool:
        vectors = pool.apply(encoder.encode_texts, (TEXTS,))
        logits = pool.apply(Classifier.classify_texts, (classifier, TEXTS))
    np.testing.assert_allclose(vectors, encoder.encode_texts(TEXTS), rtol=0, atol=1e-6)
    np.testing.assert_allclose(logits, classifier.classify_texts(TEXTS), rtol=0, atol=1e-5)
