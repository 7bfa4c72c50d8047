"""TaiChi's table 7 against plain loops over the classifier's own vectors and logits."""

import csv
import json
import math

import numpy as np
import pytest

from fastadv.cli.main import main
from fastadv.errors import UserError
from fastadv.evaluation.papers.pair_distances import (
    AttackedPairs,
    contrast,
    distances,
    fixed_negatives,
    measure_pairs,
    pair_table,
)
from fastadv.evaluation.text.rows import write_rows
from fastadv.evaluation.vectors.classifier_vectors import Classified, classified
from tests.evaluation.attacked import CLASSES, TEXTS, make_classifier
from tests.evaluation.attacked_rows import made_row


def attacked_rows(is_pair=False):
    rows = []
    for number, text in enumerate(TEXTS):
        outcome = ("succeeded", "succeeded", "failed", "skipped", "error")[number % 5]
        values = {"first": text, "label": CLASSES[number % 4], "first_adversarial": f"{text} and the plot"}
        if is_pair:
            values.update(second=f"{text} scene", second_adversarial="a story of love")
        rows.append(made_row(number, outcome, **{**values, "label": CLASSES[number % 4]}))
    return rows


def loops(vectors, other, logits, other_logits, negatives):
    """All five quantities, a pair after the other."""
    num_pairs, size = len(vectors), len(vectors[0])

    def soft(row):
        total = sum(math.exp(x) for x in row)
        return [math.exp(x) / total for x in row]

    def mse(a, b):
        return sum((x - y) ** 2 for x, y in zip(a, b)) / size

    def kl(a, b):
        return sum(p * math.log(p / q) for p, q in zip(soft(a), soft(b)))

    def cos(a, b):
        return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))

    found = {name: [] for name in ("mse_positive", "mse_negative", "kl_positive", "kl_negative", "ctr")}
    for i in range(num_pairs):
        found["mse_positive"].append(mse(vectors[i], other[i]))
        found["kl_positive"].append(kl(logits[i], other_logits[i]))
        found["mse_negative"].append(mse(vectors[i], vectors[negatives[i]]))
        found["kl_negative"].append(kl(logits[i], logits[negatives[i]]))
        others = sum(math.exp(cos(vectors[i], other[j])) for j in range(num_pairs) if j != i)
        found["ctr"].append(-math.log(math.exp(cos(vectors[i], other[i])) / others))
    return found


def test_every_quantity_against_plain_loops():
    rng = np.random.default_rng(0)
    clean, adversarial = (Classified(rng.normal(size=(9, 5)), rng.normal(size=(9, 4))) for _ in range(2))
    labels = [CLASSES[i % 4] for i in range(9)]
    negatives = fixed_negatives(labels)
    expected = loops(*(a.tolist() for a in (clean[0], adversarial[0], clean[1], adversarial[1])), negatives.tolist())
    found = distances(clean, adversarial, negatives)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-12)
    # Texts that no attack has changed are at no distance.
    found = distances(clean, clean, None)
    assert not found["mse_positive"].any() and np.abs(found["kl_positive"]).max() < 1e-12
    assert set(found) == {"mse_positive", "kl_positive", "ctr"}
    # Large logits leave finite divergences.
    large = np.array([[900.0, 0.0, 0.0, -900.0], [0.0, 1.0, 2.0, 3.0]])
    clean, adversarial = (Classified(np.ones((2, 3)), large * [[sign], [1]]) for sign in (1, -1))
    found = distances(clean, adversarial, None)["kl_positive"]
    assert found[0] == pytest.approx(1800) and found[1] == 0


def test_every_text_has_one_fixed_negative_of_another_class():
    labels = ["pos", "neg", "pos", "neg", "pos"]
    # One negative text for all positive ones, one positive for all negative ones.
    assert fixed_negatives(labels).tolist() == [1, 0, 1, 0, 1]
    labels = ["b", "a", "d", "c", "b", "a"]
    found = fixed_negatives(labels).tolist()
    assert found == [3, 0, 1, 2, 3, 0]
    assert fixed_negatives(["a", "a"]) is None and fixed_negatives([]) is None


def test_the_contrast_does_not_see_lengths_and_one_pair_has_none():
    rng = np.random.default_rng(2)
    query, key = rng.normal(size=(7, 5)), rng.normal(size=(7, 5))
    np.testing.assert_allclose(contrast(query * 3, key * 0.1), contrast(query, key))
    assert contrast(query[:1], key[:1]).tolist() == [0.0]
    # All vectors alike: the positive against six others that are as near.
    np.testing.assert_allclose(contrast(np.ones((7, 5)), np.ones((7, 5))), math.log(6))
    assert np.isfinite(contrast(np.zeros((3, 5)), np.zeros((3, 5)))).all()


