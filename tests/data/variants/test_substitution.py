"""Texts drawn by word sets: fickle ones by synonyms, obstinate ones by an antonym."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.variants.substitution import antonym_draw, draw_seed, synonym_draw
from fastadv.data.variants.word_sets import WordSets, words_of

SYNONYMS = {
    "good": ["fine", "great", "nice"],
    "film": ["movie", "picture"],
    "don't": ["can't"],
    "old": ["old"],
}
ANTONYMS = {"good": ["bad", "evil"], "long": ["short"], "don't": ["do"], "same": ["same"]}
SETS = WordSets(SYNONYMS, ANTONYMS, {})
TEXT = "Good film: GOOD, old (film)... don't!"


def rng(number, epoch=0, texts=("a",)):
    return draw_seed(number, epoch, texts)


def draws(draw, texts, count=400):
    return [draw(texts, SETS, rng(i, texts=texts)) for i in range(count)]


def words(text):
    return [word.text for word in words_of(text)]


def test_every_word_becomes_a_member_of_its_set_and_all_members_are_drawn_alike():
    seen = [Counter() for _ in words(TEXT)]
    found = draws(synonym_draw, (TEXT,), 3000)
    for texts in found:
        for counter, word in zip(seen, words(TEXT if texts is None else texts[0]), strict=True):
            counter[word] += 1
    expected = [
        {"Good", "Fine", "Great", "Nice"},
        {"film", "movie", "picture"},
        {"GOOD", "FINE", "GREAT", "NICE"},
        {"old"},
        {"film", "movie", "picture"},
        {"don't", "can't"},
    ]
    assert [set(counter) for counter in seen] == expected
    for counter in seen:
        share = 1 / len(counter)
        # Four standard deviations of a share of 3,000 draws.
        off = 4 * np.sqrt(share * (1 - share) / 3000)
        assert all(abs(count / 3000 - share) <= off for count in counter.values())


def test_copies_of_a_word_are_drawn_apart():
    pairs = Counter((word[0], word[2]) for texts in draws(synonym_draw, (TEXT,)) if texts for word in [words(texts[0])])
    assert len(pairs) == 16


def test_what_lies_between_words_stays():
    for texts in draws(synonym_draw, (TEXT,)) + draws(antonym_draw, (TEXT,)):
        if texts is not None:
            text = texts[0]
            for word in reversed(words_of(text)):
                text = text[: word.start] + "_" + text[word.end :]
            assert text == "_ _: _, _ (_)... _!"


@pytest.mark.parametrize("texts", [("",), ("old and new",), ("...", "12 :-) 3"), ("\ud800 \x00",)], ids=ascii)
def test_nothing_to_change_is_none(texts):
    assert draws(synonym_draw, texts, 20) == 20 * [None]
    assert draws(antonym_draw, texts, 20) == 20 * [None]


def test_a_draw_of_every_word_itself_is_none():
    found = draws(synonym_draw, ("a film",), 600)
    assert None in found and set(found) - {None} == {("a movie",), ("a picture",)}
    # A third of the draws.
    assert abs(found.count(None) / 600 - 1 / 3) < 0.08


def test_synonyms_are_drawn_in_both_texts_of_a_pair():
    found = [texts for texts in draws(synonym_draw, ("a film", "good")) if texts is not None]
    assert {first for first, _ in found} == {"a film", "a movie", "a picture"}
    assert {second for _, second in found} == {"good", "fine", "great", "nice"}
    assert any(first != "a film" and second != "good" for first, second in found)


def test_one_word_of_one_text_is_flipped():
    texts = ("Good and long", "it is GOOD; same")
    found = draws(antonym_draw, texts, 900)
    expected = {
        ("Bad and long", texts[1]),
        ("Evil and long", texts[1]),
        ("Good and short", texts[1]),
        (texts[0], "it is BAD; same"),
        (texts[0], "it is EVIL; same"),
    }
    counts = Counter(found)
    assert set(counts) == expected
    # Words come in random order: "long" first as often as either "good".
    assert abs(counts["Good and short", texts[1]] / 900 - 1 / 3) < 0.07


def test_the_sentence_its_epoch_and_the_seed_name_a_generator():
    texts = (TEXT, "a good film")
    named = {
        *[(seed, epoch, texts) for seed in (3, 4, 31) for epoch in (1, 2, 11)],
        # Where one text ends and the next begins, and a space more.
        *[(3, 1, one) for one in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), (TEXT + " ", "a good film"))],
        (3, 1, texts, "fickle"),
    }
    numbers = {name: draw_seed(*name).integers(2**62) for name in named}
    assert len(set(numbers.values())) == len(named)
    assert numbers == {name: draw_seed(*name).integers(2**62) for name in named}


def test_a_set_that_grows_moves_no_other_words_draw():
    more = WordSets({**SYNONYMS, "and": ["plus"]}, {}, {})
    for i in range(50):
        less = synonym_draw(("and good film",), SETS, rng(i)) or ("and good film",)
        grown = synonym_draw(("and good film",), more, rng(i)) or ("and good film",)
        assert words(less[0])[1:] == words(grown[0])[1:]


def test_sets_may_hold_the_word_itself_and_repetitions():
    sets = WordSets({"good": ["good", "fine", "fine"]}, {"good": ["good", "bad", "bad"]}, {})
    found = Counter(synonym_draw(("good",), sets, rng(i)) for i in range(400))
    assert set(found) == {None, ("fine",)} and abs(found[None] / 400 - 0.5) < 0.1
    assert {antonym_draw(("good",), sets, rng(i)) for i in range(50)} == {("bad",)}


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.lists(st.text(alphabet="abcGOODgodfilm'’-.,! \u0130ß\n", max_size=30), min_size=1, max_size=2), st.integers(0, 9)
)
def test_any_text(texts, epoch):
    sets = WordSets({"good": ["fine"], "a": ["b"], "film": ["movie"]}, {"good": ["bad"], "b": ["c"]}, {})
    texts = tuple(texts)
    for draw in (synonym_draw, antonym_draw):
        found = draw(texts, sets, draw_seed(0, epoch, texts))
        assert found == draw(texts, sets, draw_seed(0, epoch, texts))
        if found is not None:
            assert len(found) == len(texts) and found != texts
            if draw is antonym_draw:
                assert sum(one != other for one, other in zip(found, texts)) == 1
