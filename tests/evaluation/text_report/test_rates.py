"""Rates of text attacks against loops written anew, and against numbers worked out by hand."""

import json
import math

import pytest

from fastadv.evaluation.text_report.rates import (
    CAPS,
    mcnemar,
    mean_of,
    paired,
    predicted_shares,
    rates,
    rates_by_class,
    share_of,
)
from tests.evaluation.attacked_rows import LABELS, drawn_rows, made_row


def wilson_by_hand(count, total, z=1.959963984540054):
    share = count / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return centre - half, centre + half


def binomial_two_sided(k, n):
    """The chance of an outcome no likelier than k of n fair coins."""
    chances = [math.comb(n, i) / 2**n for i in range(n + 1)]
    return sum(chance for chance in chances if chance <= chances[k] * (1 + 1e-9))


@pytest.mark.parametrize("seed", range(3))
def test_every_count_and_share_against_plain_loops(seed):
    rows = drawn_rows(97, seed)
    found = rates(rows)
    succeeded = failed = skipped = errors = few = small = queries = changed = 0
    for row in rows:
        if row.outcome == "error":
            errors += 1
        elif row.outcome == "skipped":
            skipped += 1
        else:
            queries += row.num_queries
            if row.outcome == "failed":
                failed += 1
            else:
                succeeded += 1
                changed += row.num_words_changed
                if row.num_words_changed <= 2:
                    few += 1
                if 5 * row.num_words_changed <= row.num_words:
                    small += 1
    attacked, known = succeeded + failed, len(rows) - errors
    assert (found["num_texts"], found["num_error"], found["num_skipped"]) == (97, errors, skipped)
    assert (found["num_succeeded"], found["num_failed"], found["num_attacked"]) == (succeeded, failed, attacked)
    assert found["success"]["any"]["value"] == succeeded / attacked
    assert found["success"]["words_2"]["value"] == few / attacked
    assert found["success"]["share_20"]["value"] == small / attacked
    assert found["accuracy"]["value"] == attacked / known and found["robust_accuracy"]["value"] == failed / known
    assert found["accuracy_drop"] == pytest.approx((attacked - failed) / known)
    assert found["queries"]["value"] == pytest.approx(queries / attacked)
    assert found["words_changed"]["value"] == pytest.approx(changed / succeeded)
    assert found["num_limited"]["queries"] == sum(row.note == "queries" for row in rows)
    low, high = wilson_by_hand(few, attacked)
    assert found["success"]["words_2"]["low"] == pytest.approx(low, abs=1e-12)
    assert found["success"]["words_2"]["high"] == pytest.approx(high, abs=1e-12)


