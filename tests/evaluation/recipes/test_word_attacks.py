"""BAT's attacks on words, against a victim that is written out, and what negation makes of a sentence."""

import itertools

import numpy as np
import pytest
import torch

from fastadv.config.text_attack import REMAIN, UNTARGETED
from fastadv.data.variants.word_sets import WordSets
from fastadv.evaluation.recipes.word_attacks import AntonymAttack, NegationAttack, SynonymAttack, negated
from fastadv.evaluation.text.search import TextSearch

SETS = WordSets(
    {"good": ["fine", "nice"], "film": ["movie"], "plot": ["story", "tale"]},
    {"good": ["bad", "evil"], "slow": ["fast"], "love": ["hate"]},
)


class WordSum:
    """Four classes; each word adds its own logits, whatever lies around it."""

    names = ("w", "x", "y", "z")

    def __init__(self, **logits):
        self.logits, self.asked = logits, []

    def __call__(self, texts):
        self.asked += texts
        joined = [text if isinstance(text, str) else " ".join(text) for text in texts]
        sums = [
            np.sum([self.logits.get(word, [0] * 4) for word in text.lower().split()] or [[0] * 4], axis=0)
            for text in joined
        ]
        return torch.softmax(torch.tensor(np.array(sums), dtype=torch.float64), dim=1)


def run(kind, victim, texts, label=0, sets=SETS, **more):
    search = TextSearch(texts, label, **more)
    (kind(victim, sets) if kind is not NegationAttack else kind(victim))(search)
    assert search.num_queries == len(victim.asked)
    return search


def test_synonyms_are_taken_word_by_word_while_they_help():
    victim = WordSum(good=[3, 0, 0, 0], fine=[1, 0, 0, 0], nice=[0, 0, 0.1, 0], film=[1, 0, 0, 0], movie=[0, 0, 0.5, 0])
    search = run(SynonymAttack, victim, ("Good film but plot .",))
    # good matters most and nice takes more than fine; with it the film's synonym does the rest.
    assert search.found == ("Nice movie but plot .",)
    assert search.after.argmax() == 2 and search.before.argmax() == 0
    # The text, each of three words put out, two for good, one for film.
    assert victim.asked[1:4] == ["film but plot .", "Good but plot .", "Good film but ."]
    assert search.num_queries == 1 + 3 + 2 + 1


def test_a_synonym_that_does_not_help_is_not_kept():
    victim = WordSum(good=[3, 0, 0, 0], fine=[4, 0, 0, 0], nice=[5, 0, 0, 0], film=[0.1, 0, 0, 0], movie=[0, 0, 9, 0])
    assert run(SynonymAttack, victim, ("good film",)).found == ("good movie",)


def test_synonyms_reach_both_texts_of_a_pair():
    victim = WordSum(good=[2, 0, 0, 0], nice=[0, 1, 0, 0], film=[2, 0, 0, 0], movie=[0, 1, 0, 0])
    assert run(SynonymAttack, victim, ("the film", "a GOOD one")).found == ("the movie", "a NICE one")


def test_greedy_search_finds_what_all_combinations_find_where_words_add_up():
    rng = np.random.default_rng(0)
    words = ("good", "fine", "nice", "film", "movie", "plot", "story", "tale")
    found = 0
    for _ in range(200):
        victim = WordSum(**{word: rng.normal(size=4).round(2) for word in words})
        text = "good film plot"
        label = int(victim([text]).argmax())
        victim.asked.clear()
        every = [
            " ".join(c)
            for c in itertools.product(("good", "fine", "nice"), ("film", "movie"), ("plot", "story", "tale"))
        ]
        exists = bool((WordSum(**victim.logits)(every).argmax(dim=1) != label).any())
        search = run(SynonymAttack, victim, (text,), label)
        if search.found is not None:
            found += 1
            assert exists and int(victim([search.found[0]]).argmax()) != label
            assert search.found[0] in every
    assert found > 50


