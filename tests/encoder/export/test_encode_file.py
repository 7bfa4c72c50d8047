"""Files of text to files of vectors."""

import json

import numpy as np
import pytest
import torch

from fastadv.encoder.export import encode_file as module
from fastadv.encoder.export.encode_file import encode_file
from fastadv.errors import UserError


@pytest.fixture
def encoder(tiny_encoder):
    return tiny_encoder(dtype=torch.float32, pooling="mean")


@pytest.fixture
def text_file(sentences, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*sentences[:3], "", *sentences[3:]]) + "\n")
    return path


def test_npy(encoder, text_file, sentences, tmp_path, monkeypatch):
    # Windows of 3: the header is written after several of them.
    monkeypatch.setattr(module, "_WINDOW", 3)
    summary = encode_file(encoder, text_file, tmp_path / "out" / "v.npy", batch_size=2)
    vectors = np.load(tmp_path / "out" / "v.npy", allow_pickle=False)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, encoder.encode_texts(sentences), rtol=0, atol=1e-5)
    assert summary["num_sentences"] == len(sentences) and summary["hidden_size"] == 32
    assert summary["output"] == str(tmp_path / "out" / "v.npy")
    assert "1 blank" in summary["lines"] and summary["sentences_per_s"] > 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["v.npy"]
    assert np.load(tmp_path / "out" / "v.npy", mmap_mode="r").shape == vectors.shape


def test_vectors_that_are_not_finite_make_no_file(encoder, text_file, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 3)
    with torch.no_grad():
        encoder.word_embeddings[encoder.tokenize([sentences[3]])[0][0][1]] = float("inf")
    first = next(i for i, v in enumerate(encoder.encode_texts(sentences)) if not np.isfinite(v).all())
    with pytest.raises(
        UserError, match=f"vector of sentence {first + 1}, {sentences[first][:20]!r:.20}.* is not finite"
    ):
        encode_file(encoder, text_file, tmp_path / "v.npy")
    assert not list(tmp_path.glob("*v.npy*"))


def test_parquet(encoder, text_file, sentences, tmp_path, monkeypatch):
    import pyarrow.parquet

    monkeypatch.setattr(module, "_WINDOW", 3)
    encode_file(encoder, text_file, tmp_path / "v.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert table.column("text").to_pylist() == sentences
    vectors = np.array(table.column("vector").to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(vectors, encoder.encode_texts(sentences), rtol=0, atol=1e-5)


def test_jsonl_field(encoder, sentences, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"review": text}) + "\n" for text in sentences))
    encode_file(encoder, path, tmp_path / "v.npy", field="review")
    assert len(np.load(tmp_path / "v.npy")) == len(sentences)


@pytest.mark.parametrize("name", ["v.csv", "v", "v.npz"])
def test_an_unknown_format(name, encoder, text_file, tmp_path):
    with pytest.raises(UserError, match=r"does not end in .npy or .parquet"):
        encode_file(encoder, text_file, tmp_path / name)


def test_a_failure_leaves_the_old_file(encoder, text_file, tmp_path):
    target = tmp_path / "v.npy"
    encode_file(encoder, text_file, target)
    before = target.read_bytes()
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    for suffix in ("npy", "parquet"):
        with pytest.raises(UserError):
            encode_file(encoder, empty, tmp_path / f"v.{suffix}")
    with pytest.raises(UserError):
        encode_file(encoder, tmp_path / "missing.txt", target)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt", "texts.txt", "v.npy"]
