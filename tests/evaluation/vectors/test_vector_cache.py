"""Vectors and finished sets are kept by content: equal inputs are read, others made anew, damage is seen."""

import json
import logging

import numpy as np
import pytest
import torch

from fastadv.errors import UserError
from fastadv.evaluation.vectors import transfer, vector_cache
from fastadv.evaluation.vectors.transfer import transfer_results
from fastadv.evaluation.vectors.transfer_sets import read_transfer_set
from fastadv.evaluation.vectors.vector_cache import VectorCache, encode_distinct, model_fingerprint
from tests.evaluation.made_up_sets import write_sets

TEXTS = ["the film was good .", "a dull story", "never", "very good", "it is not dull", "great actor"]


@pytest.fixture
def counted(tiny_encoder):
    """A factory of encoders that note what they encode; ``stop_after`` texts they fail."""

    def make(stop_after=None, **options):
        encoder = tiny_encoder(dtype=torch.float32, **options)
        encode, encoder.asked = encoder.encode_texts, []

        def encode_texts(texts, batch_size=64, on_batch=None, progress=False, is_finished=True):
            if stop_after is not None and len(encoder.asked) >= stop_after:
                raise KeyboardInterrupt
            encoder.asked += texts
            return encode(texts, batch_size=batch_size, on_batch=on_batch, is_finished=is_finished)

        encoder.encode_texts = encode_texts
        return encoder

    return make


def test_a_second_run_reads_what_the_first_wrote(counted, tmp_path):
    first, second = counted(), counted()
    vectors = VectorCache(tmp_path / "new", first).encode(TEXTS)
    np.testing.assert_array_equal(vectors, counted().encode_texts(TEXTS))
    np.testing.assert_array_equal(VectorCache(tmp_path / "new", second).encode(TEXTS, batch_size=2), vectors)
    assert first.asked == TEXTS and second.asked == []


def test_other_texts_poolings_lengths_and_weights_are_encoded(counted, tmp_path):
    VectorCache(tmp_path, counted()).encode(TEXTS)
    changed = counted()
    with torch.no_grad():
        next(changed.hf.parameters())[3, 1] += 1e-6
    others = [counted(pooling="mean"), counted(max_length=9), changed]
    for encoder in others:
        VectorCache(tmp_path, encoder).encode(TEXTS)
        assert encoder.asked == TEXTS
    encoder = counted()
    VectorCache(tmp_path, encoder).encode([*TEXTS[:-1], "great actor ."])
    assert len(encoder.asked) == len(TEXTS)
    assert len(list(tmp_path.iterdir())) == 5


def test_the_fingerprint_is_of_content_alone(counted, tiny_bert_dir, tmp_path):
    from fastadv.encoder import Encoder

    counted().save_pretrained(tmp_path / "copy")
    copy = Encoder.from_pretrained(str(tmp_path / "copy"))
    assert model_fingerprint(copy) == model_fingerprint(counted())
    copy.hf.config.layer_norm_eps *= 2
    assert model_fingerprint(copy) != model_fingerprint(counted())
    assert model_fingerprint(counted().to(torch.bfloat16)) != model_fingerprint(counted())


def test_an_encoding_that_was_stopped_goes_on_at_its_last_whole_chunk(counted, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_cache, "CHUNK_SIZE", 2)
    stopped, second = counted(stop_after=4), counted()
    with pytest.raises(KeyboardInterrupt):
        VectorCache(tmp_path, stopped).encode(TEXTS)
    vectors = VectorCache(tmp_path, second).encode(TEXTS)
    assert stopped.asked == TEXTS[:4] and second.asked == TEXTS[4:]
    np.testing.assert_allclose(vectors, counted().encode_texts(TEXTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "shape"])
