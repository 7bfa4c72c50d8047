"""The export opens in AutoModel, in SentenceTransformer and in Encoder, and gives the same vectors in all."""

import json
import shutil

import numpy as np
import pytest
import torch

from fastadv.encoder import Encoder
from fastadv.errors import UserError
from tests.encoder.conftest import hub_vectors, sentence_transformer_vectors


@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last"])
def test_every_reader_gives_the_same_vectors(pooling, tiny_encoder, sentences, tmp_path):
    encoder = tiny_encoder(dtype=torch.float32, pooling=pooling, max_length=12)
    texts = [*sentences, "the " * 40]
    # A call of another length must leave no trace in the export.
    encoder.tokenizer(texts, truncation=True, max_length=4, padding=True)
    folder = encoder.save_pretrained(tmp_path / "export")
    ours = encoder.encode_texts(texts)
    tolerance = 1e-5 * np.abs(ours).max()
    again = Encoder.from_pretrained(str(folder))
    assert (again.pooling, again.max_length, again.path) == (pooling, 12, "packed")
    np.testing.assert_allclose(again.encode_texts(texts), ours, rtol=0, atol=0)
    np.testing.assert_allclose(hub_vectors(folder, texts, pooling), ours, rtol=0, atol=tolerance)
    np.testing.assert_allclose(sentence_transformer_vectors(folder, texts), ours, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert"])
def test_an_export_that_was_moved_needs_nothing_else(family, family_encoder, sentences, tmp_path):
    encoder = family_encoder(family, dtype=torch.float32, pooling="mean")
    moved = shutil.move(encoder.save_pretrained(tmp_path / "export"), tmp_path / "moved")
    again = Encoder.from_pretrained(str(moved))
    assert again.path == encoder.path
    np.testing.assert_array_equal(again.encode_texts(sentences), encoder.encode_texts(sentences))


def test_files(tiny_encoder, tmp_path):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean", max_length=16)
    encoder.tokenizer(["the film"], truncation=True, max_length=4, padding=True)
    folder = encoder.save_pretrained(tmp_path / "deep" / "export")
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"config.json", "model.safetensors", "modules.json", "tokenizer.json", "README.md"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 16
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 16
    backend = json.loads((folder / "tokenizer.json").read_text())
    assert backend["truncation"] is None and backend["padding"] is None
    assert encoder.tokenizer.model_max_length == 64
    assert encoder.hf.config.output_hidden_states is False
    text = "".join(path.read_text() for path in folder.rglob("*.json"))
    assert str(tmp_path) not in text
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: sentence-transformers") and "at most 16 tokens" in card
    assert sorted(path.name for path in folder.parent.iterdir()) == ["export"]


def test_a_card_and_other_weights(tiny_encoder, sentences, tmp_path):
    encoder = tiny_encoder(dtype=torch.float32)
    state = {name: value * 0.5 for name, value in encoder.hf.state_dict().items()}
    folder = encoder.save_pretrained(tmp_path / "export", card="# mine\n", state_dict=state)
    assert (folder / "README.md").read_text() == "# mine\n"
    again = Encoder.from_pretrained(str(folder))
    for name, value in again.hf.state_dict().items():
        assert torch.equal(value, state[name])


def test_bfloat16_stays_bfloat16(tiny_encoder, tmp_path):
    folder = tiny_encoder(dtype=torch.bfloat16).save_pretrained(tmp_path / "export")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_export_replaces_an_export_and_nothing_else(tiny_encoder, tmp_path):
    encoder = tiny_encoder(dtype=torch.float32)
    folder = tmp_path / "export"
    folder.mkdir()
    encoder.save_pretrained(folder)
    (folder / "leftover").write_text("")
    encoder.save_pretrained(folder)
    assert not (folder / "leftover").exists()
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter1.tex").write_text("")
    with pytest.raises(UserError, match="something other than an export"):
        encoder.save_pretrained(other)
    with pytest.raises(UserError, match="is a file"):
        encoder.save_pretrained(other / "chapter1.tex")
    assert [path.name for path in other.iterdir()] == ["chapter1.tex"]


def test_a_failed_export_leaves_the_old_one(tiny_encoder, tmp_path, monkeypatch):
    encoder = tiny_encoder(dtype=torch.float32)
    folder = encoder.save_pretrained(tmp_path / "export")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def fail(*_args, **_options):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(encoder.tokenizer), "save_pretrained", fail)
    with pytest.raises(OSError, match="no space"):
        encoder.save_pretrained(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
