"""Transfer scores: equal to a script written apart, one set's fault is its own, nothing is computed twice."""

import json

import numpy as np
import pytest

from fastadv.errors import UserError
from fastadv.evaluation.vectors import transfer
from fastadv.evaluation.vectors.transfer import (
    TransferResult,
    choose_strength,
    transfer_record,
    transfer_results,
    transfer_scores,
    transfer_table,
)
from fastadv.evaluation.vectors.transfer_sets import TRANSFER_SETS, read_transfer_set
from tests.evaluation.made_up_sets import LETTERS, LetterEncoder, write_sets
from tests.evaluation.vectors import transfer_by_hand


@pytest.fixture
def fewer_folds(monkeypatch):
    """Three folds for ten, where the number has no say in what is tested."""
    monkeypatch.setattr(transfer, "NUM_FOLDS", 3)


@pytest.mark.parametrize("name", ["CR", "SST-2", "TREC", "MRPC"])
def test_scores_are_those_of_a_script_written_apart(name, tmp_path, monkeypatch):
    """On real vectors the two differ by rows near a boundary; with a sharp tolerance of both there are none here."""
    for module in (transfer, transfer_by_hand):
        monkeypatch.setattr(module, "TOLERANCE", 1e-8)
        monkeypatch.setattr(module, "NUM_FOLDS", 3)
    for seed in range(2 if name == "SST-2" else 1):
        folder = write_sets(tmp_path / str(seed), [name], num_rows=60, seed=seed)
        result = transfer_results(LetterEncoder(), folder, [name])[name]
        read = transfer_by_hand.read(folder, name)
        splits = {split: (transfer_by_hand.features(LetterEncoder(), texts), y) for split, (texts, y) in read.items()}
        accuracy, f1 = transfer_by_hand.score(splits)
        assert result.accuracy == pytest.approx(accuracy, abs=1e-9)
        assert 100 / 6 < result.accuracy < 99 and result.low < result.accuracy < result.high
        if name == "MRPC":
            assert result.f1 == pytest.approx(f1, abs=1e-9) and abs(f1 - accuracy) > 1
        else:
            assert result.f1 is None


def test_each_kind_of_set_is_read_in_its_place(tmp_path):
    write_sets(tmp_path, TRANSFER_SETS, num_rows=12)
    for name in TRANSFER_SETS:
        data = read_transfer_set(tmp_path, name)
        splits = {"SST-2": ["train", "dev", "test"], "MRPC": ["train", "test"], "TREC": ["train", "test"]}
        assert list(data.texts) == splits.get(name, ["train"])
        assert {len(row) for rows in data.texts.values() for row in rows} == {2 if name == "MRPC" else 1}
    # A folder that holds another set's files is not taken for its own.
    (tmp_path / "MR").rename(tmp_path / "CR-and-MR")
    (tmp_path / "CR").rename(tmp_path / "MR")
    with pytest.raises(UserError, match="rt-polarity.neg is not there"):
        read_transfer_set(tmp_path, "MR")


def test_features_of_a_pair_and_of_a_text(tmp_path):
    data = read_transfer_set(write_sets(tmp_path, ["MRPC", "CR"], num_rows=12), "MRPC")
    vectors = np.random.default_rng(0).normal(size=(len(data.distinct_texts), 3)).astype(np.float32)
    row_of = {text: row for row, text in enumerate(data.distinct_texts)}
    features, labels = data.with_vectors(vectors)["test"]
    for (first, second), feature in zip(data.texts["test"], features):
        u, v = vectors[row_of[first]].astype(np.float64), vectors[row_of[second]].astype(np.float64)
        np.testing.assert_array_equal(feature, [*abs(u - v), *(u * v)])
    assert features.dtype == np.float64 and labels.tolist() == data.labels["test"].tolist()
    data = read_transfer_set(tmp_path, "CR")
    vectors = np.random.default_rng(0).normal(size=(len(data.distinct_texts), 3)).astype(np.float32)
    np.testing.assert_array_equal(data.with_vectors(vectors)["train"][0], vectors)


def test_the_grids_are_sentevals():
    assert transfer.STRENGTHS == (0.25, 0.5, 1, 2, 4, 8)
    assert transfer.CROSS_VALIDATED_STRENGTHS == (0.5, 1, 2, 4, 8, 16, 32)
    assert (transfer.NUM_FOLDS, transfer.SEED) == (10, 1111)


class FixedScores:
    """Stands for the models of a path: their accuracies are given, whatever they are fitted on."""

    def __init__(self, *by_cut):
        self.by_cut, self.num_paths = by_cut, 0

    def path(self, x, y, strengths):
        scores = self.by_cut[self.num_paths]
        self.num_paths += 1
        for score in scores:
            yield type("Model", (), {"score": staticmethod(lambda x, y, score=score: score)})


