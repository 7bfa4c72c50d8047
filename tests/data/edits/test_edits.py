"""Edits of a text: one small change each, never a fault; proposals are drawn by (seed, epoch, row, number) alone."""

import hashlib
import pickle
import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.edits import meaning
from fastadv.data.edits.keyboards import KEYBOARDS, neighbours
from fastadv.data.edits.kinds import FLIPS, GROUPS, TYPING_ERRORS, check_edits, expanded, make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError

WORD_SETS = WordSets({"idea": ["thought"], "great": ["grand", "big"]}, {"great": ["small"], "good": ["bad"]})
TEXT = "The film, in which Mr. Smith visits Paris in 1999, had a great idea behind it but I can't call it good."
HOSTILE = [
    "",
    " ",
    "a",
    "\ud800 half a pair",
    "word " * 5000,
    "x" * 20000,
    "مرحبا بالعالم הקלט",
    "a\u0301e\u0302\u0301 o\u0308",
    "zero\u200bwidth \u200d\u200c joiner",
    "你好世界 日本語 한국어 ภาษาไทย",
    "👍🏽 👩‍👩‍👧 🇩🇪",
    "http://a.b/c user@x.org <br /> &amp; @name #tag 12ab",
    "\x00\x01\t\n\r",
    "ǅ ß İ ﬃ",
]


def proposer(names=("typos",), **options) -> Proposer:
    return Proposer(make_edits(names, "edits", WORD_SETS), options.pop("num_proposals", 4), **options)


