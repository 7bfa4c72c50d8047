"""Numbers of an evaluation: resamples of ranks and means against loops, systems of several seeds, paired tests."""

import zlib

import numpy as np
import pytest
from scipy.stats import binomtest, spearmanr, ttest_1samp
from sklearn.metrics import f1_score

from fastadv.evaluation.intervals import resample_counts
from fastadv.evaluation.suite.numbers import (
    Measured,
    all_numbers,
    bootstrap_p_value,
    f1_draws,
    holm,
    mean_draws,
    spearman_draws,
    spearman_measured,
)
from fastadv.evaluation.suite.rows import of_measurement
from fastadv.evaluation.suite.schema import Quantity, System

ACCURACY = Quantity("transfer", "SST-2", "accuracy")
ONE, TWO = System("one", ("a",)), System("two", ("b",))


def outcomes(num_rows, share, seed):
    return 100.0 * (np.random.default_rng(seed).random(num_rows) < share)


def binary(model, rows, quantity=ACCURACY):
    return Measured(quantity, model, float(np.nanmean(rows)), num=len(rows), rows=rows, is_binary=True)


def row_of(found, **wanted):
    rows = [row for row in found if all(row[name] == value for name, value in wanted.items())]
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("num_rows", [2, 7, 31])
def test_ranks_are_taken_anew_in_every_resample(num_rows):
    draw = np.random.default_rng(num_rows)
    # Ties on both sides.
    ranked = np.stack([draw.integers(0, 5, num_rows), draw.integers(0, 4, num_rows)]).astype(float)
    other = np.stack([draw.normal(size=num_rows), ranked[1]])
    found = spearman_draws(np.stack([ranked, other]), [3, 4], 150)
    counts = resample_counts(num_rows, 150, [3, 4]).astype(int)
    for number, (x, y) in enumerate((ranked, other)):
        for drawn, of_row in zip(found[number], counts):
            a, b = np.repeat(x, of_row), np.repeat(y, of_row)
            is_constant = np.ptp(a) == 0 or np.ptp(b) == 0
            assert drawn == pytest.approx(0.0 if is_constant else 100 * spearmanr(a, b).statistic, abs=1e-9)


def test_rows_that_do_not_count_leave_the_mean_of_the_others():
    rows = outcomes(40, 0.6, 0)
    rows[[3, 17, 30]] = np.nan
    found = mean_draws(rows[None], [1, 2], 150)[0]
    for drawn, counts in zip(found, resample_counts(40, 150, [1, 2]).astype(int)):
        assert drawn == pytest.approx(np.nanmean(np.repeat(rows, counts)), abs=1e-9)


def test_two_models_are_compared_by_mcnemar():
    a, b = outcomes(200, 0.5, 0), outcomes(200, 0.65, 1)
    found = all_numbers([ONE, TWO], [binary("a", a), binary("b", b)])
    (difference,) = found.differences
    only_a, only_b = int((a > b).sum()), int((b > a).sum())
    assert difference["test"] == "McNemar, exact" and difference["num"] == 200
    assert difference["p_value"] == binomtest(only_a, only_a + only_b, 0.5).pvalue == difference["p_holm"]
    assert difference["value"] == pytest.approx(b.mean() - a.mean(), abs=1e-9)
    # The normal interval of the mean of paired differences.
    half_width = 1.96 * (b - a).std() / np.sqrt(200)
    assert difference["low"] == pytest.approx(difference["value"] - half_width, abs=1.5)
    assert difference["high"] == pytest.approx(difference["value"] + half_width, abs=1.5)


