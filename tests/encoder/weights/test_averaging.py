"""The average of two classifiers: each parameter, the ends exactly, and what cannot be averaged."""

import numpy as np
import pytest
import torch

from fastadv.cli.main import main
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.classifier.classification_head import draw_head
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.encoder.weights.averaging import average_classifiers
from fastadv.errors import UserError
from tests.conftest import write_tiny_bert

CLASSES = LabelMap(("world", "sports", "business", "science"))


@pytest.fixture
def save(tiny_encoder, tmp_path):
    """``save("a", seed=1, pooling="mean")``: the folder of a classifier with weights of its own."""

    def make(name, seed=0, classes=CLASSES, encoder=None, **options):
        encoder = encoder or tiny_encoder(dtype=torch.float32, **{"pooling": "mean", "max_length": 12, **options})
        torch.manual_seed(seed)
        classifier = Classifier(encoder, draw_head(encoder.hf.config, classes, encoder.pooling), classes)
        for parameter in classifier.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        return str(classifier.save_pretrained(tmp_path / name))

    return make


def state_of(folder):
    return {name: value.numpy() for name, value in Classifier.from_pretrained(str(folder)).state_dict().items()}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_every_parameter_is_averaged_and_the_ends_are_the_models(pooling, save, tmp_path, sentences):
    a, b = (save(name, seed, pooling=pooling) for seed, name in enumerate("ab"))
    folders = average_classifiers(a, b, [0.0, 0.3, 1.0], tmp_path / "out")
    assert [folder.name for folder in folders] == ["weight-0", "weight-0.3", "weight-1"]
    ones, others, mixed = state_of(a), state_of(b), state_of(folders[1])
    assert mixed.keys() == ones.keys() and {"head.out.weight", "head.out.bias"} <= mixed.keys()
    for name, value in mixed.items():
        expected = 0.3 * ones[name].astype(np.float64) + 0.7 * others[name].astype(np.float64)
        np.testing.assert_array_equal(value, expected.astype(np.float32))
        assert not np.array_equal(value, ones[name])
    for folder, end in ((folders[0], b), (folders[2], a)):
        logits = [Classifier.from_pretrained(str(model)).classify_texts(sentences) for model in (folder, end)]
        np.testing.assert_array_equal(*logits)
    card = (folders[1] / "README.md").read_text()
    assert f"0.3 of `{a}` and 0.7 of `{b}`" in card


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dict(classes=LabelMap(CLASSES.names[::-1])), "they differ in classes$"),
        (dict(classes=LabelMap(("a", "b"))), "they differ in classes$"),
        (dict(pooling="cls"), "they differ in pooling$"),
        (dict(max_length=9), "they differ in max_length$"),
    ],
    ids=str,
)
def test_what_does_not_lie_on_one_another_is_refused(other, message, save, tmp_path):
    with pytest.raises(UserError, match=message):
        average_classifiers(save("a"), save("b", **other), [0.5], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_architectures_are_refused(save, tmp_path, family_encoder):
    from fastadv.encoder import Encoder

    wide = Encoder.from_pretrained(str(write_tiny_bert(tmp_path / "wide", hidden_size=40)), "mean", 12)
    roberta = family_encoder("Roberta", dtype=torch.float32, pooling="mean", max_length=12)
    ours = save("a")
    for name, encoder, message in (
        ("wide", wide, "they differ in hidden_size, intermediate_size$"),
        ("roberta", roberta, "they differ in model_type$"),
    ):
        other = save(f"{name}-classifier", encoder=encoder)
        with pytest.raises(UserError, match=message) as error:
            average_classifiers(ours, other, [0.5], tmp_path / "out")
        assert "\n" not in str(error.value)


def test_the_command_says_where_and_a_dry_run_writes_nothing(save, tmp_path, capsys):
    given = ["average", "--model", save("a"), "--model", save("b", 1), "--weight", "0.25", "1", "--out"]
    given.append(str(tmp_path / "out"))
    assert main([*given, "--dry_run"]) == 0
    assert "weight-0.25" in capsys.readouterr().out and not (tmp_path / "out").exists()
    assert main(given) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "out" / name) for name in ("weight-0.25", "weight-1")]
    # Again in their place.
    assert main(given) == 0


@pytest.mark.parametrize(
    ("models", "weights", "message"),
    [
        (1, ["0.5"], "--model is given 1 times, expected twice"),
        (3, ["0.5"], "--model is given 3 times, expected twice"),
        (2, ["1.5"], "weight 1.5 given, expected a number from 0"),
        (2, ["nan"], "weight nan given"),
        (2, ["0.5", "0.50"], "weight 0.5 is given twice"),
        (2, ["half"], "--weight: invalid float value: 'half'"),
    ],
)
def test_mistakes_are_one_line(models, weights, message, save, tmp_path, capsys):
    folders = [save(name, seed) for seed, name in enumerate("abc"[:models])]
    given = [part for folder in folders for part in ("--model", folder)]
    assert main(["average", *given, "--weight", *weights, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert message in said.err and len(said.err.splitlines()) == 1 and not said.out


def test_a_plain_encoder_is_no_classifier(save, tiny_bert_dir, tmp_path):
    with pytest.raises(UserError, match="they differ in classes, pooling$"):
        average_classifiers(save("a"), str(tiny_bert_dir), [0.5], tmp_path / "out")
    with pytest.raises(UserError, match="is no trained classifier"):
        average_classifiers(str(tiny_bert_dir), str(tiny_bert_dir), [0.5], tmp_path / "out")


def test_dropout_says_nothing_of_what_the_parameters_are(save, tmp_path):
    a, b = save("a", dropout=0.0), save("b", dropout=0.3)
    assert len(average_classifiers(a, b, [0.5], tmp_path / "out")) == 1
