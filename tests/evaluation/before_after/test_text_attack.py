"""DeepWordBug in the table before → after: rates by hand, what does not count, and why it is n/a."""

import importlib.util

import numpy as np
import pytest
import torch

from fastadv.config.schema import EvaluationConfig
from fastadv.errors import UserError
from fastadv.evaluation.before_after import text_attack
from fastadv.evaluation.before_after.probe import Probe, fit_probe
from fastadv.evaluation.before_after.results_table import markdown_table, text_table
from fastadv.evaluation.before_after.text_attack import (
    as_far_as_can_be,
    attack_probe,
    attack_rows,
    attack_warnings,
    why_not_attacked,
)
from tests.evaluation.attacked_rows import made_row
from tests.evaluation.before_after.test_before_after import LABELS, TEXTS
from tests.evaluation.packages import require_textattack, shared_attack_data

NAN, INF = np.nan, np.inf


def values(right, words):
    return {"deepwordbug_right": np.array(right, dtype=float), "deepwordbug_words": np.array(words, dtype=float)}


# Of six texts: two right, one of them fooled by two words; and four right, fooled by 1 and 4 words and by none.
BEFORE = values([1, 0, 1, 0, 0, NAN], [2, NAN, INF, NAN, NAN, NAN])
AFTER = values([1, 1, 1, 1, 0, 0], [INF, 1, INF, 4, NAN, NAN])


def test_rates_are_those_by_hand():
    rows, missing = attack_rows(BEFORE, AFTER, seed=3)
    assert not missing
    by_key = {row["key"]: row for row in rows}
    assert [(row["label"], row["better"]) for row in rows] == [
        ("DeepWordBug succeeds, ≤ 1 word", "lower"),
        ("DeepWordBug succeeds, ≤ 2 words", "lower"),
        ("DeepWordBug succeeds, ≤ 3 words", "lower"),
        ("DeepWordBug succeeds, any number of words", "lower"),
        ("probe before DeepWordBug", "higher"),
    ]
    rates = {key: (row["before"], row["after"]) for key, row in by_key.items()}
    assert rates == {
        "deepwordbug@1": (0, 1 / 4),
        "deepwordbug@2": (1 / 2, 1 / 4),
        "deepwordbug@3": (1 / 2, 1 / 4),
        "deepwordbug@any": (1 / 2, 2 / 4),
        "deepwordbug@0": (pytest.approx(2 / 5), pytest.approx(4 / 6)),
    }
    assert [row.get("max_words", "none") for row in rows] == [1, 2, 3, None, "none"]


def test_the_interval_is_over_all_texts_of_both_models_alike():
    rng = np.random.default_rng(0)
    sides = []
    for chance in (0.6, 0.3):
        right = (rng.random(120) < 0.7).astype(float)
        sides.append(values(right, np.where(right == 0, NAN, np.where(rng.random(120) < chance, 2, INF))))
    row = attack_rows(*sides, seed=5)[0][1]
    draws = np.random.default_rng(5).multinomial(120, np.full(120, 1 / 120), 2000)
    differences = []
    for counts in draws:
        chosen = np.repeat(np.arange(120), counts)
        rates = [np.isfinite(w)[~np.isnan(w)].mean() for w in (s["deepwordbug_words"][chosen] for s in sides)]
        differences.append(rates[1] - rates[0])
    assert row["difference"] == pytest.approx(row["after"] - row["before"])
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.percentile(differences, [2.5, 97.5])), abs=1e-12)
    assert row["low"] < row["difference"] < row["high"] < 0


def test_an_unchanged_model_shows_no_change():
    assert all(row["difference"] == row["low"] == row["high"] == 0 for row in attack_rows(AFTER, AFTER, 0)[0])


def test_without_a_text_that_counts_the_rows_are_n_a():
    nothing = values([0] * 6, [NAN] * 6)
    rows, missing = attack_rows(BEFORE, nothing, 0)
    assert not rows and missing[0]["why"].startswith("after training the probe is right on none of the 6 texts")
    assert attack_rows({}, {}, 0) == ([], [])
    assert not list(attack_warnings("after", AFTER)) and not list(attack_warnings("after", {}))
    assert list(attack_warnings("before", BEFORE)) == [
        "before: DeepWordBug ended in an error on 1 of 6 texts, which do not count (deepwordbug.log)"
    ]


