"""Cards name the library that opens a model and the task it is for."""

from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard

from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.export.cards import classes_in_words, default_card, front_matter

SETTINGS = {"modules": [], "similarity": "cosine"}
ENCODER = SimpleNamespace(
    pooling="cls",
    max_length=32,
    vector_size=8,
    prompt="",
    card={},
    settings=SETTINGS,
    after=SimpleNamespace(is_unit_length=False),
)
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
    assert {task, "fastadv"} <= set(card.data.tags)


def test_the_base_and_the_data_are_metadata_of_the_hub():
    base = {"base_model": "owner/base", "license": "mit", "language": "en"}
    card = ModelCard(front_matter("mean", base=base, datasets=["snli", "snli"], tags=["simcse"]) + "\n")
    assert (card.data.base_model, card.data.license, card.data.language) == ("owner/base", "mit", "en")
    assert card.data.datasets == ["snli"] and card.data.tags[-1] == "simcse" and "sentence-similarity" in card.data.tags


def test_a_card_says_how_vectors_are_made():
    settings = {"modules": ["Dense", "Normalize"], "similarity": "dot"}
    made = {**vars(ENCODER), "pooling": "cls+max", "prompt": 'a "`query`\n: ', "settings": settings}
    text = ModelCard(default_card(SimpleNamespace(**{**made, "after": SimpleNamespace(is_unit_length=True)}))).text
    assert "the first token; beside it, the largest" in text and "then Dense, Normalize as in" in text
    assert 'the prompt `"a \\"\'query\'\\n: "`.' in text and "compared by dot similarity and have length 1" in text


def test_names_of_classes_cannot_break_the_card():
    hostile = LabelMap(("a`b", "c\n---\nlicense: mit"))
    assert classes_in_words(hostile) == "2 classes: `a b`, `c --- license: mit`"
    card = ModelCard(default_card(ENCODER, hostile))
    assert card.data.license is None and card.data.pipeline_tag == "text-classification"


def test_of_many_classes_the_first_are_named():
    words = classes_in_words(LabelMap(tuple(map(str, range(150)))))
    assert words.startswith("150 classes: `0`, `1`") and words.endswith("`19` and 130 more")
