"""What the lexicon takes from a WordNet in miniature, read by NLTK."""

import pytest

pytest.importorskip("nltk")

from fastadv.errors import UserError
from fastadv.evaluation.resources.attack_data import prepare
from fastadv.evaluation.resources.wordnet import Lexicon, open_wordnet, pair_rows
from tests.evaluation.packages import write_packages

WORDS = (
    *("dog", "hound", "dogs", "hounds", "film", "films", "movie", "movies", "filmed"),
    *("rise", "rises", "rose", "climb", "climbs", "climbed", "fall", "falls", "fell", "falling"),
    *("good", "bad", "fine", "better", "gooder", "gain", "gains", "loss", "unheard"),
)


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wordnet")
    prepare(folder / "attack-data", write_packages(folder / "packages"))
    return open_wordnet(folder / "attack-data")


def test_words_are_known_by_their_lemma(wordnet):
    lexicon = Lexicon(wordnet, WORDS)
    # WordNet has no verb "film" here, and takes any -er for a comparative.
    assert [word for word in WORDS if not lexicon.knows(word)] == ["filmed", "better", "gooder", "unheard"]
    assert not lexicon.knows("loses") and not lexicon.knows("well")


def test_synonyms_are_forms_and_the_same_forms_of_synset_mates(wordnet):
    pairs = Lexicon(wordnet, WORDS).synonym_pairs()
    forms = {
        # WordNet's list of exceptions says here that "hounds" is a form of "dog".
        *(
            ("dog", "dogs"),
            ("dog", "hounds"),
            ("dogs", "hounds"),
            ("film", "films"),
            ("movie", "movies"),
            ("gain", "gains"),
        ),
        *(("rise", "rises"), ("rise", "rose"), ("rises", "rose")),
        *(("climb", "climbs"), ("climb", "climbed"), ("climbed", "climbs")),
        *(("fall", "falls"), ("fall", "fell"), ("falls", "fell"), ("fall", "falling"), ("falling", "falls")),
        ("falling", "fell"),
    }
    mates = {("dog", "hound"), ("film", "movie"), ("films", "movies"), ("climb", "rise")}
    mates |= {("climbs", "rises"), ("fine", "good")}
    assert pairs == forms | mates


def test_antonyms_come_in_the_words_own_form(wordnet):
    lexicon = Lexicon(wordnet, WORDS)
    expected = {
        "rise": ["fall"],
        "rises": ["falls"],
        "rose": ["fell"],
        "fall": ["rise"],
        "falls": ["rises"],
        "fell": ["rose"],
        # "rising" is not among the words: the lemma is better than none.
        "falling": ["rise"],
        "good": ["bad"],
        "bad": ["good"],
        "gain": ["loss"],
        "gains": ["loss"],
        "loss": ["gain"],
        "climb": [],
        "fine": [],
        "unheard": [],
    }
    assert {word: lexicon.antonyms(word) for word in expected} == expected
    assert Lexicon(wordnet, ("good",)).antonyms("good") == []


def test_pairs_become_rows_in_order():
    assert pair_rows({("b", "c"), ("a", "c")}, {"a": 4, "b": 0, "c": 1}) == [(0, 1), (4, 1)]


def test_a_folder_without_data_is_said(tmp_path):
    with pytest.raises(UserError, match="there are no attack data"):
        open_wordnet(tmp_path)
