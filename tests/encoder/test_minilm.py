"""A pretrained encoder against sentence-transformers' own vectors."""

import numpy as np
import pytest
import torch

from fastadv.encoder import Encoder

TEXTS = [
    "A man is playing a guitar.",
    "The girl is riding her bike through the park while her brother watches from the bench.",
    "",
    "Unbelievable!",
    "The film's second half, for all its noise, never finds the nerve of its first ten minutes. " * 30,
]


@pytest.fixture(scope="module")
def theirs(minilm_dir):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_dir), device="cpu").encode(TEXTS, show_progress_bar=False)


def test_vectors_equal_sentence_transformers(minilm_dir, theirs):
    encoder = Encoder.from_pretrained(str(minilm_dir))
    assert (encoder.pooling, encoder.max_length, encoder.path) == ("mean", 256, "packed")
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), theirs, rtol=0, atol=1e-5)


def test_h_is_the_vector_before_the_last_normalize(minilm_dir, theirs):
    """Losses and heads are of h: of what the model's pooling gives, some five times as long."""
    encoder = Encoder.from_pretrained(str(minilm_dir))
    assert encoder.settings["modules"] == ["Normalize"] and encoder.pooled_size == encoder.vector_size == 384
    h = encoder.encode_texts(TEXTS, is_finished=False)
    np.testing.assert_allclose(h / np.linalg.norm(h, axis=1, keepdims=True), theirs, rtol=0, atol=1e-5)
    assert (np.linalg.norm(h, axis=1) > 2).all()
    batch = encoder.pack(TEXTS)
    with torch.no_grad():
        again = encoder.encode(encoder.embed(batch, dropout=False), batch, dropout=False)
    np.testing.assert_allclose(again.numpy(), h, rtol=0, atol=1e-5)
    np.testing.assert_allclose(encoder.finish(again).numpy(), theirs, rtol=0, atol=1e-5)


def test_demo_name(minilm_dir, theirs):
    encoder = Encoder.from_pretrained("demo:minilm", path="generic")
    assert encoder.path == "generic"
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), theirs, rtol=0, atol=1e-5)


def test_float64_and_bfloat16_are_close(minilm_dir, theirs):
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 2**-5)):
        vectors = Encoder.from_pretrained(str(minilm_dir), dtype=dtype).encode_texts(TEXTS[:4])
        cosines = (vectors * theirs[:4]).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(theirs[:4], axis=1)
        assert (1 - cosines).max() < tolerance**2 + 1e-6


def test_export_equals_sentence_transformers(minilm_dir, theirs, tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = Encoder.from_pretrained(str(minilm_dir)).save_pretrained(tmp_path / "export")
    vectors = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(vectors, theirs, rtol=0, atol=1e-5)
