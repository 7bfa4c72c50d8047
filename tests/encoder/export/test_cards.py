"""Cards name the library that opens a model and the task it is for."""

from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard

from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.export.cards import classes_in_words, default_card

ENCODER = SimpleNamespace(pooling="cls", max_length=32, hidden_size=8)
CLASSES = LabelMap(("bad", "good"))


@pytest.mark.parametrize(
    "pooling, label_map, library, task",
    [
        ("cls", None, "sentence-transformers", "sentence-similarity"),
        ("mean", None, "sentence-transformers", "sentence-similarity"),
        ("first_last", None, "sentence-transformers", "sentence-similarity"),
        ("cls", CLASSES, "transformers", "text-classification"),
        ("mean", CLASSES, "fastadv", "text-classification"),
    ],
)
def test_library_and_task(pooling, label_map, library, task):
    card = ModelCard(default_card(SimpleNamespace(**{**vars(ENCODER), "pooling": pooling}), label_map))
    assert (card.data.library_name, card.data.pipeline_tag) == (library, task)
    assert "at most 32 tokens" in card.text
    assert ("2 classes: `bad`, `good`" in card.text) == (label_map is not None)
    assert ("SentenceTransformer(" in card.text) == (label_map is None)
    assert ("would draw a head" in card.text) == (library == "fastadv")


def test_names_of_classes_cannot_break_the_card():
    hostile = LabelMap(("a`b", "c\n---\nlicense: mit"))
    assert classes_in_words(hostile) == "2 classes: `a b`, `c --- license: mit`"
    card = ModelCard(default_card(ENCODER, hostile))
    assert card.data.license is None and card.data.pipeline_tag == "text-classification"


def test_of_many_classes_the_first_are_named():
    words = classes_in_words(LabelMap(tuple(map(str, range(150)))))
    assert words.startswith("150 classes: `0`, `1`") and words.endswith("`19` and 130 more")