@pytest.mark.parametrize(
    "by_cut, best",
    [
        ([[0.5, 0.7, 0.7, 0.6]], 2),  # of equals the smallest
        ([[0.5, 0.9, 0.1, 0.1], [0.5, 0.0, 0.2, 0.7]], 1),  # the mean over cuts, not the best of one
        ([[0.1, 0.2, 0.3, 0.4]], 8),
        ([[0.70002, 0.70004, 0.7, 0.69]], 1),  # equal to 0.01 of a per cent
    ],
)
def test_the_choice_of_c(by_cut, best):
    cut = (None,) * 4
    assert choose_strength([cut] * len(by_cut), (1, 2, 4, 8), FixedScores(*by_cut)) == best


def test_the_tested_fold_has_no_say_in_c(tmp_path, monkeypatch):
    """What chooses C sees each training fold's rows alone."""
    seen, choose = [], transfer.choose_strength

    def record(cuts, strengths, fitter):
        cuts = list(cuts)
        seen.append({row.tobytes() for cut in cuts for row in (*cut[0], *cut[2])})
        return choose(cuts[:1], strengths[:1], fitter)

    monkeypatch.setattr(transfer, "choose_strength", record)
    folder = write_sets(tmp_path, ["CR"], num_rows=30)
    transfer_results(LetterEncoder(), folder, ["CR"])
    rows = {row.tobytes() for row in read_transfer_set(folder, "CR").with_vectors(_all_vectors(folder))["train"][0]}
    assert len(seen) == 10 and all(part < rows for part in seen)
    assert sum(len(rows - part) for part in seen) == len(rows)


def _all_vectors(folder):
    return LetterEncoder().encode_texts(read_transfer_set(folder, "CR").distinct_texts)


def test_folds_are_those_of_the_seed(tmp_path, fewer_folds):
    folder = write_sets(tmp_path, ["MPQA"])
    scores = [transfer_results(LetterEncoder(), folder, ["MPQA"], seed)["MPQA"].accuracy for seed in (0, 0, 1, 2)]
    assert scores[0] == scores[1] and len(set(scores)) > 1


def test_every_text_is_encoded_once(tmp_path, fewer_folds):
    # An encoder that tells classes apart: else equal scores would say nothing.
    first, second = LetterEncoder().encode_texts(["aaa", "bbb"])
    assert first.tolist() != second.tolist() and len(first) == len(LETTERS)
    folder = write_sets(tmp_path, ["MRPC"])
    encoder = LetterEncoder()
    transfer_results(encoder, folder, ["MRPC"])
    assert sorted(encoder.asked) == sorted(set(encoder.asked))
    assert sorted(encoder.asked) == sorted(read_transfer_set(folder, "MRPC").distinct_texts)


def test_a_set_at_fault_is_named_and_the_rest_still_runs(tmp_path, fewer_folds):
    write_sets(tmp_path, ["MR", "CR", "MPQA", "SST-2", "TREC"], num_rows=15)
    (tmp_path / "CR" / "custrev.pos").unlink()
    (tmp_path / "MPQA" / "mpqa.pos").write_text("a\nb\nc\n")
    train = tmp_path / "SST" / "binary" / "sentiment-train"
    train.write_text(train.read_text().replace("\t0", "\t1"))
    (tmp_path / "TREC" / "TREC_10.label").write_text("WHO:ind who was it\n")
    results = transfer_results(LetterEncoder(), tmp_path)
    reasons = {name: result.why for name, result in results.items()}
    assert list(results) == list(TRANSFER_SETS)
    assert reasons["MR"] is None and results["MR"].accuracy > 40
    assert "custrev.pos is not there" in reasons["CR"]
    assert "SUBJ" in reasons["SUBJ"] and "subj.objective is not there" in reasons["SUBJ"]
    assert reasons["MPQA"] == "MPQA: class 'positive' has 3 rows in train, at least 5 are needed (3 folds)"
    assert reasons["SST-2"] == "SST-2: all 30 rows of train are 'positive'"
    assert "TREC_10.label:1, column label: the label 'WHO' is unknown" in reasons["TREC"]
    scores = transfer_scores(results)
    assert [name for name in scores if np.isfinite(scores[name])] == ["MR"]
    cells = dict(
        zip(*(line.split() for line in transfer_table({"MR": results["MR"], "CR": results["CR"]}).split("\n")))
    )
    assert cells == {"MR": f"{results['MR'].accuracy:.2f}", "CR": "n/a"}


