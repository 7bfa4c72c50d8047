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

    model = SentenceTransformer(str(minilm_dir), device="cpu")
    # Without the last module, Normalize.
    del model[2]
    return model.encode(TEXTS, show_progress_bar=False)


def test_vectors_equal_sentence_transformers(minilm_dir, theirs):
    encoder = Encoder.from_pretrained(str(minilm_dir))
    assert (encoder.pooling, encoder.max_length, encoder.path) == ("mean", 256, "packed")
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), theirs, rtol=0, atol=1e-5)


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
