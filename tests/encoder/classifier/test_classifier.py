"""A classifier's export gives transformers' logits in transformers' own class, and ours again in ours."""

import inspect

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import LAYOUTS, draw_head, load_head
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.encoder.weights.source import find_model
from fastadv.errors import UserError

CLASSES = LabelMap(("world", "sports", "business", "science"))


def moved(module, seed=0):
    """Its parameters somewhere else, biases too."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return module


def make_classifier(encoder, classes=CLASSES):
    return Classifier(encoder, moved(draw_head(encoder.hf.config, classes).to(encoder.dtype)), classes).eval()


def logits_of_transformers(folder, *texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        inputs = tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")
        taken = inspect.signature(model.forward).parameters
        return model(**{name: inputs[name] for name in inputs if name in taken}).logits.numpy(), model.config


@pytest.mark.parametrize(
    "family",
    ["Bert", "Albert", "Roberta", "XLMRoberta", "Camembert", "Data2VecText", "MPNet", "Electra", "DistilBert"],
)
def test_transformers_reads_the_same_logits_and_label_names(family, family_encoder, sentences, tmp_path):
    classifier = make_classifier(family_encoder(family, dtype=torch.float32, max_length=12))
    texts = [*sentences, "the " * 40]
    folder = classifier.save_pretrained(tmp_path / "export")
    ours = classifier.classify_texts(texts, batch_size=3)
    theirs, config = logits_of_transformers(folder, texts)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())
    assert config.id2label == {0: "world", 1: "sports", 2: "business", 3: "science"}
    again = Classifier.from_pretrained(str(folder))
    assert again.label_map == CLASSES and again.encoder.max_length == 12
    np.testing.assert_array_equal(again.classify_texts(texts, batch_size=3), ours)
    # Its encoder is the one that an encoder's reader finds.
    np.testing.assert_array_equal(
        Encoder.from_pretrained(str(folder)).encode_texts(texts), classifier.encoder.encode_texts(texts)
    )


def test_every_model_type_with_a_head_is_tested():
    assert len(LAYOUTS) == 9


def test_pairs_are_read_alike(tiny_encoder, sentences, tmp_path):
    classifier = make_classifier(tiny_encoder(dtype=torch.float32, max_length=16))
    folder = classifier.save_pretrained(tmp_path / "export")
    others = sentences[::-1]
    ours = classifier.classify_texts(sentences, others)
    theirs, _ = logits_of_transformers(folder, list(sentences), list(others))
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())
    assert np.abs(ours - classifier.classify_texts(sentences)).max() > 1e-3


def test_logits_of_a_batch_are_the_head_of_the_vectors(tiny_encoder, sentences):
    classifier = make_classifier(tiny_encoder(dropout=0.0))
    batch = classifier.encoder.pack(sentences)
    head = classifier.head
    expected = head.out(torch.tanh(head.dense(classifier.encoder(batch))))
    torch.testing.assert_close(classifier(batch), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(classifier.classify_batch(batch), expected.detach(), rtol=1e-12, atol=1e-14)


def test_what_the_weights_hold_of_a_head_is_taken(tiny_encoder, tmp_path):
    """The inner map of any classifier, the output map of one for the same classes in the same order alone."""
    classifier = make_classifier(tiny_encoder(dtype=torch.float32))
    source = find_model(str(classifier.save_pretrained(tmp_path / "export")))
    same = load_head(source, CLASSES).state_dict()
    assert all(torch.equal(same[name], value) for name, value in classifier.head.state_dict().items())
    for classes in (LabelMap(CLASSES.names[::-1]), LabelMap(("a", "b"))):
        head = load_head(source, classes)
        assert torch.equal(head.dense.weight, classifier.head.dense.weight)
        assert head.out.weight.shape == (len(classes), 32) and not head.out.bias.any()
        assert not torch.equal(head.out.weight, classifier.head.out.weight[: len(classes)])


def test_a_fresh_head_is_drawn_from_the_seed(tiny_bert_dir):
    source = find_model(str(tiny_bert_dir))

    def drawn(seed):
        torch.manual_seed(seed)
        return load_head(source, CLASSES).out.weight

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))


def test_what_is_no_trained_classifier_is_refused(tiny_bert_dir, tiny_encoder, family_encoder, tmp_path):
    with pytest.raises(UserError, match="is no trained classifier"):
        Classifier.from_pretrained(str(tiny_bert_dir))
    with pytest.raises(UserError, match="pooling = first_last: expected cls or mean"):
        make_classifier(tiny_encoder(pooling="first_last"))
    deberta = family_encoder("DebertaV2")
    with pytest.raises(UserError, match="of type deberta-v2.*bert, albert"):
        Classifier(deberta, draw_head(tiny_encoder().hf.config, CLASSES), CLASSES)