def test_an_antonym_succeeds_where_the_prediction_remains():
    victim = WordSum(good=[3, 0, 0, 0], bad=[0, 3, 0, 0], evil=[0, 0, 3, 0], slow=[0.5, 0, 0, 0], fast=[0.6, 0, 0, 0])
    search = run(AntonymAttack, victim, ("slow and Good",), goal=REMAIN)
    # good is asked first and moves the prediction; slow's antonym does not.
    assert search.found == ("fast and Good",) and search.after.argmax() == 0
    assert victim.asked[3:] == ["slow and Bad", "slow and Evil", "fast and Good"]


def test_of_several_antonyms_that_remain_the_surest_is_found():
    victim = WordSum(good=[3, 0, 0, 0], bad=[1, 0, 0, 0], evil=[2, 0, 0, 0])
    assert run(AntonymAttack, victim, ("good",), goal=REMAIN).found == ("evil",)


def test_antonyms_for_another_prediction_are_the_other_way_round():
    victim = WordSum(good=[3, 0, 0, 0], bad=[0, 3, 0, 0], evil=[0, 0, 4, 0])
    assert run(AntonymAttack, victim, ("good",), goal=UNTARGETED).found == ("evil",)
    assert run(AntonymAttack, WordSum(good=[3, 0, 0, 0], bad=[1, 0, 0, 0], evil=[2, 0, 0, 0]), ("good",)).found is None


@pytest.mark.parametrize("part", [0, 1])
def test_only_one_word_of_one_text_changes(part):
    texts = ("love it", "slow film")
    victim = WordSum(love=[2, 0, 0, 0], slow=[2, 0, 0, 0], hate=[-9 * part, 0, 0, 0], fast=[-9 * (1 - part), 0, 0, 0])
    search = run(AntonymAttack, victim, texts, goal=REMAIN)
    assert search.found == (("hate it", texts[1]), (texts[0], "fast film"))[part]


@pytest.mark.parametrize("kind", [SynonymAttack, AntonymAttack, NegationAttack])
def test_what_is_wrong_before_is_not_attacked(kind):
    victim = WordSum(good=[0, 3, 0, 0])
    search = run(kind, victim, ("good film is not it",))
    assert not search.is_right_before and search.num_queries == 1 and search.found is None


@pytest.mark.parametrize("kind", [SynonymAttack, AntonymAttack, NegationAttack])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_no_query_is_asked_beyond_the_limit(kind, limit):
    victim = WordSum(good=[9, 0, 0, 0])
    text = "good film plot love slow is not it can be ; was it ? will it ? has it ?"
    search = run(kind, victim, (text,), max_queries=limit)
    assert search.num_queries == limit and search.is_over and search.found is None
    free = run(kind, WordSum(good=[9, 0, 0, 0]), (text,))
    assert not free.is_over


@pytest.mark.parametrize("kind", [SynonymAttack, AntonymAttack, NegationAttack])
@pytest.mark.parametrize("text", ["", " ", "...", "🙂", "\x00", "q", "42"])
def test_a_text_without_a_word_to_change_is_asked_once(kind, text):
    victim = WordSum(**{"q": [1, 0, 0, 0]})
    search = run(kind, victim, (text,), goal=REMAIN if kind is not SynonymAttack else UNTARGETED)
    assert search.found is None and search.num_queries == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I can do it", ["I can't do it"]),
        ("I am not going", ["I am going"]),
        ("It isn't good.", ["It is good."]),
        ("They WON'T come", ["They WILL come"]),
        ("Is it good?", ["Isn't it good?"]),
        ("You may never go , or you might", ["You may go , or you might", "You may never go , or you might not"]),
        ("a dull film", []),
        ("He cannot see", ["He can see"]),
        ("Not bad", ["bad"]),
    ],
)
def test_a_negation_comes_or_goes(text, expected):
    assert negated(text) == expected


def test_negation_takes_one_text_of_a_pair_and_the_surest_success():
    victim = WordSum(**{"is": [3, 0, 0, 0], "isn't": [1, 0, 0, 0], "was": [4, 0, 0, 0], "wasn't": [3, 0, 0, 0]})
    search = run(NegationAttack, victim, ("it is so", "it was so"), goal=REMAIN)
    assert search.found == ("it is so", "it wasn't so")
    assert victim.asked[1:] == [("it isn't so", "it was so"), ("it is so", "it wasn't so")]
