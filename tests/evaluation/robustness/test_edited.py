"""Copies of sentences: drawn by the seed, the sentence's number, the edit and its strength, and by nothing else."""

import re

import pytest

from fastadv.config.robustness import RobustnessSettings
from fastadv.data.edits.kinds import GROUPS
from fastadv.data.edits.proposals import pieces_of
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.robustness.edited import Copy, RobustnessData, Variant, copies_of

SENTENCES = [
    f"The {adjective} film number {number} was not shown in Paris although many people wanted another ending"
    for number in range(12)
    for adjective in ("great", "dull", "wonderful", "sad")
]
OWN = """
def shout(text, generator):
    return text.upper() + "!" * int(1 + 3 * generator.random())

def nothing(text, generator):
    return text

def broken(text, generator):
    raise ValueError("no good")

def number(text, generator):
    return 7

def blank(text, generator):
    return " "
"""


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return str(path)


@pytest.fixture
def word_sets(tmp_path):
    path = tmp_path / "sets.json"
    WordSets({"people": ["persons"], "great": ["grand"]}, {"great": ["small"]}).save(path)
    return str(path)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_edits_of_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: f"my_edits_of_tests:{name}"


def drawn(texts, seed=0, **options):
    data = RobustnessData.read(RobustnessSettings(texts=texts, seed=seed, **options))
    return data, data.draw(seed).copies


def test_a_copy_depends_on_seed_number_edit_and_strength_alone(texts, word_sets):
    few, of_few = drawn(texts, num_sentences=16, edits=("typos",), shares=(0.3,), flips=("number",))
    many, of_many = drawn(texts, num_sentences=40, edits=("looks", "synonyms", "typos"), word_sets=word_sets)
    assert many.sentences[:16] == few.sentences
    for variant in (Variant("typos"), Variant("typos", 0.3), Variant("swap", is_named=False)):
        assert of_few[variant] == of_many[variant][:16]
    assert of_few[Variant("number", is_kept=False)] == of_many[Variant("number", is_kept=False)][:16]
    assert drawn(texts, num_sentences=16, edits=("typos",))[1][Variant("typos")] == of_few[Variant("typos")]
    # Other sentences before it, another seed and another strength change a copy's draw.
    edits = few.edits["typos"]
    again = copies_of([SENTENCES[0], SENTENCES[5]], Variant("typos"), edits, 0)
    assert again[1] == copies_of(["anything else", SENTENCES[5]], Variant("typos"), edits, 0)[1]
    assert again[1] != copies_of([SENTENCES[5]], Variant("typos"), edits, 0)[0]
    assert again != copies_of([SENTENCES[0], SENTENCES[5]], Variant("typos"), edits, 1)


@pytest.mark.parametrize("edit", ["typos", "swap", "drop", "insert", "neighbour", "double", "lookalike"])
@pytest.mark.parametrize("share", [None, 0.1, 0.3, 1.0])
def test_as_many_words_are_edited_as_the_strength_says(texts, edit, share):
    data, copies = drawn(texts, edits=(edit,), shares=(share or 0.5,))
    for sentence, copy in zip(data.sentences, copies[Variant(edit, share)], strict=True):
        old, new = sentence.split(), copy.text.split()
        num_words = sum(len(word) >= 4 for word in old)
        assert num_words == len(pieces_of(sentence)) // 2
        wanted = 1 if share is None else max(1, round(share * num_words))
        assert copy.num_changes == sum(a != b for a, b in zip(old, new, strict=True)) == wanted


def test_words_without_a_place_for_the_edit_are_passed_over(texts, word_sets):
    data, copies = drawn(texts, edits=("synonyms",), word_sets=word_sets, shares=(1.0,))
    changed = {"people": "persons", "great": "grand"}
    for share, most in ((None, 1), (1.0, 2)):
        for sentence, copy in zip(data.sentences, copies[Variant("synonyms", share)]):
            possible = [word for word in changed if word in sentence]
            assert copy.num_changes == min(most, len(possible))
            assert copy.text in {
                re.sub("|".join(some), lambda found: changed[found[0]], sentence)
                for some in (possible[:1], possible[1:], possible)
                if some
            }


