"""The table before → after: what each row counts, equality where nothing changed, and the sentences it is made on."""

import json

import numpy as np
import pytest
import torch

from fastadv.config import EvaluationConfig
from fastadv.errors import UserError
from fastadv.evaluation.before_after import (
    compare,
    evaluate_before_after,
    load_measurement,
    measure,
    probe_radii,
    save_measurement,
)
from fastadv.evaluation.held_out import HeldOut, draw_distinct, load_held_out
from fastadv.evaluation.results_table import markdown_table, text_table, verdict

SUBJECTS = ("the film", "this movie", "that story", "one actor", "every scene", "the plot")
OPINIONS = ("was good", "was bad", "is very dull", "is wonderful", "was almost sad", "is not sharp")
TEXTS = [f"{subject} {opinion}" for subject in SUBJECTS for opinion in OPINIONS]
LABELS = [int(opinion in ("was good", "is wonderful", "is not sharp")) for _ in SUBJECTS for opinion in OPINIONS]


@pytest.fixture
def cfg():
    return EvaluationConfig(enabled=True, num_sentences=24, radii=[0.2, 0.6], num_steps=3, num_probe_sentences=16)


@pytest.fixture
def held_out():
    return HeldOut(TEXTS[:24], probe_train=(TEXTS, LABELS), probe_test=(TEXTS[8:24], LABELS[8:24]))


def test_measurement_has_one_value_a_sentence(tiny_encoder, cfg, held_out):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean", dropout=0.1)
    found = measure(encoder, cfg, held_out, batch_size=7)
    attacked = [f"{name}@{radius}" for name in ("retrieval", "centred_cosine", "cosine") for radius in (0.2, 0.6)]
    assert {name: found[name].shape for name in [*attacked, "alignment", "noise_retrieval@0.6"]} == dict.fromkeys(
        [*attacked, "alignment", "noise_retrieval@0.6"], (24,)
    )
    assert found["vectors"].shape == (24, 32)
    assert probe_radii(cfg) == [0.05, 0.1]
    assert found["probe@0"].shape == found["probe@0.05"].shape == found["probe@0.1"].shape == (16,)
    assert (found["alignment"] > 0).all()
    assert found["cosine@0.6"].mean() < found["cosine@0.2"].mean() < 1
    assert found["retrieval@0.6"].mean() <= found["retrieval@0.2"].mean()
    assert found["probe@0.1"].mean() <= found["probe@0"].mean()


def test_measurement_does_not_depend_on_batches_or_the_global_seed(tiny_encoder, cfg, held_out):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean", dropout=0.1)
    first = measure(encoder, cfg, held_out)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again = measure(encoder, cfg, held_out)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    other = measure(encoder, cfg, held_out, batch_size=5)
    np.testing.assert_allclose(other["cosine@0.2"], first["cosine@0.2"], atol=1e-3)


def test_an_unchanged_model_shows_no_change(tiny_encoder, cfg, held_out):
    found = measure(tiny_encoder(dtype=torch.float32, pooling="mean"), cfg, held_out)
    results = compare(found, found, cfg)
    assert all(row["difference"] == row["low"] == row["high"] == 0 for row in results["rows"])
    assert {verdict(row) for row in results["rows"]} == {"unclear"}
    assert json.loads(json.dumps(results, allow_nan=False)) == results


def test_changes_are_signed_and_judged(tiny_encoder, cfg, held_out):
    before = measure(tiny_encoder(dtype=torch.float32, pooling="mean", dropout=0.1), cfg, held_out)
    after = dict(before)
    after["cosine@0.2"] = before["cosine@0.2"] + 0.1
    after["alignment"] = before["alignment"] * 2
    after["vectors"] = before["vectors"] + 3 * before["vectors"].mean(axis=0)  # a narrower cone
    rows = {row["key"]: row for row in compare(before, after, cfg)["rows"]}
    assert rows["cosine@0.2"]["difference"] == pytest.approx(0.1)
    assert rows["cosine@0.2"]["low"] == pytest.approx(0.1) and rows["cosine@0.2"]["high"] == pytest.approx(0.1)
    judged = {key: verdict(rows[key]) for key in ("cosine@0.2", "alignment", "uniformity", "cosine@0.6")}
    assert judged == {"cosine@0.2": "better", "alignment": "worse", "uniformity": "worse", "cosine@0.6": "unclear"}


def test_tables_hold_every_row(tiny_encoder, cfg, held_out):
    found = measure(tiny_encoder(dtype=torch.float32), cfg, held_out)
    results = compare(found, found, cfg)
    text, markdown = text_table(results).splitlines(), markdown_table(results).splitlines()
    assert "24 held-out sentences" in text[0] and "before" in text[1]
    assert len(text) == 2 + len(results["rows"]) + len(results["warnings"])
    assert any(line.startswith("retrieval@1, radius 0.2") for line in text)
    assert any(line.startswith("sentiment probe, clean") for line in text)
    assert len(markdown) == 4 + len(results["rows"])
    assert {line.count("|") for line in markdown[2:]} == {6}


