"""What several tests of evaluation attack: made once."""

import csv

import pytest
import torch

from fastadv.encoder.classifier.text_classifier import Classifier
from tests.evaluation.attacked import (
    CLASSES,
    SETS,
    TEXTS,
    make_classifier,
    own_labels,
    save_two_classifiers,
    write_table,
)


@pytest.fixture(scope="session")
def attacked_folder(tmp_path_factory, tiny_bert_dir):
    """Classifiers at a/model, b/model, constant/model (it always says the same) and nan/model; sets.json; texts.csv as
    a labels them, mistaken.csv but for two, and pairs.csv with a column of other texts."""
    folder = tmp_path_factory.mktemp("attacked")
    torch.set_num_threads(1)
    classifier = save_two_classifiers(folder, tiny_bert_dir)
    with torch.no_grad():
        classifier.head.out.weight.zero_()
        classifier.head.out.bias.copy_(torch.tensor([0.0, 1.0, 5.0, 2.0]))
        classifier.save_pretrained(folder / "constant/model")
        classifier.head.out.weight.fill_(float("nan"))
        classifier.save_pretrained(folder / "nan/model")
    SETS.save(folder / "sets.json")
    first = Classifier.from_pretrained(str(folder / "a/model"))
    data = own_labels(first)
    data.labels[2], data.labels[5] = (data.labels[2] + 1) % 4, (data.labels[5] + 1) % 4
    write_table(folder / "mistaken.csv", data)
    second = TEXTS[3:] + TEXTS[:3]
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "other", "label"])
        labels = first.classify_texts(TEXTS, second).argmax(axis=1)
        writer.writerows(zip(TEXTS, second, (CLASSES[label] for label in labels)))
    return folder


@pytest.fixture(scope="module")
def classifier(tiny_bert_dir):
    """A small classifier in float64."""
    return make_classifier(tiny_bert_dir)
