"""Classifiers as the Hub has them: numbered, in capitals, of an old release; attacked as one with names of its own."""

import json
import shutil
from dataclasses import replace

import pytest

from fastadv.data.labelled.find import read_labelled
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.text.rows import read_rows
from tests.evaluation.attacked import CLASSES, run, write_table


@pytest.fixture(scope="module")
def folder(attacked_folder):
    return attacked_folder


def renamed(folder, path, id2label, **changes):
    """The classifier a, its classes called otherwise."""
    shutil.copytree(folder / "a/model", path)
    config = json.loads((path / "config.json").read_text())
    config.pop("label2id")
    config.update({"id2label": id2label, **changes})
    config = {name: value for name, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    return path


def numbered(folder, path):
    return renamed(folder, path, {str(i): f"LABEL_{i}" for i in range(len(CLASSES))})


def by_number(folder, path):
    """mistaken.csv with numbers for classes."""
    data = read_labelled(folder / "mistaken.csv")
    data = replace(data, label_map=type(data.label_map)(tuple(str(CLASSES.index(n)) for n in data.label_map.names)))
    return write_table(path, data)


def attacked(folder, out, model, capsys, *more, data="mistaken.csv"):
    given = ["attack", "--model", model, "--data", folder / data, "--out", out, "--recipe", "synonym"]
    printed = run([*given, "--word_sets", folder / "sets.json", *more], capsys)
    rows = read_rows(out / "rows.csv")
    return [replace(row, seconds=0.0) for row in rows], printed


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    """The rows of the model under its own names."""
    out = tmp_path_factory.mktemp("own")

    class Nobody:
        def readouterr(self):
            return None

    return attacked(folder, out, folder / "a/model", Nobody())[0]


def test_numbered_classes_go_by_number(folder, expected, tmp_path, capsys):
    numbers = by_number(folder, tmp_path / "numbers.csv")
    model = numbered(folder, tmp_path / "model")
    rows, printed = attacked(folder, tmp_path / "out", model, capsys, data=numbers)
    assert f"{model}: classes matched by number: LABEL_0 = 0, LABEL_1 = 1, LABEL_2 = 2, LABEL_3 = 3" in printed.out
    assert [(row.outcome, row.first_adversarial) for row in rows] == [
        (row.outcome, row.first_adversarial) for row in expected
    ]
    assert [CLASSES[int(row.predicted_adversarial)] for row in rows] == [row.predicted_adversarial for row in expected]


def test_names_in_an_order_nobody_stated_are_given(folder, expected, tmp_path, capsys):
    model = numbered(folder, tmp_path / "model")
    given = ["attack", "--model", model, "--data", folder / "mistaken.csv", "--out", tmp_path / "out"]
    said = run([*given, "--method", "fgsm"], capsys, status=2).err
    assert f"{model} on {folder / 'mistaken.csv'}: the label" in said and "--label_names" in said
    assert "its classes are 'LABEL_0', 'LABEL_1', 'LABEL_2', 'LABEL_3'" in said and said.count("\n") == 1
    rows, _ = attacked(folder, tmp_path / "out", model, capsys, "--label_names", *CLASSES)
    assert rows == expected
    wrong = run([*given, "--method", "fgsm", "--label_names", "bad", "good"], capsys, status=2).err
    assert "2 names of classes, 'bad', 'good': the model has 4" in wrong


def test_capitals_are_the_same_names(folder, expected, tmp_path, capsys):
    model = renamed(folder, tmp_path / "model", {str(i): name.upper() for i, name in enumerate(CLASSES)})
    rows, printed = attacked(folder, tmp_path / "out", model, capsys)
    assert rows == expected and "classes matched by case: BAD = bad" in printed.out
    # Beside one that has the data's own names it has a control, whose classes must be the same.
    given = ["attack", "--model", folder / "a/model", "--model", model, "--data", folder / "mistaken.csv"]
    run([*given, "--out", tmp_path / "both", "--method", "fgsm", "--epsilons", "0.1", "--no_checks"], capsys)
    models = json.loads((tmp_path / "both/attack.json").read_text())["models"]
    assert models[0]["labels"] == models[1]["labels"] == list(CLASSES)
    assert models[0]["epsilons"][0]["accuracy"] == models[1]["epsilons"][0]["accuracy"]


def test_a_model_of_an_old_release(folder, expected, tmp_path, capsys):
    """As textattack/bert-base-uncased-* lie on the Hub: an old configuration, vocab.txt, no tokenizer.json."""
    old = {"_num_labels": 4, "finetuning_task": "imdb", "transformers_version": None, "problem_type": None}
    labels = {str(i): f"LABEL_{i}" for i in range(len(CLASSES))}
    model = renamed(folder, tmp_path / "model", labels, **old)
    tokenizer = Classifier.from_pretrained(str(model)).encoder.tokenizer
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    (model / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))
    for name in ("tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json"):
        (model / name).unlink(missing_ok=True)
    limits = [
        "--label_names",
        *CLASSES,
        "--max_length",
        str(Classifier.from_pretrained(str(folder / "a/model")).encoder.max_length),
    ]
    assert attacked(folder, tmp_path / "out", model, capsys, *limits)[0] == expected


@pytest.mark.parametrize(
    "id2label, message",
    [
        ({str(i + 1): name for i, name in enumerate(CLASSES)}, "numbers its classes 1, 2, 3, 4 (id2label)"),
        (dict(zip("0123", ("a", "b", "a", "c"))), "has two classes called 'a'"),
        ({"0": "a", "1": "b"}, "its configuration has 2 classes (num_labels, id2label), and the head in its weights"),
    ],
)
def test_classes_that_are_not_right_are_one_line(folder, tmp_path, capsys, id2label, message):
    model = renamed(folder, tmp_path / "model", id2label)
    with pytest.raises(UserError) as caught:
        Classifier.from_pretrained(str(model))
    assert message in str(caught.value) and str(model) in str(caught.value) and "\n" not in str(caught.value)
    if len(id2label) == len(CLASSES):
        classifier = Classifier.from_pretrained(str(model), label_names=CLASSES)
        assert classifier.label_map.names == CLASSES


def test_fewer_right_than_chance_gives_are_a_warning(folder, tmp_path, capsys, caplog):
    model = numbered(folder, tmp_path / "model")
    order = [CLASSES[(i + 1) % 4] for i in range(4)]
    attacked(folder, tmp_path / "own", folder / "a/model", capsys)
    assert "classified as labelled" not in caplog.text
    attacked(folder, tmp_path / "out", model, capsys, "--label_names", *order)
    assert f"{model}: 2 of 12 of the texts are classified as labelled, fewer than by chance" in caplog.text


def test_no_text_has_no_logits(folder):
    classifier = Classifier.from_pretrained(str(folder / "a/model"))
    assert classifier.classify_texts([]).shape == classifier.classify_texts([], []).shape == (0, 4)
    with pytest.raises(TypeError, match="a list of texts is expected, got one text"):
        classifier.classify_texts("hello world")
    with pytest.raises(TypeError, match="a list of texts is expected, got one text"):
        classifier.classify_texts(["a"], "b")
    with pytest.raises(ValueError, match="1 first texts and 2 second ones"):
        classifier.classify_texts(["a"], ["b", "c"])
