"""A classifier's export: transformers' logits in its own class where it reads first tokens, and ours again in ours.

A head of means lies in a file of its own, for any model type.
"""

import inspect
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fastadv.config.embedding_attack import AttackSettings
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import (
    HEAD_FILE,
    LAYOUTS,
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
WITH_HEAD = ["Bert", "Albert", "Roberta", "XLMRoberta", "Camembert", "Data2VecText", "MPNet", "Electra", "DistilBert"]
OF_MEANS = ["Bert", "Roberta", "Albert", "DistilBert", "DebertaV2", "ModernBert"]
"""also model types that have no head on the first token"""


def make_classifier(encoder, classes=CLASSES):
    torch.manual_seed(3)
    head = draw_head(encoder.hf.config, classes, encoder.pooling).to(encoder.dtype)
    for parameter in head.parameters():
        # Somewhere else, biases too.
        parameter.data += 0.3 * torch.randn_like(parameter)
    return Classifier(encoder, head, classes).eval()


@pytest.fixture
def export(tiny_encoder, tmp_path):
    """A classifier of means in float32, and its folder."""
    classifier = make_classifier(tiny_encoder(dtype=torch.float32, pooling="mean", max_length=12))
    return classifier, classifier.save_pretrained(tmp_path / "export")


def logits_of_transformers(folder, *texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        inputs = tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")
        taken = inspect.signature(model.forward).parameters
        return model(**{name: inputs[name] for name in inputs if name in taken}).logits.numpy(), model.config


@pytest.mark.parametrize("family, pooling", [(f, "cls") for f in WITH_HEAD] + [(f, "mean") for f in OF_MEANS])
def test_the_export_opens_exactly(family, pooling, family_encoder, sentences, tmp_path):
    classifier = make_classifier(family_encoder(family, dtype=torch.float32, max_length=12, pooling=pooling))
    texts = [*sentences, "the " * 40]
    folder = str(classifier.save_pretrained(tmp_path / "export"))
    ours, vectors = classifier.classify_texts(texts, batch_size=3), classifier.encoder.encode_texts(texts)
    if pooling == "cls":
        theirs, config = logits_of_transformers(folder, texts)
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())
        assert config.id2label == {0: "world", 1: "sports", 2: "business", 3: "science"}
    elif family in ("Bert", "DebertaV2"):
        theirs = SentenceTransformer(folder, device="cpu").encode(texts)
        np.testing.assert_allclose(theirs, vectors, rtol=0, atol=1e-5 * np.abs(vectors).max())
    again = Classifier.from_pretrained(folder)
    assert again.label_map == CLASSES and again.encoder.max_length == 12 and again.encoder.pooling == pooling
    np.testing.assert_array_equal(again.classify_texts(texts, batch_size=3), ours)
    # Its encoder is the one that an encoder's reader finds.
    np.testing.assert_array_equal(Encoder.from_pretrained(folder).encode_texts(texts), vectors)


def test_every_model_type_with_a_head_is_tested():
    assert len(LAYOUTS) == len(WITH_HEAD) == 9


def test_pairs_are_read_alike(tiny_encoder, sentences, tmp_path):
    classifier = make_classifier(tiny_encoder(dtype=torch.float32, max_length=16))
    folder = classifier.save_pretrained(tmp_path / "export")
    others = sentences[::-1]
    ours = classifier.classify_texts(sentences, others)
    theirs, _ = logits_of_transformers(folder, list(sentences), list(others))
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())
    assert np.abs(ours - classifier.classify_texts(sentences)).max() > 1e-3


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_logits_of_a_batch_are_the_head_of_the_vectors(pooling, tiny_encoder, sentences):
    """Dropout is the encoder's alone: here there is none, in training either."""
    classifier = make_classifier(tiny_encoder(dropout=0.0, pooling=pooling)).train()
    batch = classifier.encoder.pack(sentences)
    head, vectors = classifier.head, classifier.encoder(batch)
    expected = head.out(torch.tanh(head.dense(vectors)) if pooling == "cls" else vectors)
    torch.testing.assert_close(classifier(batch), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(classifier.classify_batch(batch), expected.detach(), rtol=1e-12, atol=1e-14)


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


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_what_the_weights_hold_of_a_head_is_taken(pooling, tiny_encoder, tmp_path):
    """The inner map of any classifier, the output map of one for the same classes in the same order alone."""
    classifier = make_classifier(tiny_encoder(dtype=torch.float32, pooling=pooling))
    source = find_model(str(classifier.save_pretrained(tmp_path / "export")))
    same = load_head(source, CLASSES, pooling=pooling).state_dict()
    assert all(torch.equal(same[name], value) for name, value in classifier.head.state_dict().items())
    for classes in (LabelMap(CLASSES.names[::-1]), LabelMap(("a", "b"))):
        head = load_head(source, classes, pooling=pooling)
        assert pooling == "mean" or torch.equal(head.dense.weight, classifier.head.dense.weight)
        assert head.out.weight.shape == (len(classes), 32) and not head.out.bias.any()
        assert not torch.equal(head.out.weight, classifier.head.out.weight[: len(classes)])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_fresh_head_is_drawn_from_the_seed(pooling, tiny_bert_dir):
    source = find_model(str(tiny_bert_dir))

    def drawn(seed):
        torch.manual_seed(seed)
        return load_head(source, CLASSES, pooling=pooling).out.weight.detach()

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))
    # The tiny model's initializer_range.
    assert drawn(3).std().item() == pytest.approx(0.2, rel=0.3)


def test_it_can_be_attacked(export, sentences):
    """A large enough ball fools every text that was right, a small one hardly any."""
    classifier, folder = export
    predicted = classifier.classify_texts(sentences).argmax(1)
    data = LabelledTexts(CLASSES, list(sentences), None, predicted.tolist())
    found = attack_classifier(classifier, data, AttackSettings(epsilons=(1e-4, 30.0)))
    assert found.is_right_clean.all() and found.is_right[0].all() and not found.is_right[1].any()


def test_what_is_no_trained_classifier_is_refused(tiny_bert_dir, tiny_encoder, family_encoder, tmp_path):
    with pytest.raises(UserError, match="is no trained classifier"):
        Classifier.from_pretrained(str(tiny_bert_dir))
    with pytest.raises(UserError, match="pooling = first_last: expected cls or mean"):
        make_classifier(tiny_encoder(pooling="first_last"))
    deberta = family_encoder("DebertaV2")
    with pytest.raises(UserError, match="of type deberta-v2.*bert, albert"):
        Classifier(deberta, draw_head(tiny_encoder().hf.config, CLASSES), CLASSES)
    with pytest.raises(UserError, match="a ClassificationHead does not read vectors of pooling mean"):
        Classifier(tiny_encoder(pooling="mean"), ClassificationHead(32, 4), CLASSES)
    with pytest.raises(UserError, match="a LinearHead does not read vectors of pooling cls"):
        Classifier(tiny_encoder(), LinearHead(32, 4), CLASSES)


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
