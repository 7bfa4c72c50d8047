"""Sentences out of prose."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.sources.splitting import split_sentences


@pytest.mark.parametrize(
    "marked",
    [
        "It was good.|I liked it!|Did you?|Yes.",
        "Mr. Smith met Dr. Jones and Mrs. Brown.|They talked.",
        "J. R. R. Tolkien and George W. Bush never met.|Neither did we.",
        "World War I.|The trenches were real.",
        "So did I.|He left.",
        "Films, e.g. Alien vs. Predator, i.e. this one, are bad.|Really.",
        "He lives in the U.S. and works there.|He came to the U.S. in May.",
        "He lives in the U.S.|The end.",
        "The U.S. Army paid for it.",
        "Guns, cars, etc.|The plot was thin.",
        "Guns, cars, etc. filled the screen.",
        "Robert Downey Jr. Shines in it.",
        "It cost $3.5 million and scored 7.5/10.|Fair enough.",
        "He was No. 1 again.|I said no.|She agreed.",
        "1. The plot.|2. The cast.",
        "It was made in 1999.|It shows.",
        "Well...|I never.",
        "It was so... so slow.",
        "It was slow…|But good.",
        "What?!|No way!!!|Truly.",
        'He said "Stop."|She did not.',
        'He said "Stop!" and she did.',
        '"Why?" he asked.',
        '(It was bad.)|(Really.)|"Yes."',
        "He said ‘no.’|“Really?”|They laughed.",
        "It was bad.and worse",
        "See www.IMDb.com and www.Foo.Bar for more.|Thanks.",
        "it was bad.|and then it ended.",
        "Yahoo! is a company.",
        "no end here",
        "At 9 p.m. Friday it began.|At 9 p.m.|It ended.",
        "...and so it goes.|Fine.",
        "5 stars.|4 a piece.",
    ],
)
def test_known_texts(marked):
    """``|`` stands where a sentence ends."""
    assert split_sentences(marked.replace("|", " ")) == marked.split("|")


def test_a_forgotten_space():
    text = "It was bad.The end was worse!Truly?Yes."
    assert split_sentences(text) == ["It was bad.", "The end was worse!", "Truly?", "Yes."]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(alphabet="ab IJM.!?…\"')(1,é", max_size=60))
def test_no_character_is_lost(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


def test_a_long_paragraph_is_split():
    """A scan of quadratic time would never end."""
    num_words = 300_000
    sentences = split_sentences("Word. " * num_words + "a" * num_words + "." * num_words)
    assert len(sentences) == num_words + 1


def test_empty():
    assert split_sentences("") == [] == split_sentences("  ")
