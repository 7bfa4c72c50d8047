"""An encoder with a probe as a classifier: its head is scikit-learn's, whatever the classes; and what it refuses."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.victims.probe import draw_train, probe_victim, write_victim
from tests.evaluation.attacked import TEXTS


def labelled(names, labels):
    return LabelledTexts(LabelMap(names), list(TEXTS), None, labels)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_its_probabilities_are_those_of_the_regression(tiny_encoder, num_classes, tmp_path):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean")
    labels = [row % num_classes for row in range(len(TEXTS))]
    data = labelled(("bad", "good", "sad")[:num_classes], labels)
    logits = torch.from_numpy(probe_victim(encoder, data).classify_texts(TEXTS)).double()
    scaled = StandardScaler().fit_transform(encoder.encode_texts(TEXTS).astype(np.float64))
    wanted = LogisticRegression(max_iter=1000).fit(scaled, labels).predict_proba(scaled)
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), wanted, atol=2e-3)
    reopened = Classifier.from_pretrained(str(write_victim(encoder, data, tmp_path / "victim")))
    np.testing.assert_allclose(reopened.classify_texts(TEXTS), logits.numpy(), atol=1e-4)


def test_a_class_without_texts_is_never_named(tiny_encoder):
    data = labelled(("bad", "never", "good"), [2 * (row % 2) for row in range(len(TEXTS))])
    found = probe_victim(tiny_encoder(dtype=torch.float32, pooling="mean"), data).classify_texts(TEXTS)
    assert set(found.argmax(axis=1).tolist()) == {0, 2} and np.isfinite(found).all()


def test_what_it_refuses(tiny_encoder):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean")
    some = [row % 2 for row in range(len(TEXTS))]
    with pytest.raises(UserError, match="pools by cls"):
        probe_victim(tiny_encoder(pooling="cls"), labelled(("a", "b"), some))
    with pytest.raises(UserError, match="one class alone \\('b'\\)"):
        probe_victim(encoder, labelled(("a", "b"), [1] * len(TEXTS)))
    with pytest.raises(UserError, match="pairs"):
        probe_victim(encoder, LabelledTexts(LabelMap(("a", "b")), TEXTS, TEXTS, some))
    with torch.no_grad():
        for parameter in encoder.hf.encoder.layer[-1].output.LayerNorm.parameters():
            parameter.zero_()
    with pytest.raises(UserError, match="same vector"):
        probe_victim(encoder, labelled(("a", "b"), some))


def test_no_attacked_text_is_trained_on():
    texts = [*TEXTS, *TEXTS]
    data = LabelledTexts(LabelMap(("a", "b")), texts, None, [row % 2 for row in range(len(texts))])
    train = draw_train(data, TEXTS[:4])
    assert sorted(train.first) == sorted(TEXTS[4:])
    assert len(draw_train(data, TEXTS[:4], num_train=3).first) == 3
    with pytest.raises(UserError, match="max_texts"):
        draw_train(data, TEXTS)
