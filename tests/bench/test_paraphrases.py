"""Paraphrase pairs made of sentences: balanced, seeded, of words and sets that were given."""

import csv
from collections import Counter

import numpy as np
import pytest

from bench.studies import paraphrase_pairs
from bench.studies.paraphrase_pairs import make_pairs, near_sentences, rewritten, with_synonyms
from fastadv.data.variants.word_sets import WordSets, words_of
from fastadv.errors import UserError

SETS = WordSets(
    {"film": ["movie", "picture"], "good": ["fine", "nice"], "actor": ["performer"]},
    {"good": ["bad"], "nice": ["nasty"], "long": ["short"]},
)
NOUNS = "horse river castle garden letter window soldier doctor winter summer bridge mirror island forest".split()
SENTENCES = [
    f"{opening} {adjective} film about the {noun} and a long {other}, with a good actor."
    for opening in ("This is a", "It's a very", "However, it is the")
    for adjective in ("good", "slow", "strange", "quiet")
    for noun in NOUNS
    for other in NOUNS
    if noun < other
]


def pairs(seed=0, count=60, flips=0.4, share=0.3):
    return make_pairs(SENTENCES, count, SETS, seed, flips, share)


def test_pairs_are_balanced_and_each_sentence_opens_one():
    found = pairs()
    assert Counter(pair.made for pair in found) == {"rewritten": 30, "antonym": 12, "near": 18}
    assert {(pair.made, pair.label) for pair in found} == {
        ("rewritten", "duplicate"),
        ("antonym", "different"),
        ("near", "different"),
    }
    openers = [p.first if p.first in SENTENCES else p.second for p in found if p.made != "near"]
    assert len(set(openers)) == len(openers) and all(text in SENTENCES for text in openers)
    # The older sentence comes first in some and second in others.
    assert 0 < sum(p.first in SENTENCES for p in found if p.made != "near") < 42
    labels = [pair.label for pair in found]
    assert labels != sorted(labels) and labels != sorted(labels, reverse=True)


def test_the_seed_says_all():
    assert pairs(seed=3) == pairs(seed=3) != pairs(seed=4)


def keys(text):
    return Counter(word.key for word in words_of(text))


def test_words_come_from_the_sets():
    members = {other for others in SETS.synonyms.values() for other in others}
    members |= {word for text in SENTENCES for word in keys(text)}
    for pair in pairs(count=200):
        old, new = (pair.first, pair.second) if pair.first in SENTENCES else (pair.second, pair.first)
        added = set(keys(new)) - members - {"it", "is"}
        if pair.made == "rewritten":
            assert added == set() and keys(old) != keys(new)
        elif pair.made == "antonym":
            flipped = [word for word in keys(new) if word in ("bad", "nasty", "short")]
            assert flipped and sum((keys(new) - keys(old))[word] for word in flipped) == 1


def test_a_near_sentence_is_the_most_similar_that_is_no_copy():
    pool = [
        "the old castle stands by the river in winter",
        "the old castle stands by the river in winter",
        "the old castle stands by the lake in summer",
        "the castle is old",
        "nobody told the doctor about letters",
    ]
    assert near_sentences([pool[0], "quite another thing altogether"], pool) == [pool[2], None]


def test_rewriting_by_hand():
    texts = {
        "It's good.": {"It's good.", "It is good."},
        "I do not like it.": {"I do not like it.", "I don't like it."},
        "I know how good it is.": {"I know how good it is."},
        "It is long.": {"It is long.", "It's long."},
        "We've seen it; I have it.": {"We've seen it; I have it.", "We have seen it; I have it."},
        "A really good film.": {"A really good film.", "A good film."},
        "And it ends well.": {"And it ends well.", "It ends well."},
        "Sadly, it ends there!": {"Sadly, it ends there!", "It ends there, sadly!"},
        "Butter and So on.": {"Butter and So on."},
    }
    for text, expected in texts.items():
        assert {rewritten(text, np.random.default_rng(i)) for i in range(60)} == expected


def test_one_word_at_least_is_replaced():
    rng = np.random.default_rng(0)
    for text in ("A good film.", "FILM!"):
        assert all(with_synonyms(text, SETS, rng, 0.0) != text for _ in range(20))
    assert with_synonyms("nothing here", SETS, rng, 1.0) == "nothing here"


def test_too_few_sentences_are_told():
    with pytest.raises(UserError, match="5,000 pairs: only .* could be made by rewritten"):
        pairs(count=5000)


def test_the_files(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(paraphrase_pairs, "demo_sentences", lambda name: asked.append(name) or SENTENCES)
    SETS.save(tmp_path / "sets.json")
    out = tmp_path / "out"
    paraphrase_pairs.main(
        ["--word_sets", str(tmp_path / "sets.json"), "--out", str(out), "--train=40", "--dev=20", "--test=10"]
    )
    assert asked == ["demo:imdb-train", "demo:imdb-dev", "demo:imdb-test"]
    for split, count in (("train", 40), ("dev", 20), ("test", 10)):
        with open(out / f"{split}.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert Counter(row["label"] for row in rows) == {"duplicate": count // 2, "different": count // 2}
    assert "train: antonym 5, near 15, rewritten 20" in capsys.readouterr().out
    with pytest.raises(UserError, match="--flips = 2.0"):
        paraphrase_pairs.main(["--word_sets", str(tmp_path / "sets.json"), "--out", str(out), "--flips", "2"])