def test_an_attack_weaker_than_noise_is_reported(tiny_encoder, cfg, held_out):
    found = measure(tiny_encoder(dtype=torch.float32), cfg, held_out)
    masked = {**found, "retrieval@0.2": np.ones(24), "noise_retrieval@0.2": np.full(24, 0.5)}
    found = {**found, "noise_retrieval@0.2": np.ones(24), "noise_retrieval@0.6": np.ones(24)}
    warnings = compare(found, {**masked, "noise_retrieval@0.6": np.ones(24)}, cfg)["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith("after: at radius 0.2 retrieval@1 is 1.000 under attack but 0.500")


def test_measurements_that_do_not_match_are_refused(tiny_encoder, cfg, held_out):
    found = measure(tiny_encoder(dtype=torch.float32), cfg, held_out)
    with pytest.raises(ValueError, match="do not match in 'cosine@0.6'"):
        compare(found, {name: values for name, values in found.items() if name != "cosine@0.6"}, cfg)


def test_a_measurement_survives_its_file(tiny_encoder, cfg, held_out, tmp_path):
    found = measure(tiny_encoder(dtype=torch.float32), cfg, held_out)
    save_measurement(found, tmp_path / "before.npz")
    loaded = load_measurement(tmp_path / "before.npz")
    assert list(loaded) == list(found) and all(np.array_equal(loaded[name], found[name]) for name in found)
    assert [path.name for path in tmp_path.iterdir()] == ["before.npz"]


def test_a_collapsed_model_retrieves_nothing(tiny_encoder, cfg, held_out):
    encoder = tiny_encoder(dtype=torch.float32)
    encoder.hf.encoder.layer[-1].output.LayerNorm.weight.data.zero_()
    encoder.hf.encoder.layer[-1].output.LayerNorm.bias.data.fill_(1)
    found = measure(encoder, cfg, HeldOut(held_out.sentences))
    assert found["retrieval@0.2"].sum() == 0
    assert not any(name.startswith("probe") for name in found)
    row = {row["key"]: row for row in compare(found, found, cfg)["rows"]}["uniformity"]
    assert row["before"] == pytest.approx(0, abs=1e-12)


def test_broken_weights_are_said(tiny_encoder, cfg, held_out):
    encoder = tiny_encoder(dtype=torch.float32)
    encoder.hf.embeddings.word_embeddings.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="NaN or infinity"):
        measure(encoder, cfg, held_out)


def test_drawn_sentences_differ_after_truncation(tiny_encoder):
    encoder = tiny_encoder(max_length=5)  # [CLS], three words, [SEP]
    texts = ["the film was good", "the film was bad", "a dull plot", "a dull plot", "a sad plot"] * 3
    drawn = draw_distinct(texts, 3, encoder, seed=0)
    assert len({tuple(tokens) for tokens in encoder.tokenize(drawn)[0]}) == 3
    assert draw_distinct(texts, 3, encoder, seed=0) == drawn
    assert len(draw_distinct(texts, 9, encoder, seed=0)) == 3


def test_held_out_sentences_of_a_file(tiny_encoder, tmp_path, cfg):
    (tmp_path / "held.txt").write_text("\n".join(TEXTS) + "\n")
    cfg.held_out, cfg.num_probe_sentences = str(tmp_path / "held.txt"), 0
    found = load_held_out(cfg, tiny_encoder())
    assert len(set(found.sentences)) == 24 and set(found.sentences) <= set(TEXTS)
    assert found.probe_test == ([], [])
    cfg.num_sentences = 100
    with pytest.raises(UserError, match="num_sentences is 100, but .*held.txt has only 36"):
        load_held_out(cfg, tiny_encoder())
    cfg.num_sentences = 3
    with pytest.raises(UserError, match="at least 16, got 3"):
        load_held_out(cfg, tiny_encoder())


def test_demo_probe_sentences_do_not_overlap(tiny_encoder, tmp_path, cfg):
    (tmp_path / "held.txt").write_text("\n".join(TEXTS) + "\n")
    cfg.held_out = str(tmp_path / "held.txt")
    found = load_held_out(cfg, tiny_encoder())
    (train, train_labels), (test, test_labels) = found.probe_train, found.probe_test
    assert (len(train), len(test), len(train_labels), len(test_labels)) == (2048, 16, 2048, 16)
    assert not set(train) & set(test) and set(train_labels) == set(test_labels) == {0, 1}
    cfg.num_probe_sentences = 8000
    with pytest.raises(UserError, match="num_probe_sentences must be 0 .* got 8000"):
        load_held_out(cfg, tiny_encoder())


def test_both_halves_in_one_call(tiny_encoder, tmp_path, cfg):
    (tmp_path / "held.jsonl").write_text("".join(json.dumps({"review": text}) + "\n" for text in TEXTS))
    cfg.held_out, cfg.num_probe_sentences = str(tmp_path / "held.jsonl"), 0
    before, after = (tiny_encoder(dtype=torch.float32, pooling=pooling) for pooling in ("cls", "mean"))
    results = evaluate_before_after(before, after, cfg, data_field="review")
    assert results["num_sentences"] == 24
    assert any(row["difference"] != 0 for row in results["rows"])
