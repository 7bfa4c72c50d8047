"""What is measured of copies, by hand on vectors that count letters; intervals, and that models stand apart."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binomtest, spearmanr

from fastadv.config.robustness import RobustnessSettings
from fastadv.data.edits.kinds import make_edits
from fastadv.errors import UserError
from fastadv.evaluation.before_after.before_after import compare
from fastadv.evaluation.intervals import paired_interval, value_interval
from fastadv.evaluation.robustness.edited import UNCHANGED, Copy, RobustnessData, Variant
from fastadv.evaluation.robustness.measure import METRICS, changes_cut_off, choices, measure, movement
from fastadv.evaluation.robustness.result import record_of, robustness_rows, robustness_table, tables_of
from fastadv.evaluation.vectors.scored_pairs import ScoredPairs
from tests.evaluation.made_up_sets import LetterEncoder

TYPOS, FLIP = Variant("typos"), Variant("negation", is_kept=False)
WORDS = "the film was hidden abroad because a bigger house could make each of them feel bad indeed".split()
SENTENCES = [" ".join(WORDS[i:] + WORDS[:i] + ["chief"] * (i % 5) + ["jaded"] * (i % 4)) for i in range(16)]
# Every second one has no verb to negate.
SENTENCES[1::2] = [text.replace("was", "ran").replace("could", "to") for text in SENTENCES[1::2]]


class Letters:
    """Vectors (N, 3) that count a, b and c; remembers what it was asked to encode."""

    def __init__(self):
        self.asked = []

    def encode_texts(self, texts, batch_size=64, progress=False):
        self.asked += texts
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], dtype=np.float32)


def data_of(variants, sentences=(), pairs=None, edits=None):
    return RobustnessData("made up", list(sentences), len(sentences), tuple(variants), edits or {}, pairs or {})


def copies(*texts):
    return [None if text is None else Copy(text, 1) for text in texts]


def test_values_are_those_by_hand():
    # (1, 1, 0), (1, 0, 1) and (0, 0, 3); their mean is (2, 1, 4) / 3.
    moved = movement(Letters(), ["ab", "ac", "ccc"], {TYPOS: copies("aab", None, "acc")})
    values = moved[TYPOS]
    assert np.isnan([values[metric][1] for metric in METRICS]).all()
    # (2, 1, 0) and (1, 0, 2).
    np.testing.assert_allclose(values["cosine"][[0, 2]], [3 / math.sqrt(10), 2 / math.sqrt(5)], rtol=1e-12)
    centred = [((1, 2, -4), (4, 2, -4)), ((-2, -1, 5), (1, -1, 2))]
    wanted = [np.dot(x, y) / math.sqrt(np.dot(x, x) * np.dot(y, y)) for x, y in centred]
    np.testing.assert_allclose(values["centred_cosine"][[0, 2]], wanted, rtol=1e-12)
    # (1, 0, 2) has cosine 3 / √10 to (1, 0, 1), more than 2 / √5 to its own.
    assert values["retrieval"][[0, 2]].tolist() == [1, 0]
    assert values["reciprocal_rank"][[0, 2]].tolist() == [1, 0.5]


def test_a_text_that_did_not_change_has_cosine_1_and_is_retrieved():
    copies_of_all = {TYPOS: copies(*SENTENCES)}
    moved = movement(LetterEncoder(), SENTENCES, copies_of_all)
    for variant in (UNCHANGED, TYPOS):
        for metric in METRICS:
            np.testing.assert_allclose(moved[variant][metric], 1, rtol=1e-12)
        assert (moved[variant]["retrieval"] == 1).all() and (moved[variant]["reciprocal_rank"] == 1).all()


def test_a_tie_is_a_miss():
    values = movement(Letters(), ["ab", "ba", "c"], {})[UNCHANGED]
    assert values["retrieval"].tolist() == [0, 0, 1] and values["reciprocal_rank"].tolist() == [0.5, 0.5, 1]


def test_every_different_text_is_encoded_once():
    encoder = Letters()
    movement(encoder, ["ab", "ac"], {TYPOS: copies("aab", "ab"), FLIP: copies("aab", None)})
    assert sorted(encoder.asked) == ["aab", "ab", "ac"]


def test_vectors_that_are_not_finite_are_refused():
    encoder = SimpleNamespace(encode_texts=lambda texts, **_: np.full((len(texts), 3), np.nan, np.float32))
    with pytest.raises(UserError, match="NaN or infinity for 2 of 2 texts"):
        movement(encoder, ["ab", "ac"], {})


def test_the_share_of_nearer_copies_is_that_by_hand():
    """Of five sentences: nearer, not nearer, a tie, nearer, and one without a flip."""
    moved = {
        TYPOS: {"cosine": np.array([0.9, 0.7, 0.8, 0.95, 0.5])},
        FLIP: {"cosine": np.array([0.8, 0.9, 0.8, 0.1, np.nan])},
        Variant("typos", 0.3): {"cosine": np.zeros(5)},
        Variant("swap", is_named=False): {"cosine": np.zeros(5)},
    }
    cut_off = {variant: np.zeros(5, bool) for variant in moved}
    found = choices(moved, data_of(moved), cut_off)
    assert list(found) == [(TYPOS, FLIP)]
    np.testing.assert_array_equal(found[TYPOS, FLIP], [1, 0, 0, 1, np.nan])
    for variant, sentence in ((TYPOS, 0), (FLIP, 1)):
        cut_off[variant][sentence] = True
    np.testing.assert_array_equal(choices(moved, data_of(moved), cut_off)[TYPOS, FLIP], [np.nan, np.nan, 0, 1, np.nan])


def test_a_change_behind_the_cut_is_told_from_one_that_the_tokenizer_does_not_see():
    """Letters of four at most, in lower case."""
    encoder = SimpleNamespace(max_length=4, tokenize=lambda texts: ([list(text.lower()[:4]) for text in texts], None))
    sentences = ["abcde", "abcde", "abc", "abcde"]
    edited = copies("abcdx", "abxde", "ABC", None)
    assert changes_cut_off(encoder, sentences, {TYPOS: edited})[TYPOS].tolist() == [True, False, False, False]
    assert not changes_cut_off(Letters(), sentences, {TYPOS: edited})[TYPOS].any()


def whole(models, pairs=None, **options):
    """The record of encoders by name, on edited `SENTENCES`."""
    settings = RobustnessSettings(texts="made up", edits=("typos",), **options)
    variants = [TYPOS, Variant("typos", 0.5), FLIP]
    edits = {name: make_edits([name], "edits") for name in ("typos", "negation")}
    data = data_of(variants, SENTENCES, pairs, edits)
    drawn = data.draw(settings.seed)
    measured = {name: measure(encoder, data, drawn) for name, encoder in models.items()}
    facts = {name: {"fingerprint": name, "pooling": "mean", "max_length": 9, "hidden_size": 3} for name in models}
    record = record_of(settings, data, drawn, measured, facts, {name: name for name in models})
    return record, measured, data, drawn


def without_differences(row):
    return {
        key: {k: v for k, v in value.items() if "difference" not in k} if isinstance(value, dict) else value
        for key, value in row.items()
    }


def test_a_models_numbers_do_not_depend_on_other_models():
    alone, _, _, _ = whole({"b": Letters()})
    beside, _, _, _ = whole({"a": LetterEncoder(), "b": Letters()})
    for key in ("rows", "choices"):
        of_b = [without_differences(row) for row in beside[key] if row["model"] == "b"]
        assert of_b == alone[key] and len(of_b) > 0


def test_numbers_have_their_intervals_and_paired_differences():
    record, measured, _, drawn = whole({"a": LetterEncoder(), "b": Letters()}, seed=3)
    assert any(copy is None for copy in drawn.copies[FLIP])
    for variant in (TYPOS, Variant("typos", 0.5), FLIP):
        a, b = (measured[name].movement[variant] for name in "ab")
        (row,) = (r for r in record["rows"] if (r["model"], r["edit"], r["share"]) == ("b", *variant[:2]))
        known = np.isfinite(b["cosine"])
        assert row["num"] == known.sum() and row["num"] + row["num_unchanged"] == 16
        assert row["keeps_meaning"] == variant.is_kept
        for metric in ("cosine", "centred_cosine", "reciprocal_rank"):
            interval = value_interval(b[metric][known], seed=3)
            wanted = {"value": interval.value, "low": interval.low, "high": interval.high}
            change = paired_interval(a[metric][known], b[metric][known], seed=3)
            wanted.update(difference=change.value, difference_low=change.low, difference_high=change.high)
            assert row[metric] == pytest.approx(wanted, abs=1e-12)
        found = row["retrieval"]
        shares = binomtest(int(b["retrieval"][known].sum()), int(known.sum())).proportion_ci(method="wilson")
        assert found["value"] == pytest.approx(100 * b["retrieval"][known].mean())
        assert (found["low"], found["high"]) == pytest.approx((100 * shares.low, 100 * shares.high))
    (row,) = (r for r in record["choices"] if r["model"] == "b")
    nearer, flipped = measured["b"].choice[TYPOS, FLIP], measured["b"].movement[FLIP]["cosine"]
    assert row["num"] == np.isfinite(nearer).sum() == np.isfinite(flipped).sum() > 3
    assert row["nearer"]["value"] == pytest.approx(100 * np.nanmean(nearer))
    assert row["cosine_flipped"]["value"] == pytest.approx(np.nanmean(flipped))
    both = measured["b"].movement[TYPOS]["cosine"][np.isfinite(flipped)]
    assert row["cosine_edited"]["value"] == pytest.approx(both.mean())
    said = robustness_table(record)
    assert "less a" in said and f"{row['nearer']['value']:.1f}" in said
    assert [table.key for table in tables_of(record)] == ["rows", "choices", "rows-differences", "choices-differences"]


def test_an_edit_without_a_place_anywhere_is_n_a():
    data = data_of([TYPOS, FLIP], SENTENCES)
    drawn = SimpleNamespace(copies={TYPOS: copies(*SENTENCES), FLIP: [None] * 16}, pairs={})
    measured = {"a": measure(Letters(), data, drawn)}
    facts = {"a": {"fingerprint": "f", "pooling": "cls", "max_length": 8}}
    record = record_of(RobustnessSettings(), data, drawn, measured, facts, {"a": "a"})
    row = record["rows"][-1]
    assert row["num"] == 0 and row["num_unchanged"] == 16 and row["num_changes"] is None
    assert row["cosine"] == row["retrieval"] == {"value": None, "low": None, "high": None}
    assert record["choices"][0]["num"] == 0 and "n/a" in robustness_table(record)


def test_sts_is_spearmans_of_pairs_with_both_sentences_edited():
    draw = np.random.default_rng(0)
    second = [SENTENCES[i] for i in draw.permutation(16)]
    pairs = {"STS-B": ScoredPairs([*SENTENCES[:15], "a b"], [*second[:15], "c d"], draw.random(16).tolist())}
    record, _, data, drawn = whole({"a": LetterEncoder(), "b": Letters()}, pairs)
    # A sentence that the edit has no place in keeps its pair.
    edited, num_unchanged = drawn.pairs[TYPOS, "STS-B"]
    assert num_unchanged == 2 and (edited.first[15], edited.second[15]) == ("a b", "c d")
    assert all(a != b for a, b in zip(edited.first[:15], SENTENCES)) and edited.second[:15] != second[:15]

    def score(of):
        u, v = (Letters().encode_texts(side).astype(np.float64) for side in (of.first, of.second))
        cosines = (u * v).sum(1) / np.sqrt((u * u).sum(1) * (v * v).sum(1))
        return 100 * spearmanr(cosines.round(12), of.scores).statistic

    rows = {(row["edit"], row["share"]): row for row in record["sts"] if row["model"] == "b"}
    assert list(rows) == [("unchanged", 0.0), ("typos", None), ("typos", 0.5)]
    clean, one = rows["unchanged", 0.0], rows["typos", None]
    assert clean["spearman"]["value"] == pytest.approx(score(pairs["STS-B"]), abs=1e-6)
    assert one["spearman"]["value"] == pytest.approx(score(edited), abs=1e-6)
    assert one["change"]["value"] == pytest.approx(one["spearman"]["value"] - clean["spearman"]["value"])
    assert one["num"] == 16 and one["num_unchanged"] == 2 and "change" not in clean
    assert one["change"]["low"] <= one["change"]["value"] <= one["change"]["high"]
    (first,) = (row for row in record["sts"] if (row["model"], row["edit"], row["share"]) == ("a", "typos", None))
    difference = one["spearman"]["value"] - first["spearman"]["value"]
    assert one["spearman"]["difference"] == pytest.approx(difference)


def test_rows_for_the_table_before_and_after():
    _, measured, _, _ = whole({"a": LetterEncoder(), "b": Letters()})
    before, after = (measured[name] for name in "ab")
    rows = robustness_rows(before, after, metrics=("retrieval", "cosine"), seed=1)
    assert [row["label"] for row in rows] == [
        "retrieval@1, typos, one word",
        "retrieval@1, typos, 50 % of words",
        "cosine to the sentence, typos, one word",
        "cosine to the sentence, typos, 50 % of words",
        "typos nearer than negation",
    ]
    values = {"before": before.movement[TYPOS]["cosine"], "after": after.movement[TYPOS]["cosine"]}
    change = paired_interval(*values.values(), seed=1)
    found = [rows[2][name] for name in ("difference", "low", "high")]
    assert found == pytest.approx([change.value, change.low, change.high], rel=1e-9)
    for side, of_side in values.items():
        interval = value_interval(of_side, seed=1)
        assert [rows[2][f"{side}{end}"] for end in ("", "_low", "_high")] == [
            interval.value,
            interval.low,
            interval.high,
        ]
    assert rows[4]["after"] == pytest.approx(np.nanmean(after.choice[TYPOS, FLIP]))
    about = [[row[name] for name in ("key", "edit", "metric", "words", "share")] for row in (rows[1], rows[4])]
    assert about == [
        ["typos@retrieval, 50 % of words", "typos", "retrieval", "50 % of words", 0.5],
        ["typos@nearer, negation", "typos", "nearer", "negation", None],
    ]
    assert [row["num"] for row in rows] == [16] * 4 + [np.isfinite(after.choice[TYPOS, FLIP]).sum()]
    empty = {"vectors": np.eye(16), "alignment": np.ones(16)}
    (other, *_) = compare(empty, empty, SimpleNamespace(seed=0, radii=[], num_steps=1, held_out="x"))["rows"]
    assert other.keys() < rows[0].keys()
    with pytest.raises(ValueError, match="typos"):
        robustness_rows(before, after._replace(movement={UNCHANGED: after.movement[UNCHANGED]}))