def test_a_damaged_file_is_made_anew_and_said(damage, counted, tmp_path, caplog):
    vectors = VectorCache(tmp_path, counted()).encode(TEXTS)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "bit":
        content[content.index(vectors.tobytes()) + 5] ^= 1
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        np.savez(path, vectors=vectors[:3])
    encoder = counted()
    with caplog.at_level(logging.WARNING, logger="fastadv"):
        np.testing.assert_array_equal(VectorCache(tmp_path, encoder).encode(TEXTS), vectors)
    assert encoder.asked == TEXTS and "is damaged" in caplog.text
    encoder = counted()
    VectorCache(tmp_path, encoder).encode(TEXTS)
    assert encoder.asked == []


def test_folders_that_take_no_file(counted, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file.*cannot be written to"):
        VectorCache(tmp_path / "file", counted())
    cache = VectorCache(tmp_path / "folder", counted())
    (tmp_path / "folder").rmdir()
    with pytest.raises(UserError, match="folder.*cannot be written to: No such file"):
        cache.encode(TEXTS)


def test_broken_vectors_are_counted():
    class Broken:
        def encode_texts(self, texts, **options):
            return np.array([[0.0, np.nan], [np.inf, np.nan], [1, 2]])

    with pytest.raises(UserError, match="NaN or infinity for 2 of 3 texts"):
        encode_distinct(Broken(), ["a", "b", "c"])


class TestFinishedSets:
    """What `transfer_results` keeps beside the vectors."""

    @pytest.fixture(autouse=True)
    def _few_folds(self, monkeypatch):
        monkeypatch.setattr(transfer, "NUM_FOLDS", 3)

    def run(self, encoder, folder, tmp_path, sets=("SST-2",), seed=1):
        return transfer_results(encoder, folder, sets, seed=seed, cache_dir=tmp_path / "cache")

    def test_are_not_scored_again(self, counted, tmp_path, monkeypatch):
        folder = write_sets(tmp_path, ["SST-2", "MRPC"], num_rows=12)
        first = self.run(counted(), folder, tmp_path)["SST-2"]
        encoder = counted()
        results = self.run(encoder, folder, tmp_path, ["SST-2", "MRPC"])
        assert results["SST-2"].is_kept and results["SST-2"].accuracy == first.accuracy
        assert not first.is_kept and not results["MRPC"].is_kept
        assert encoder.asked == read_transfer_set(folder, "MRPC").distinct_texts
        monkeypatch.setattr(transfer, "_score", None)
        assert self.run(counted(), folder, tmp_path, ["SST-2", "MRPC"])["MRPC"].is_kept

    @pytest.mark.parametrize("change", ["seed", "label", "text", "model"])
    def test_are_scored_again_after_a_change(self, change, counted, tmp_path):
        folder = write_sets(tmp_path, ["SST-2"], num_rows=12)
        self.run(counted(), folder, tmp_path)
        path, encoder, seed = folder / "SST" / "binary" / "sentiment-dev", counted(), 1
        text = path.read_text()
        if change == "seed":
            seed = 2
        elif change == "label":
            path.write_text(text[:-2] + ("0" if text[-2] == "1" else "1") + "\n")
        elif change == "text":
            path.write_text("another " + text)
        else:
            encoder = counted(pooling="mean")
        assert not self.run(encoder, folder, tmp_path, seed=seed)["SST-2"].is_kept

    def test_that_are_damaged_are_scored_again(self, counted, tmp_path, caplog):
        folder = write_sets(tmp_path, ["SST-2"], num_rows=12)
        first = self.run(counted(), folder, tmp_path)["SST-2"]
        (path,) = (tmp_path / "cache").glob("transfer-*.json")
        for content in ("{", json.dumps({"precision": 3}), "[]"):
            path.write_text(content)
            with caplog.at_level(logging.WARNING, logger="fastadv"):
                again = self.run(counted(), folder, tmp_path)["SST-2"]
            assert not again.is_kept and again.accuracy == first.accuracy and "is damaged" in caplog.text

    def test_without_a_score_are_not_kept(self, counted, tmp_path):
        folder = write_sets(tmp_path, ["CR"], num_rows=12)
        (folder / "CR" / "custrev.pos").write_text("one row\n")
        assert self.run(counted(), folder, tmp_path, ["CR"])["CR"].why is not None
        assert not list((tmp_path / "cache").iterdir())
