"""The demo's labelled reviews: dealt to train, dev and test whole, with stated sizes."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.labelled.find import read_labelled
from fastadv.data.sources import demo
from fastadv.errors import UserError

SIZES = {"train": 22_366, "dev": 1_254, "test": 1_281}


@pytest.fixture(scope="module")
def reviews():
    return {split: demo.demo_reviews(split) for split in SIZES}


def test_the_splits_have_the_stated_sizes_and_both_sentiments(reviews):
    assert {split: len(rows) for split, rows in reviews.items()} == SIZES
    for rows in reviews.values():
        share = sum(label == "positive" for _, label in rows) / len(rows)
        assert {label for _, label in rows} == {"negative", "positive"} and 0.48 < share < 0.52
        # The first few hundred are a fair draw: of 400, standard deviation 0.025.
        assert 0.4 < sum(label == "positive" for _, label in rows[:400]) / 400 < 0.6
    assert all(text == " ".join(text.split()) and "<br" not in text for text, _ in reviews["test"])


def test_no_review_is_in_two_splits_or_twice_in_one(reviews):
    words = {split: [demo._words(text) for text, _ in rows] for split, rows in reviews.items()}
    sets = {split: set(of_split) for split, of_split in words.items()}
    assert all(len(sets[split]) == len(words[split]) for split in SIZES)
    assert not sets["train"] & sets["dev"] and not sets["train"] & sets["test"] and not sets["dev"] & sets["test"]


def test_the_demos_sentences_are_those_of_the_reviews_of_their_split(monkeypatch):
    """An encoder trained on the sentences of demo:imdb-train has not seen the labelled test reviews."""
    all_rows = demo._rows
    monkeypatch.setattr(demo, "_rows", lambda source: all_rows(source)[:: 60 if source == "imdb" else 10])
    sentences, found = demo._splits.__wrapped__(), demo._reviews.__wrapped__()
    assert sum(len(reviews) for reviews in found.values()) > 400
    for split, reviews in found.items():
        text = "\n".join(text for text, _ in reviews)
        assert sentences[f"demo:imdb-{split}"] and all(one in text for one in sentences[f"demo:imdb-{split}"])


def test_they_are_read_by_name_and_split(reviews):
    texts = read_labelled("demo:imdb", split="dev")
    assert texts.label_map.names == ("negative", "positive")
    assert list(zip(texts.first, (texts.label_map.names[i] for i in texts.labels))) == reviews["dev"]
    assert len(read_labelled("demo:imdb", split="validation")) == len(texts)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("demo:imdb", {"split": "all"}, "demo:imdb has no split 'all'; its splits are train, dev, test"),
        ("demo:imdb-train", {}, "'demo:imdb-train', whose sentences have no labels, in the demo; it has demo:imdb"),
        ("demo:sst2", {}, "no labelled texts 'demo:sst2' in the demo; it has demo:imdb"),
        ("demo:imdb", {"field": "review"}, "demo:imdb has the columns text, label, got 'review', 'label'"),
        ("demo:imdb", {"pair_field": "b"}, "expected data.field = text, data.pair_field = null and data.label_field"),
    ],
)
def test_mistakes_are_one_line(name, options, message):
    with pytest.raises(UserError) as caught:
        read_labelled(name, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


words = st.text(st.sampled_from("abc dE,.!"), min_size=1, max_size=30).filter(lambda text: demo._words(text))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.tuples(words, st.sampled_from("01")), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_any_table_is_split_by_review_whatever_its_order_and_copies(tmp_path_factory, rows, random):
    path = tmp_path_factory.getbasetemp() / "reviews.csv"

    def split(rows):
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label", "source"), *[(*row, "imdb") for row in rows]])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo, "_reviews_file", lambda: path)
            found = demo._reviews.__wrapped__()
        return {name: [demo._words(text) for text, _ in reviews] for name, reviews in found.items()}

    first = split(rows)
    everything = [review for reviews in first.values() for review in reviews]
    assert sorted(everything) == sorted({demo._words(text) for text, _ in rows})
    # Copies that differ in case and punctuation, and another order, change nothing.
    more = [*rows, *[(text.upper() + " !", label) for text, label in rows]]
    random.shuffle(more)
    assert split(more) == first