def distance(a: str, b: str) -> int:
    """Levenshtein's."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@pytest.mark.parametrize("name", TYPING_ERRORS)
@given(text=st.text(max_size=60), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_typing_error_is_one_change(name, text, seed):
    edited = TYPING_ERRORS[name](text, random.Random(seed))
    assert edited == TYPING_ERRORS[name](text, random.Random(seed))
    # A letter moves with its accents, and a swap is two substitutions.
    marks = sum(unicodedata.category(letter)[0] == "M" or letter == "\u200d" for letter in text)
    blanks = sum(letter in " \t" for letter in text)
    assert distance(text, edited) <= 2 + 4 * marks + (blanks if name == "join" else 0)


@pytest.mark.parametrize("name", [*TYPING_ERRORS, *FLIPS])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_never_raises(name, text):
    edited = {**TYPING_ERRORS, **FLIPS}[name](text, random.Random(0))
    assert isinstance(edited, str)


@pytest.mark.parametrize("text", ["你好世界 日本語 한국어", "👍🏽 🇩🇪 7 !", "", " "])
@pytest.mark.parametrize("name", TYPING_ERRORS)
def test_what_is_not_typed_by_letters_stays(name, text):
    assert TYPING_ERRORS[name](text, random.Random(0)) == text


@pytest.mark.parametrize("word", ["привет", "γειασου", "مرحبا", "नमस्ते", "straße"])
@pytest.mark.parametrize("name", ["swap", "drop", "insert", "double", "split"])
def test_letters_of_any_alphabet_are_changed(name, word):
    assert any(TYPING_ERRORS[name](word, random.Random(seed)) != word for seed in range(5))


def test_an_accent_stays_with_its_letter():
    word = "cafe\u0301s"
    for seed in range(20):
        assert "e\u0301" in TYPING_ERRORS["swap"](word, random.Random(seed))


@pytest.mark.parametrize("keyboard", KEYBOARDS)
def test_neighbours_are_mutual(keyboard):
    near = neighbours(keyboard)
    assert all(letter in near[other] for letter, others in near.items() for other in others)
    assert near["a" if keyboard != "jcuken" else "ф"]


def test_capitals_stay_where_they_were():
    for seed in range(30):
        for name in ("swap", "insert", "neighbour", "double"):
            edited = TYPING_ERRORS[name]("Word", random.Random(seed))
            assert edited[0].isupper() and edited[1:].islower()
            assert TYPING_ERRORS[name]("WORD", random.Random(seed)).isupper()


@pytest.mark.parametrize(
    "name, text, allowed",
    [
        ("negation", "It is good.", {"It is not good."}),
        ("negation", "It isn't good.", {"It is good."}),
        ("negation", "I can't say.", {"I can say."}),
        ("negation", "I won't go.", {"I will go."}),
        ("negation", "I cannot go.", {"I can go."}),
        ("negation", "A fine film.", {"A fine film."}),
        ("number", "Two men.", {f"{n.capitalize()} men." for n in meaning._NUMBERS} - {"Two men."}),
        ("number", "In 1999 it ran.", {f"In {n} it ran." for n in range(1000, 10000)} - {"In 1999 it ran."}),
        ("number", "An x86 it is", {"An x86 it is"}),
        ("name", "He lives in Paris.", {f"He lives in {n}." for n in meaning._PLACES} - {"He lives in Paris."}),
        ("name", "Paris is old.", {"Paris is old."}),
    ],
)
def test_a_flip_changes_one_thing(name, text, allowed):
    drawn = {FLIPS[name](text, random.Random(seed)) for seed in range(60)}
    assert drawn <= allowed and drawn


def test_synonyms_and_antonyms_are_of_the_word_sets():
    drawn = {meaning.synonym("A great idea", random.Random(seed), WORD_SETS) for seed in range(40)}
    assert drawn == {"A grand idea", "A big idea", "A great thought"}
    assert meaning.antonym("A great idea", random.Random(0), WORD_SETS) == "A small idea"
    assert meaning.antonym("none here", random.Random(0), WORD_SETS) == "none here"


def test_proposals_depend_on_seed_epoch_row_and_number_alone():
    base = proposer().of(3, (TEXT,), 1)
    assert base == proposer().of(3, (TEXT,), 1) == pickle.loads(pickle.dumps(proposer())).of(3, (TEXT,), 1)
    assert base == proposer(num_proposals=8).of(3, (TEXT,), 1)[:4]
    others = [proposer(seed=1).of(3, (TEXT,), 1), proposer().of(4, (TEXT,), 1), proposer().of(3, (TEXT,), 2)]
    others.append(proposer(side="flip").of(3, (TEXT,), 1))
    assert all(other != base for other in others) and len({texts for texts in base}) == 4


@pytest.mark.parametrize(
    "names, digest",
    [
        (["typos"], "50c32f0a88bf17fe"),
        (["typos", "looks", "spaces", "synonyms"], "23754a7bbedf6484"),
        (["case", "split", f"{__name__}:shout"], "2b2f2c409a72035e"),
        (["flips"], "b719eb3fa0ef15ba"),
    ],
)
def test_draws_stay_what_they_were(names, digest):
    """A run that goes on with a later version of the code sees the same copies: digests of what is drawn."""
    drawn, texts = [], [TEXT, *(text for text in HOSTILE if len(text) < 1000)]
    of_pairs = [(text,) for text in texts] + list(zip(texts, texts[1:]))
    for options in ({}, {"min_letters": 1, "word_share": (0.0, 1.0), "protected": ("idea",)}, {"seed": 3}):
        made = proposer(names, **options)
        drawn += [made.of(row, texts, row % 2) for row, texts in enumerate(of_pairs)]
        if made.edits.of_words:
            drawn += [made.every_word(row, texts, row % 2) for row, texts in enumerate(of_pairs)]
    assert hashlib.blake2b(repr(drawn).encode(), digest_size=8).hexdigest() == digest


@given(lowest=st.floats(0, 1), more=st.floats(0, 1), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_the_share_of_words_is_within_its_bounds(lowest, more, seed):
    highest = lowest + (1 - lowest) * more
    text = "these words have letters enough alone " * 3
    for (edited,) in proposer(["drop"], word_share=(lowest, highest), seed=seed).of(0, (text,), 0):
        changed = sum(a != b for a, b in zip(text.split(), edited.split(), strict=True))
        assert max(1, round(lowest * 18)) <= changed <= max(1, round(highest * 18))


def test_a_word_that_no_edit_changes_gives_way_to_another():
    texts = ("nothing else here but this great ending",)
    drawn = proposer(["synonyms"], word_share=(0.0, 0.0), num_proposals=20).of(0, texts, 0)
    assert {new for (new,) in drawn} == {texts[0].replace("great", other) for other in ("grand", "big")}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_proposals_for_hostile_text_are_texts_or_none(text):
    for names in (["typos", "looks", "spaces", "synonyms"], ["flips"]):
        for drawn in proposer(names, word_share=(0.0, 1.0), min_letters=1).of(0, (text,), 0):
            assert drawn is None or (drawn != (text,) and drawn[0].strip())


def test_what_is_protected_stays():
    text = "See http://words.org/page, mail someone@words.org <strong>bold</strong> &nbsp; @person #topic 1990s keep"
    for (edited,) in proposer(word_share=(1.0, 1.0), protected=("keep",), num_proposals=20).of(0, (text,), 0):
        for piece in (
            "http://words.org/page,",
            "someone@words.org",
            "<strong>",
            "&nbsp;",
            "@person",
            "#topic",
            "1990s",
        ):
            assert piece in edited
        assert edited.endswith("keep") and edited != text
    assert proposer(protected=(".+",)).of(0, (TEXT,), 0) == [None] * 4


def test_a_pair_is_edited_as_one_text():
    pair = ("first words here", "second words here")
    drawn = proposer(word_share=(0.0, 0.0), num_proposals=30).of(0, pair, 0)
    assert {sum(a != b for a, b in zip(pair, texts)) for texts in drawn} == {1}
    assert {0, 1} == {i for texts in drawn for i in (0, 1) if texts[i] != pair[i]}
    flipped = proposer(["negation"], num_proposals=4).of(0, ("no verb", "it is so"), 0)
    assert flipped == [("no verb", "it is not so")] * 4


def shout(text, generator):
    return text.upper()


def test_edits_of_ones_own():
    edits = [f"{__name__}:shout"]
    check_edits(edits, "perturbation.text.edits")
    assert proposer(edits, num_proposals=2).of(0, ("soft",), 0) == [("SOFT",)] * 2
    mixed = {texts[0] for texts in proposer(["drop", *edits], num_proposals=40).of(0, ("softly",), 0)}
    assert "SOFTLY" in mixed and len(mixed) > 3


@pytest.mark.parametrize(
    "names, keeps_meaning, part",
    [
        (["swop"], True, "'swop' is no edit of this kind; expected typos, looks, spaces, swap"),
        (["antonym"], True, "'antonym' is no edit"),
        (["typos"], False, "expected flips, antonym, negation, number, name"),
    ],
)
def test_a_wrong_name_is_one_line(names, keeps_meaning, part):
    with pytest.raises(UserError) as error:
        check_edits(names, "perturbation.text.edits", keeps_meaning)
    assert part in str(error.value) and "\n" not in str(error.value)


def test_edits_that_need_word_sets_say_so():
    with pytest.raises(UserError, match="synonyms needs data.word_sets"):
        make_edits(["synonyms"], "perturbation.text.edits")
    with pytest.raises(UserError, match="no_such_module:f' does not import"):
        make_edits(["no_such_module:f"], "perturbation.text.edits")


def test_groups_are_spelt_out_once():
    assert expanded(["typos", "swap", "case"]) == [*GROUPS["typos"], "case"]