def test_outcomes_become_values(monkeypatch, tiny_encoder):
    """A failed attack is no number of words, and neither is an error; the classifier that is attacked is the probe."""
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean").train()
    probe = fit_probe(encoder.encode_texts(TEXTS), LABELS)
    outcomes = ["succeeded", "failed", "skipped", "error"]
    asked, told = [], []

    def attack_here(job, texts, classifier):
        asked.extend((job, classifier))
        assert not encoder.training
        for text, outcome in zip(texts, outcomes):
            yield made_row(text.row, outcome, num_words_changed=3 if outcome == "succeeded" else 0)

    monkeypatch.setattr(text_attack, "attack_here", attack_here)
    cfg = EvaluationConfig(seed=7)
    found = attack_probe(encoder, probe, TEXTS[:4], LABELS[:4], cfg, on_text=lambda: told.append(1))
    np.testing.assert_array_equal(found["deepwordbug_right"], [1, 1, 0, NAN])
    np.testing.assert_array_equal(found["deepwordbug_words"], [3, INF, NAN, NAN])
    job, classifier = asked
    assert len(told) == 4 and encoder.training and job.settings.seed == 7 and job.settings.max_seconds is None
    logits = classifier.classify_texts(TEXTS)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], probe.logits(encoder.encode_texts(TEXTS)), atol=1e-4)


def test_an_attack_for_real_is_the_same_again_and_counts_changed_words(tiny_encoder, monkeypatch, tmp_path):
    require_textattack()
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(shared_attack_data()))
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean")
    probe = fit_probe(encoder.encode_texts(TEXTS), LABELS)
    cfg = EvaluationConfig(num_attacked_texts=16)
    assert as_far_as_can_be(cfg, "mean") == (cfg, [])
    first, again = (attack_probe(encoder, probe, TEXTS[:16], LABELS[:16], cfg, tmp_path / "log") for _ in range(2))
    assert all(np.array_equal(first[name], again[name], equal_nan=True) for name in first)
    right, words = first.values()
    np.testing.assert_array_equal(right, probe.is_right(encoder.encode_texts(TEXTS[:16]), LABELS[:16]))
    np.testing.assert_array_equal(np.isnan(words), right == 0)
    # Every text has four or five words.
    assert right.any() and set(words[np.isfinite(words)]) <= {1, 2, 3, 4, 5} and np.isfinite(words).any()


def test_what_is_in_the_way_is_said_in_a_line(monkeypatch, tmp_path):
    cfg = EvaluationConfig(num_attacked_texts=16)
    assert why_not_attacked(EvaluationConfig(), "cls") is None
    assert "pools by cls" in why_not_attacked(cfg, "cls")
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(tmp_path / "nowhere"))
    if importlib.util.find_spec("textattack") is not None:
        assert "prepare-attack-data" in why_not_attacked(cfg, "mean") and "nowhere" in why_not_attacked(cfg, "mean")
    left, missing = as_far_as_can_be(cfg, "mean")
    assert left.num_attacked_texts == 0 and left.num_probe_sentences == cfg.num_probe_sentences
    assert missing == [{"label": "DeepWordBug succeeds", "why": why_not_attacked(cfg, "mean")}]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "which is not installed: pip install 'fastadv[attack]'" in why_not_attacked(cfg, "mean")


def test_a_package_that_does_not_import_is_in_the_way(monkeypatch):
    def broken():
        raise UserError("attacks need TextAttack, which cannot be imported (no flair)")

    monkeypatch.setattr(text_attack, "check_settings", lambda settings: None)
    monkeypatch.setattr(text_attack, "load_textattack", broken)
    left, missing = as_far_as_can_be(EvaluationConfig(num_attacked_texts=16), "mean")
    assert left.num_attacked_texts == 0 and "no flair" in missing[0]["why"]


def test_the_table_says_n_a_and_why():
    row = attack_rows(BEFORE, AFTER, 0)[0][0]
    results = {"num_sentences": 16, "num_steps": 2, "rows": [row], "warnings": ["careful"]}
    results["missing"] = [{"label": "DeepWordBug succeeds", "why": "there are no data"}]
    lines = text_table(results).splitlines()
    assert lines[2].split() == ["DeepWordBug", "succeeds", *["n/a"] * 4]
    assert lines[4:] == ["DeepWordBug succeeds: n/a. there are no data", "warning: careful"]
    lines = markdown_table(results).splitlines()
    assert lines[4] == "| DeepWordBug succeeds | n/a | n/a | n/a | n/a |" and lines[-2:] == [
        "",
        "DeepWordBug succeeds: n/a. there are no data",
    ]


def test_a_probe_of_another_pooling_is_refused(tiny_encoder):
    encoder = tiny_encoder(dtype=torch.float32, pooling="cls")
    probe = Probe(np.ones(encoder.hidden_size), 0.0)
    with pytest.raises(UserError, match="pooling cls"):
        attack_probe(encoder, probe, TEXTS[:2], LABELS[:2], EvaluationConfig())
