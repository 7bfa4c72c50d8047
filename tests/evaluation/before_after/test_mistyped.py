"""Mistyped sentences in the table before → after: the values of `fastadv.evaluation.robustness`, kept and compared."""

import numpy as np
import pytest
import torch

from fastadv.config.schema import EvaluationConfig
from fastadv.data.edits.kinds import make_edits
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.before_after.before_after import load_measurement, save_measurement
from fastadv.evaluation.before_after.mistyped import measure_mistyped, mistyped_rows
from fastadv.evaluation.intervals import paired_interval
from fastadv.evaluation.robustness.edited import Variant, copies_of
from tests.evaluation.before_after.test_before_after import TEXTS

SENTENCES = TEXTS[:20]


@pytest.fixture(scope="module")
def encoders(tiny_bert_dir):
    from fastadv.encoder import Encoder

    first, second = (Encoder.from_pretrained(str(tiny_bert_dir), dtype=torch.float32, pooling="mean") for _ in "ab")
    with torch.no_grad():
        second.hf.embeddings.word_embeddings.weight.mul_(1.5)
    return first, second


def test_off_unless_asked_for(encoders):
    assert measure_mistyped(encoders[0], EvaluationConfig(), SENTENCES) == {}
    assert mistyped_rows({"vectors": np.eye(3)}, {"vectors": np.eye(3)}, 0) == []


def test_values_are_those_of_copies_drawn_by_the_seed(encoders):
    cfg = EvaluationConfig(typo_shares=[0.5], seed=4)
    found = measure_mistyped(encoders[0], cfg, SENTENCES, batch_size=7)
    copies = copies_of(SENTENCES, Variant("typos", 0.5), make_edits(["typos"], ""), 4)
    clean, edited = (encoders[0].encode_texts(texts) for texts in (SENTENCES, [copy.text for copy in copies]))
    cosines = (clean * edited).sum(1) / np.linalg.norm(clean, axis=1) / np.linalg.norm(edited, axis=1)
    np.testing.assert_allclose(found["mistyped/typos/0.5/cosine"], cosines, atol=1e-5)
    assert set(found) == {
        *("mistyped/typos//cosine", "mistyped/typos//retrieval", "nearer/typos/negation"),
        *("mistyped/typos/0.5/cosine", "mistyped/typos/0.5/retrieval"),
    }
    again = measure_mistyped(encoders[0], cfg, SENTENCES)
    np.testing.assert_allclose(again["mistyped/typos/0.5/cosine"], cosines, atol=1e-5)


def test_rows_survive_a_file_and_are_paired(encoders, tmp_path):
    cfg = EvaluationConfig(typo_shares=[0.5, 0.3])
    before, after = (measure_mistyped(encoder, cfg, SENTENCES) for encoder in encoders)
    save_measurement({"vectors": np.eye(2), **before}, tmp_path / "before.npz")
    rows = mistyped_rows(load_measurement(tmp_path / "before.npz"), after, seed=2)
    assert rows == mistyped_rows(before, after, seed=2)
    strengths = ("one word", "30 % of words", "50 % of words")
    assert [row["label"] for row in rows] == [
        *(f"cosine to the sentence, typos, {words}" for words in strengths),
        *(f"retrieval@1, typos, {words}" for words in strengths),
        "typos nearer than negation",
    ]
    change = paired_interval(*(values["mistyped/typos//cosine"] for values in (before, after)), seed=2)
    assert [rows[0][name] for name in ("difference", "low", "high")] == pytest.approx(
        [change.value, change.low, change.high]
    )
    assert change.value != 0 and all(row["num"] == 20 for row in rows[:6])


def test_antonyms_are_flips_with_word_sets(encoders, tmp_path):
    WordSets({}, {"good": ["bad"], "dull": ["sharp"]}).save(tmp_path / "sets.json")
    cfg = EvaluationConfig(typo_shares=[0.5], word_sets=str(tmp_path / "sets.json"))
    found = measure_mistyped(encoders[0], cfg, SENTENCES)
    rows = {row["label"]: row for row in mistyped_rows(found, found, 0)}
    has_antonym = [text.endswith(("good", "dull")) for text in SENTENCES]
    assert rows["typos nearer than antonym"]["num"] == sum(has_antonym) > 0
    with pytest.raises(UserError, match="nowhere.json"):
        measure_mistyped(encoders[0], EvaluationConfig(typo_shares=[0.5], word_sets="nowhere.json"), SENTENCES)
