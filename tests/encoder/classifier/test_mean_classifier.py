"""A classifier of mean vectors: any model type, exported with its head in a file of its own, opened again exactly."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification

from fastadv.config.embedding_attack import AttackSettings
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import (
    HEAD_FILE,
    ClassificationHead,
    LinearHead,
    draw_head,
    load_head,
)
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.encoder.weights.source import find_model
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import attack_classifier

CLASSES = LabelMap(("world", "sports", "business", "science"))


def make_classifier(encoder, classes=CLASSES):
    torch.manual_seed(3)
    head = draw_head(encoder.hf.config, classes, "mean").to(encoder.dtype)
    for parameter in head.parameters():
        parameter.data += torch.randn_like(parameter)
    return Classifier(encoder, head, classes).eval()


@pytest.fixture
def export(tiny_encoder, tmp_path):
    """A classifier in float32, and its folder."""
    classifier = make_classifier(tiny_encoder(dtype=torch.float32, pooling="mean", max_length=12))
    return classifier, classifier.save_pretrained(tmp_path / "export")


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Albert", "DistilBert", "DebertaV2", "ModernBert"])
def test_the_export_opens_exactly(family, family_encoder, sentences, tmp_path):
    """Also of model types that have no head on the first token."""
    classifier = make_classifier(family_encoder(family, dtype=torch.float32, max_length=12, pooling="mean"))
    folder = str(classifier.save_pretrained(tmp_path / "export"))
    logits = classifier.classify_texts(sentences, batch_size=3)
    again = Classifier.from_pretrained(folder)
    assert again.label_map == CLASSES and again.encoder.max_length == 12 and again.encoder.pooling == "mean"
    np.testing.assert_array_equal(again.classify_texts(sentences, batch_size=3), logits)
    vectors = classifier.encoder.encode_texts(sentences)
    np.testing.assert_array_equal(Encoder.from_pretrained(folder).encode_texts(sentences), vectors)
    if family in ("Bert", "DebertaV2"):
        theirs = SentenceTransformer(folder, device="cpu").encode(sentences)
        np.testing.assert_allclose(theirs, vectors, rtol=0, atol=1e-5 * np.abs(vectors).max())


def test_logits_are_a_linear_map_of_the_mean_state(export, sentences):
    classifier, folder = export
    state = load_file(folder / HEAD_FILE)
    batch = classifier.encoder.pack(sentences)
    states = classifier.encoder.token_states(classifier.encoder.embed(batch, dropout=False), batch, dropout=False)
    means = torch.stack([part.mean(0) for part in states.split(batch.lengths.tolist())])
    expected = means @ state["out.weight"].T + state["out.bias"]
    torch.testing.assert_close(classifier.classify_batch(batch), expected.detach())


def test_the_files_hold_classes_and_pooling_where_readers_look(export):
    classifier, folder = export
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {str(i): name for i, name in enumerate(CLASSES.names)}
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]
    assert "AutoModelForSequenceClassification" in (folder / "README.md").read_text()
    # What was exported has not changed its own configuration.
    assert len(classifier.encoder.hf.config.id2label) == 2


def test_transformers_would_draw_a_head(export):
    _, info = AutoModelForSequenceClassification.from_pretrained(export[1], output_loading_info=True)
    assert "classifier.weight" in info["missing_keys"]


def test_a_saved_head_goes_on_for_the_same_classes_alone(export):
    classifier, folder = export
    source = find_model(str(folder))
    same = load_head(source, CLASSES, pooling="mean").state_dict()
    assert all(torch.equal(same[name], value) for name, value in classifier.head.state_dict().items())
    for classes in (LabelMap(CLASSES.names[::-1]), LabelMap(("a", "b"))):
        head = load_head(source, classes, pooling="mean")
        assert head.out.weight.shape == (len(classes), 32) and not head.out.bias.any()
        assert not torch.equal(head.out.weight, classifier.head.out.weight[: len(classes)])


def test_a_fresh_head_is_drawn_from_the_seed(tiny_bert_dir):
    source = find_model(str(tiny_bert_dir))

    def drawn(seed):
        torch.manual_seed(seed)
        return load_head(source, CLASSES, pooling="mean").out.weight.detach()

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))
    # The tiny model's initializer_range.
    assert drawn(3).std().item() == pytest.approx(0.2, rel=0.3)


def test_training_dropout_is_the_encoders_alone(tiny_encoder, sentences):
    classifier = make_classifier(tiny_encoder(pooling="mean", dropout=0.0)).train()
    batch = classifier.encoder.pack(sentences)
    torch.testing.assert_close(classifier(batch), classifier(batch), rtol=0, atol=0)


def test_it_can_be_attacked(export, sentences):
    """A large enough ball fools every text that was right, a small one hardly any."""
    classifier, folder = export
    predicted = classifier.classify_texts(sentences).argmax(1)
    data = LabelledTexts(CLASSES, list(sentences), None, predicted.tolist())
    found = attack_classifier(classifier, data, AttackSettings(epsilons=(1e-4, 30.0)))
    assert found.is_right_clean.all() and found.is_right[0].all() and not found.is_right[1].any()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / HEAD_FILE).write_bytes(b"no weights"), f"{HEAD_FILE} cannot be read"),
        (lambda folder: save_file({"out.weight": torch.zeros(3, 32)}, folder / HEAD_FILE), "expected {'out.weight': "),
        (lambda folder: (folder / HEAD_FILE).unlink(), "is no trained classifier"),
        (lambda folder: (folder / "modules.json").unlink(), "reads mean vectors, .* say nothing of a pooling"),
    ],
    ids=["no safetensors", "other classes", "no head", "no pooling"],
)
def test_what_cannot_be_opened_ends_in_one_line(damage, message, export):
    damage(export[1])
    with pytest.raises(UserError, match=message) as error:
        Classifier.from_pretrained(str(export[1]))
    assert "\n" not in str(error.value)


def test_an_export_that_transformers_wrote_over_is_refused(export):
    """Its weights have a head of their own now, and the file's is of before."""
    folder = export[1]
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(UserError, match="holds the head of a BertForSequenceClassification, and another in"):
        Classifier.from_pretrained(str(folder))
    (folder / HEAD_FILE).unlink()
    assert Classifier.from_pretrained(str(folder)).encoder.pooling == "cls"


def test_adapters_are_merged(tiny_encoder, sentences, tmp_path):
    pytest.importorskip("peft")
    classifier = make_classifier(tiny_encoder(dtype=torch.float32, pooling="mean", lora_rank=2))
    for name, parameter in classifier.encoder.hf.named_parameters():
        if "lora_B" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    logits = classifier.classify_texts(sentences)
    again = Classifier.from_pretrained(str(classifier.save_pretrained(tmp_path / "export")))
    np.testing.assert_allclose(again.classify_texts(sentences), logits, rtol=0, atol=1e-5 * np.abs(logits).max())


def test_a_head_of_the_other_pooling_is_refused(tiny_encoder):
    with pytest.raises(UserError, match="a ClassificationHead does not read vectors of pooling mean"):
        Classifier(tiny_encoder(pooling="mean"), ClassificationHead(32, 4), CLASSES)
    with pytest.raises(UserError, match="a LinearHead does not read vectors of pooling cls"):
        Classifier(tiny_encoder(), LinearHead(32, 4), CLASSES)