@pytest.mark.parametrize("num_folds, needed", [(10, 12), (5, 7), (3, 5), (2, 4)])
def test_a_class_has_rows_for_the_folds_and_the_folds_within_them(num_folds, needed, tmp_path, monkeypatch):
    """With a row less, a training fold may be left with fewer rows of the class than it is cut into folds."""
    monkeypatch.setattr(transfer, "NUM_FOLDS", num_folds)
    folder = write_sets(tmp_path / "few", ["CR"], num_rows=needed + 4)
    why = transfer_results(LetterEncoder(), folder, ["CR"])["CR"].why
    assert f"has {needed - 1} rows in train, at least {needed} are needed" in why
    if num_folds < 10:
        folder = write_sets(tmp_path / "enough", ["CR"], num_rows=needed + 5)
        assert transfer_results(LetterEncoder(), folder, ["CR"])["CR"].why is None


class Constant(LetterEncoder):
    def encode_texts(self, texts, **options):
        return np.ones((len(texts), 3), dtype=np.float32)


class Broken(LetterEncoder):
    def encode_texts(self, texts, **options):
        vectors = super().encode_texts(texts)
        vectors[1, 0], vectors[3] = np.nan, np.inf
        return vectors


class Noise(LetterEncoder):
    def encode_texts(self, texts, **options):
        return np.random.default_rng(1).normal(size=(len(texts), 2)).astype(np.float32)


def test_vectors_without_an_answer(tmp_path, fewer_folds):
    folder = write_sets(tmp_path, ["SST-2", "MRPC"])
    for name in ("SST-2", "MRPC"):
        assert "every training row has the same vector" in transfer_results(Constant(), folder, [name])[name].why
    why = transfer_results(Broken(), folder, ["SST-2"])["SST-2"].why
    assert why == "SST-2: the encoder gave vectors with NaN or infinity for 2 of 240 texts"


def test_no_better_than_guessing_is_said(tmp_path, fewer_folds):
    folder = write_sets(tmp_path, ["CR"])
    (folder / "CR" / "custrev.neg").write_text("".join(f"{'a' * (1 + i % 7)} {i}\n" for i in range(200)))
    result = transfer_results(Noise(), folder, ["CR"])["CR"]
    assert result.majority == pytest.approx(100 * 200 / 235) and result.num_rows == 235
    assert len(result.warnings) == 1 and result.warnings[0].startswith("CR: ")
    assert not transfer_results(LetterEncoder(), write_sets(tmp_path / "2", ["CR"]), ["CR"])["CR"].warnings


def test_fits_that_do_not_converge_are_counted_and_named(tmp_path, monkeypatch, fewer_folds):
    monkeypatch.setattr(transfer, "MAX_ITERATIONS", 1)
    result = transfer_results(LetterEncoder(), write_sets(tmp_path, ["SST-2"]), ["SST-2"])["SST-2"]
    assert "SST-2: 7 of 7 fits did not converge within 1 iterations" in result.warnings[0]


def test_the_means_and_their_order():
    accuracies = dict(zip(TRANSFER_SETS, [80.0, 81, 82, 83, 84, 86, 95]))
    results = {name: TransferResult(accuracy=value) for name, value in accuracies.items()}
    results["MRPC"] = TransferResult(accuracy=86.0, f1=90.0)
    scores = transfer_scores(results)
    assert list(scores) == ["MR", "CR", "SUBJ", "MPQA", "SST-2", "MRPC", "mean", "TREC", "mean_with_TREC", "MRPC_F1"]
    assert scores["mean"] == pytest.approx(496 / 6) and scores["mean_with_TREC"] == pytest.approx(591 / 7)
    assert scores["TREC"] == 95 and scores["MRPC_F1"] == 90
    results["CR"] = TransferResult(why="it is not there")
    scores = transfer_scores(results)
    assert np.isnan(scores["mean"]) and np.isnan(scores["mean_with_TREC"]) and scores["TREC"] == 95
    assert transfer_table(results).split("\n")[1].split().count("n/a") == 3
    del results["CR"]
    assert "mean" not in transfer_scores(results)
    record = transfer_record(results, {"model": "m"})
    assert record["details"]["model"] == "m" and record["details"]["sets"]["TREC"]["accuracy"] == 95
    json.dumps(record)


@pytest.mark.parametrize(
    "sets, message",
    [
        (["CR", "SST2"], "'SST2' given, the sets are MR, CR, SUBJ, MPQA, SST-2, MRPC, TREC"),
        ([], "none given"),
        (["CR", "CR"], "given twice: CR, CR"),
        (None, "no folder"),
    ],
)
def test_mistakes(sets, message, tmp_path):
    with pytest.raises(UserError, match=message):
        transfer_results(LetterEncoder(), tmp_path / "nowhere" if sets is None else tmp_path, sets)