@pytest.mark.parametrize("is_pair", [False, True])
def test_classified_is_what_the_classifier_says(classifier, is_pair):
    second = [f"{text} scene" for text in TEXTS] if is_pair else None
    found = classified(classifier, TEXTS, second, batch_size=5)
    np.testing.assert_allclose(found.logits, classifier.classify_texts(TEXTS, second), rtol=1e-5, atol=1e-6)
    if not is_pair:
        np.testing.assert_allclose(found.vectors, classifier.encoder.encode_texts(TEXTS), rtol=1e-5, atol=1e-6)
    assert np.exp(found.log_probabilities).sum(axis=1) == pytest.approx(np.ones(len(TEXTS)))


def test_only_successes_are_pairs_and_no_more_than_asked_for():
    pairs = AttackedPairs.of_rows(attacked_rows())
    kept = [row for row in attacked_rows() if row.outcome == "succeeded"]
    assert pairs.first == [row.first for row in kept] and pairs.second is None and len(kept) == 6
    assert AttackedPairs.of_rows(attacked_rows(), 2).labels == [row.label for row in kept[:2]]
    assert AttackedPairs.of_rows(attacked_rows(is_pair=True)).second_adversarial == ["a story of love"] * 6


def test_the_record_holds_means_of_the_models_own_distances(classifier):
    pairs = AttackedPairs.of_rows(attacked_rows())
    record = measure_pairs({"a": lambda: classifier}, pairs)
    clean, adversarial = (classified(classifier, texts) for texts in (pairs.first, pairs.first_adversarial))
    expected = distances(clean, adversarial, fixed_negatives(pairs.labels))
    for name, values in expected.items():
        assert record["models"][0][name]["value"] == pytest.approx(values.mean())
    said = [CLASSES[i] for i in adversarial.logits.argmax(axis=1)]
    right = sum(a == b for a, b in zip(said, pairs.labels)) / len(said)
    assert record["models"][0]["accuracy_adversarial"] == pytest.approx(right)
    json.dumps(record, allow_nan=False)
    assert "MSE, positive pairs ↓" in pair_table(record)
    # One class has no negative pairs.
    pairs = AttackedPairs.of_rows([made_row(i, "succeeded", "good", first=TEXTS[i]) for i in range(3)])
    record = measure_pairs({"a": lambda: classifier}, pairs)
    assert record["models"][0]["kl_negative"] is None and "n/a" in pair_table(record)


def test_what_is_refused(classifier, tmp_path):
    pairs = AttackedPairs.of_rows([made_row(0, "succeeded", "awful"), made_row(1, "succeeded", "good")])
    with pytest.raises(
        UserError,
        match="the label 'awful' of the data is no class of the model; its classes are 'bad', 'fair', 'good', 'great'",
    ):
        measure_pairs({"a": lambda: classifier}, pairs)
    write_rows(tmp_path / "rows.csv", [made_row(0, "failed")])
    with pytest.raises(UserError, match="no attack succeeded"):
        AttackedPairs.read(tmp_path / "rows.csv")


def test_the_command_measures_two_models_of_pairs(classifier, tmp_path, capsys):
    write_rows(tmp_path / "rows.csv", attacked_rows(is_pair=True))
    for name, seed in (("one", 0), ("two", 1)):
        other = make_classifier(classifier.encoder.hf.config._name_or_path, seed=seed)
        other.save_pretrained(tmp_path / name)
    arguments = ["evaluate", "pair-distances", "--rows", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out")]
    arguments += ["--model", str(tmp_path / "one"), "--model", str(tmp_path / "two")]
    assert main([*arguments, "--dry_run"]) == 0 and not (tmp_path / "out").exists()
    assert "would measure one, two on 6 pairs" in capsys.readouterr().out
    assert main(arguments) == 0
    with (tmp_path / "out" / "pair-distances.csv").open() as file:
        lines = list(csv.DictReader(file))
    record = json.loads((tmp_path / "out" / "pair-distances.json").read_text())
    assert [(line["model"], line["quantity"]) for line in lines[4:6]] == [("one", "ctr"), ("two", "mse_positive")]
    assert float(lines[5]["value"]) == pytest.approx(record["models"][1]["mse_positive"]["value"], rel=1e-5)
    assert main([*arguments, "--model", str(tmp_path / "one")]) == 2
    assert "given twice" in capsys.readouterr().err
