import numpy as np
import pytest
import torch

from fastadv.data.labelled.text import LabelledText
from fastadv.encoder.classifier.classification_head import draw_head
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.evaluation.vectors.accuracy import classification_score, predict


def test_logits_come_in_the_order_of_the_rows(tiny_encoder, sentences, tmp_path):
    rows = [f"{text}\t{'abcd'[i % 4]}" for i, text in enumerate(sentences * 2)]
    (tmp_path / "data.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    encoder = tiny_encoder(dtype=torch.float32, dropout=0.1)
    text = LabelledText.build(tmp_path / "data.tsv", encoder, cache_dir=tmp_path / "cache", progress=False)
    torch.manual_seed(0)
    classifier = Classifier(encoder, draw_head(encoder.hf.config, text.label_map), text.label_map).train()
    found = predict(classifier, text, batch_size=3)
    assert classifier.training, "the mode is left as it was"
    expected = classifier.eval().classify_texts(list(sentences) * 2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_scores_by_hand():
    """Four classes of which one never occurs; two of five right."""
    predicted, labels = np.array([0, 1, 1, 2, 0]), np.array([0, 1, 2, 0, 1])
    logits = np.eye(4)[predicted]
    assert classification_score(logits, labels) == pytest.approx(40)
    # F1 of class 0: 2*1/(2+2), of class 1: 2*1/(2+2), of class 2: 0; class 3 is neither there nor predicted.
    assert classification_score(logits, labels, "macro_f1") == pytest.approx(100 * (0.5 + 0.5 + 0) / 3)
    assert np.isnan(classification_score(np.full((5, 4), np.nan), labels))