def test_seeds_are_averaged_text_by_text():
    systems = [System("one", ("a", "b")), System("two", ("c", "d", "e"))]
    rows = {model: outcomes(150, 0.4 + 0.1 * number, number) for number, model in enumerate("abcde")}
    found = all_numbers(systems, [binary(model, of_model) for model, of_model in rows.items()])
    mean = row_of(found.numbers, system="two", model=None)
    of_seeds = [rows[model].mean() for model in "cde"]
    assert mean["value"] == pytest.approx(np.mean(of_seeds)) and mean["num"] == 150
    assert mean["spread"] == pytest.approx(np.std(of_seeds, ddof=1))
    averaged = {n: np.mean([rows[m] for m in models], axis=0) for n, models in systems}
    drawn = mean_draws(np.stack(list(averaged.values())), [0, zlib.crc32(b"transfer/SST-2")])
    assert (mean["low"], mean["high"]) == pytest.approx(tuple(np.quantile(drawn[1], [0.025, 0.975])))
    (difference,) = found.differences
    change = drawn[1] - drawn[0]
    assert (difference["low"], difference["high"]) == pytest.approx(tuple(np.quantile(change, [0.025, 0.975])))
    assert difference["test"] == "paired bootstrap" and difference["p_value"] == bootstrap_p_value(change)
    assert row_of(found.numbers, model="d")["spread"] is None


def test_equal_models_do_not_differ():
    rows = outcomes(50, 0.5, 0)
    systems = [System("one", ("a", "b")), System("two", ("c",))]
    found = all_numbers(systems, [binary(model, rows) for model in "abc"])
    (difference,) = found.differences
    assert (difference["value"], difference["low"], difference["high"], difference["p_value"]) == (0, 0, 0, 1)


def test_models_are_compared_on_the_rows_that_both_have():
    a, b = outcomes(100, 0.5, 0), outcomes(100, 0.5, 1)
    a[:30], b[20:50] = np.nan, np.nan
    found = all_numbers([ONE, TWO], [binary("a", a), binary("b", b)])
    (difference,) = found.differences
    assert difference["num"] == 50
    assert difference["value"] == pytest.approx(b[50:].mean() - a[50:].mean())
    assert difference["low"] <= difference["value"] <= difference["high"]
    b[50:] = np.nan
    b[:20] = 100.0
    assert all_numbers([ONE, TWO], [binary("a", a), binary("b", b)]).differences == []


def test_correlations_are_compared_on_the_pairs_that_both_have():
    draw = np.random.default_rng(0)
    human = draw.uniform(0, 5, 200)
    scores = human + draw.normal(0, 1.5, 200)
    quantity = Quantity("adv-sts", "STS-B test", "spearman")
    a, b = scores.copy(), scores.copy()
    a[0], b[-3:] = np.nan, np.nan
    measured = [spearman_measured(quantity, model, of_model, human) for model, of_model in (("a", a), ("b", b))]
    assert measured[0].value == pytest.approx(100 * spearmanr(scores[1:], human[1:]).statistic)
    assert measured[0].num == 199 and measured[0].ranked.shape == (2, 200)
    found = all_numbers([ONE, TWO], measured)
    (difference,) = found.differences
    # Equal scores, other errors.
    assert [difference[name] for name in ("value", "low", "high", "p_value", "num")] == [0, 0, 0, 1, 196]
    assert all(row["low"] <= row["value"] <= row["high"] for row in found.numbers)
    b[:-3] += draw.normal(0, 1.0, 197)
    found = all_numbers([ONE, TWO], [measured[0], spearman_measured(quantity, "b", b, human)])
    wanted = [100 * spearmanr(of_model[1:-3], human[1:-3]).statistic for of_model in (a, b)]
    assert found.differences[0]["value"] == pytest.approx(wanted[1] - wanted[0])
    a[4:], b[4:] = np.nan, 1.0
    constant = [spearman_measured(quantity, model, of_model, human) for model, of_model in (("a", a), ("b", b))]
    b[:4] = 1.0
    assert constant[0].num == 3
    assert all_numbers([ONE, TWO], [constant[0], spearman_measured(quantity, "b", b, human)]).differences == []


def test_resampled_ranks_leave_out_pairs_that_do_not_count():
    draw = np.random.default_rng(1)
    ranked = np.stack([draw.integers(0, 5, 30), draw.integers(0, 4, 30)]).astype(float)
    ranked[0, [2, 11, 29]] = np.nan
    known = np.isfinite(ranked[0])
    counts = resample_counts(30, 150, [3, 4]).astype(int)
    for drawn, of_row in zip(spearman_draws(ranked[None], [3, 4], 150)[0], counts):
        x, y = (np.repeat(side[known], of_row[known]) for side in ranked)
        assert drawn == pytest.approx(100 * spearmanr(x, y).statistic, abs=1e-9)