def test_a_sentence_without_a_place_has_no_copy(own, texts, word_sets):
    data, copies = drawn(
        texts, edits=("typos", "synonyms", own("nothing"), own("blank")), flips=("antonym", "name"), word_sets=word_sets
    )
    hostile = ["12 345", "", "a an it", "你好世界", "https://a.example/path", "👍🏽"]
    for edit in ("typos", "swap", "synonyms", "antonym", "name"):
        assert copies_of(hostile, Variant(edit, 0.5), data.edits[edit], 0) == [None] * len(hostile)
    assert set(copies[Variant(own("nothing"))]) == set(copies[Variant(own("blank"))]) == {None}
    flipped = copies[Variant("antonym", is_kept=False)]
    assert [copy is not None for copy in flipped] == ["great" in sentence for sentence in data.sentences]
    assert Copy("The small film", 1) == copies_of(["The great film"], Variant("antonym"), data.edits["antonym"], 0)[0]


def test_a_group_is_followed_by_its_edits_at_one_word(texts):
    data, _ = drawn(texts, edits=("swap", "typos"), shares=(0.5, 0.2), flips=("negation",))
    members = [name for name in GROUPS["typos"] if name != "swap"]
    assert data.variants == (
        *(Variant(name, share) for name in ("swap", "typos") for share in (None, 0.2, 0.5)),
        *(Variant(name, is_named=False) for name in members),
        Variant("negation", is_kept=False),
    )
    assert [variant.words for variant in data.variants[:3]] == ["one word", "20 %", "50 %"]
    assert data.variants[-1].words == "one change" and data.flips == [data.variants[-1]]


def test_a_function_of_ones_own_is_one_change_of_the_text(own, texts):
    data, copies = drawn(texts, edits=(own("shout"),), num_sentences=16)
    assert [variant for variant in data.variants if variant.is_kept] == [Variant(own("shout"))]
    for sentence, copy in zip(data.sentences, copies[Variant(own("shout"))]):
        assert copy.num_changes == 1 and copy.text.rstrip("!") == sentence.upper()
    for name, words in (("broken", "ValueError: no good"), ("number", "gave int")):
        with pytest.raises(UserError, match=words):
            drawn(texts, edits=(own(name),))


def test_sentences_that_differ_by_case_and_spaces_count_once(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(f"{t.upper()}\n{t}  \n{t.replace(' ', '  ')}" for t in SENTENCES[:17]))
    data, _ = drawn(str(path))
    assert data.num_available == len(data.sentences) == 17
    assert {sentence.lower() for sentence in data.sentences} == {sentence.lower() for sentence in SENTENCES[:17]}


@pytest.mark.parametrize(
    "options,words",
    [
        ({"edits": ("typo",)}, ["--edits", "'typo'", "typos"]),
        ({"edits": ("negation",)}, ["--edits", "'negation'"]),
        ({"flips": ("swap",)}, ["--flips", "'swap'", "negation"]),
        ({"edits": ("typos", "typos")}, ["--edits", "once"]),
        ({"edits": ()}, ["--edits", "one or more"]),
        ({"edits": ("synonyms",)}, ["synonyms", "--word_sets"]),
        ({"flips": ("antonym",)}, ["antonym", "--word_sets"]),
        ({"flips": ("flips",)}, ["flips", "--word_sets"]),
        ({"edits": ("no.such:edit",)}, ["no.such"]),
        ({"edits": ("random:shuffle",), "flips": ("random:shuffle",)}, ["random:shuffle", "one of them"]),
        ({"word_sets": "no/where.json"}, ["no/where.json"]),
        ({"keyboard": "abcde"}, ["abcde", "qwerty"]),
        ({"shares": ()}, ["--shares"]),
        ({"shares": (0.0,)}, ["--shares", "0"]),
        ({"shares": (1.5,)}, ["1.5"]),
        ({"shares": (float("nan"),)}, ["nan"]),
        ({"num_sentences": 15}, ["15", "16"]),
        ({"num_pairs": 30}, ["--num_pairs", "--senteval"]),
        ({"senteval": "no/where"}, ["no/where"]),
        ({"texts": "no/where.txt"}, ["no/where.txt"]),
        ({"texts": "FEW"}, ["2 different", "16"]),
    ],
)
def test_a_mistake_is_said_in_a_line(texts, tmp_path, options, words):
    (tmp_path / "few.txt").write_text("one film\nanother film\nOne  film\n")
    given = {"texts": texts, **options}
    with pytest.raises(UserError) as error:
        drawn(given.pop("texts").replace("FEW", str(tmp_path / "few.txt")), **given)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value), error.value