def test_a_cap_admits_its_own_limit_and_no_more():
    by_name = {cap.name: cap for cap in CAPS}
    for words in range(1, 200):
        for changed in (words // 5, words // 5 + 1):
            row = made_row(0, "succeeded", num_words=words, num_words_changed=changed)
            assert by_name["share_20"].admits(row) == (5 * changed <= words)
    assert [by_name["words_2"].admits(made_row(0, "succeeded", num_words_changed=n)) for n in (1, 2, 3)] == [1, 1, 0]
    assert by_name["any"].admits(made_row(0, "succeeded", num_words_changed=10))
    # No words, one change: more than any share.
    assert not by_name["share_20"].admits(made_row(0, "succeeded", num_words=0, num_words_changed=1))


def test_classes_partition_the_rows_in_their_order():
    rows = drawn_rows(120)
    found = rates_by_class(rows, LABELS)
    assert list(found) == list(LABELS)
    whole = rates(rows)
    for name in ("num_texts", "num_succeeded", "num_failed", "num_skipped", "num_error"):
        assert sum(one[name] for one in found.values()) == whole[name]
    sports = [row for row in rows if row.label == "sports"]
    assert found["sports"]["success"]["any"]["count"] == sum(row.outcome == "succeeded" for row in sports)
    # A class without texts has no rate, one that no list names comes last.
    assert list(rates_by_class([made_row(0, "failed", "other")], ["empty"])) == ["other"]


def test_shares_of_predictions_are_of_texts_whose_prediction_is_known():
    rows = [
        made_row(0, "succeeded", "world"),
        made_row(1, "failed", "world"),
        made_row(2, "skipped", "science"),
        made_row(3, "error", "sports"),
    ]
    found = predicted_shares(rows, LABELS)
    assert {name: share["before"] for name, share in found.items()} == {
        "world": 1.0,
        "sports": 0.0,
        "business": 0.0,
        "science": 0.0,
    }
    assert found["world"]["after"] == pytest.approx(2 / 3) and found["sports"]["after"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("outcome", [None, "skipped", "error"])
def test_where_nothing_was_attacked_there_is_no_rate(outcome):
    found = rates([] if outcome is None else [made_row(row, outcome) for row in range(5)])
    assert found["success"]["any"] == {"value": None, "low": None, "high": None, "count": 0, "total": 0}
    assert found["queries"]["value"] is None and found["words_changed"]["value"] is None
    expected = 0.0 if outcome == "skipped" else None
    assert found["accuracy"]["value"] == expected and found["robust_accuracy"]["value"] == expected
    assert paired([], [])["difference"]["value"] is None and paired([], [])["p_value"] is None
    json.dumps(found, allow_nan=False)


def test_a_score_that_is_not_finite_leaves_no_mean():
    rows = [made_row(0, "failed"), made_row(1, "failed", score_adversarial=float("nan"))]
    found = rates(rows)
    assert found["score_adversarial"]["value"] is None and found["score"]["value"] == pytest.approx(0.8)
    assert mean_of([1.0, float("inf")])["value"] is None
    json.dumps(found, allow_nan=False)


def test_models_are_compared_on_the_texts_that_both_get_right():
    first, second = drawn_rows(150, seed=1), drawn_rows(150, seed=2)
    by_row = {row.row: row for row in second}
    for cap in CAPS:
        table = {(a, b): 0 for a in (True, False) for b in (True, False)}
        for a in first:
            b = by_row[a.row]
            if a.outcome in ("succeeded", "failed") and b.outcome in ("succeeded", "failed"):
                key = tuple(r.outcome == "succeeded" and cap.admits(r) for r in (a, b))
                table[key] += 1
        found = paired(first, second, cap)
        assert found["num_texts"] == sum(table.values())
        assert (found["num_both"], found["num_neither"]) == (table[True, True], table[False, False])
        assert (found["num_only_first"], found["num_only_second"]) == (table[True, False], table[False, True])
        expected = (table[True, False] - table[False, True]) / sum(table.values())
        assert found["difference"]["value"] == pytest.approx(expected)
        assert found["difference"]["low"] <= expected <= found["difference"]["high"]
        discordant = table[True, False] + table[False, True]
        assert found["p_value"] == pytest.approx(binomial_two_sided(table[True, False], discordant))


def test_mcnemar_and_shares_at_the_ends_by_hand():
    # 10 texts on which the models differ, 1 of them the other way: 2 * (1 + 10) / 1024.
    assert mcnemar(9, 1) == pytest.approx(22 / 1024) and mcnemar(1, 9) == pytest.approx(22 / 1024)
    assert mcnemar(0, 0) == 1.0 and mcnemar(3, 3) == 1.0
    assert share_of(0, 10)["low"] == 0.0 and share_of(0, 10)["high"] == pytest.approx(0.2775, abs=1e-4)
    assert share_of(10, 10)["high"] == 1.0 and share_of(10, 10)["low"] == pytest.approx(0.7225, abs=1e-4)


def test_the_order_of_the_rows_has_no_effect_and_other_texts_under_one_number_are_refused():
    first, second = drawn_rows(60, seed=1), drawn_rows(60, seed=2)
    assert paired(first, second) == paired(first, list(reversed(second)))
    first, second = [made_row(7, "failed", "world")], [made_row(7, "failed", "sports")]
    with pytest.raises(ValueError, match="row 7 is one text for one model"):
        paired(first, second)