def test_f1_is_resampled_by_its_rows():
    draw = np.random.default_rng(0)
    labels, guessed = draw.random(60) < 0.7, draw.random(60) < 0.6
    drawn = f1_draws(labels == guessed, labels, [1, 2], 150)
    for value, counts in zip(drawn, resample_counts(60, 150, [1, 2]).astype(int)):
        of_row = (np.repeat(side, counts) for side in (labels, guessed))
        assert value == pytest.approx(100 * f1_score(*of_row))


def test_a_share_of_all_rows_has_an_interval():
    (retrieval,) = of_measurement("embeddings", "held out", "a", {"retrieval@0.1": np.ones(256)})
    (row, mean) = all_numbers([ONE], [retrieval]).numbers
    interval = binomtest(256, 256).proportion_ci(0.95, method="wilson")
    assert row["value"] == 100 and row["low"] == mean["low"] == pytest.approx(100 * interval.low) and row["low"] < 99


def test_a_mean_is_not_of_fewer_seeds():
    system = System("one", ("a", "b"))
    missing = Measured(ACCURACY, "b", None, why="no such file")
    found = all_numbers([system], [binary("a", outcomes(20, 0.5, 0)), missing])
    mean = row_of(found.numbers, model=None)
    assert mean["value"] is None and mean["why"] == "1 of 2 models have no value: no such file"
    assert row_of(found.numbers, model="a")["value"] is not None
    found = all_numbers([system], [binary("a", outcomes(20, 0.5, 0))], whys={("transfer", "b"): "broken"})
    assert row_of(found.numbers, model="b")["why"] == "broken"


def test_a_mean_of_sets_is_resampled_set_by_set():
    draw = np.random.default_rng(0)
    sets = [Quantity("sts", name, "spearman") for name in ("STS12", "STS-B")]
    measured = []
    for model, noise in (("a", 1.0), ("b", 0.3)):
        of_model = []
        for quantity in sets:
            human = draw.integers(0, 6, 80).astype(float)
            of_model.append(spearman_measured(quantity, model, human + noise * draw.normal(size=80), human))
        mean = np.mean([one.value for one in of_model])
        measured += [*of_model, Measured(sets[0]._replace(set="mean"), model, mean, num=160, over=("STS12", "STS-B"))]
    found = all_numbers([ONE, TWO], measured)
    widths = {row["set"]: row["high"] - row["low"] for row in found.numbers if row["model"] == "a"}
    # Two independent sets of one width: the mean's is narrower by the root of two.
    assert 0.6 < widths["mean"] / np.mean([widths["STS12"], widths["STS-B"]]) < 0.85
    assert [row["set"] for row in found.differences] == ["STS12", "STS-B", "mean"]
    assert all(row["low"] <= row["value"] <= row["high"] for row in found.differences)


@pytest.mark.parametrize(
    "scores,human,why",
    [([0.5] * 4, [1, 2, 3, 4], "same score"), ([1, 2, 3, 4], [2.0] * 4, "human"), ([1.0], [1.0], "single")],
)
def test_a_correlation_that_is_not_defined_says_why(scores, human, why):
    found = spearman_measured(ACCURACY, "a", scores, human)
    assert found.value is None and why in found.why


def test_holm():
    # Worked by hand: 4·0.01, 3·0.02, then 2·0.03 = 0.06 and 0.04, which may not fall below the one before.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_the_bootstrap_p_value_is_that_of_a_t_test():
    draw = np.random.default_rng(0)
    for trial in range(20):
        change = draw.normal(size=200) + 0.01 * trial
        found = bootstrap_p_value(mean_draws(change[None], [trial, 0])[0])
        assert found == pytest.approx(ttest_1samp(change, 0).pvalue, abs=0.06)
