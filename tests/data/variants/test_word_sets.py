"""Word sets: what a file may hold, what a word is, and that a replaced word changes nothing else."""

import json
import pickle
import random

import pytest

from fastadv.data.variants.word_sets import FORMAT, WordSets, replaced, words_of
from fastadv.errors import UserError

TEXTS = (
    "It's a well-made film -- don't miss it!",
    "“Rock ’n’ roll,” said O’Brien; mid-90s b2b 3D stuff, 1,000 of it_all.",
    "naïve cafe\u0301s, Ünïcödé\tand\r\nline ends \x00 \u200b 🙂🙂 一二 x",
    "'quoted' --dashes-- trailing- -leading ''' - ' don''t",
    "",
    "...",
)


def write(path, **content):
    path.write_text(json.dumps({"format": FORMAT, "synonyms": {}, "antonyms": {}, **content}), encoding="utf-8")
    return path


def test_a_saved_file_loads_as_it_was_in_the_order_of_each_list(tmp_path):
    sets = WordSets({"good": ["fine", "decent", "great"], "naïve": []}, {"don't": ["do"]}, {"vectors": "some"})
    sets.save(tmp_path / "sets.json")
    loaded = WordSets.load(tmp_path / "sets.json")
    assert loaded == sets and list(loaded.synonyms["good"]) == ["fine", "decent", "great"]
    assert loaded.source == {"vectors": "some"} and pickle.loads(pickle.dumps(loaded)) == sets
    first = (tmp_path / "sets.json").read_bytes()
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == first
    assert json.loads(first)["antonyms"] == {"don't": ["do"]}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_follows_its_byte_order_mark(tmp_path, encoding):
    path = write(tmp_path / "sets.json", synonyms={"naïve": ["simple"]})
    path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)
    assert WordSets.load(path).synonyms == {"naïve": ("simple",)}


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "found None"),
        ('{"synonyms": {}, "antonyms": {}}', "found None"),
        ('{"format": "fastadv word sets 2", "synonyms": {}, "antonyms": {}}', "fastadv word sets 2"),
        (dict(synonyms=[]), "expected 'synonyms' to map words"),
        (dict(antonyms=None), "expected 'antonyms' to map words"),
        (dict(synonyms={"good": "fine"}), "synonyms of 'good': expected a list of words, found 'fine'"),
        (dict(antonyms={"good": ["bad", 3]}), "antonyms of 'good': expected words in lower case, found 3"),
        (dict(antonyms={"Good": ["bad"]}), "expected words in lower case, found 'Good'"),
        (dict(synonyms={"good": [" "]}), "expected words in lower case, found ' '"),
        (dict(source="here"), "found 'here'"),
    ],
)
def test_a_file_that_is_no_word_sets_ends_in_one_line_that_names_it(tmp_path, content, message):
    path = tmp_path / "sets.json"
    if isinstance(content, dict):
        write(path, **content)
    else:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        WordSets.load(path)
    assert message in str(raised.value) and "sets.json" in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_file_a_folder_and_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "latin").write_bytes(b'{"format": "\xe9"}')
    for name, message in (("none.json", "No such file"), (".", "Is a directory"), ("latin", "not JSON in UTF-8")):
        with pytest.raises(UserError, match=message):
            WordSets.load(tmp_path / name)


def test_words_are_what_people_see_as_words():
    assert [word.text for word in words_of(TEXTS[0])] == ["It's", "a", "well-made", "film", "don't", "miss", "it"]
    assert [word.text for word in words_of(TEXTS[1])] == [
        *("Rock", "n", "roll", "said", "O’Brien", "stuff", "of", "it", "all")
    ]
    assert [word.text for word in words_of(TEXTS[2])] == [
        *("naïve", "cafe\u0301s", "Ünïcödé", "and", "line", "ends", "一二", "x")
    ]
    assert [word.text for word in words_of(TEXTS[3])] == ["quoted", "dashes", "trailing", "leading", "don", "t"]
    assert words_of(TEXTS[4]) == words_of(TEXTS[5]) == words_of("½ 3.14 ² 90s") == []
    assert [word.key for word in words_of("DON’T Well‑Made")] == ["don't", "well-made"]
    for text in TEXTS:
        assert all(text[word.start : word.end] == word.text for word in words_of(text))


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("Good", "fine", "Fine"),
        ("GOOD", "fine", "FINE"),
        ("good", "fine", "fine"),
        ("I", "you", "You"),
        ("A", "an", "An"),
        ("O'", "of", "Of"),
        ("iPhone", "phone", "phone"),
        ("McDonald", "smith", "Smith"),
        ("WELL-MADE", "well-built", "WELL-BUILT"),
        ("good", "French", "French"),
    ],
)
def test_capitals_of_the_replaced_word_survive(old, new, expected):
    assert replaced(f"<{old}>", {0: new}).startswith(f"<{expected}")


def test_everything_between_words_is_kept_bit_for_bit():
    draw = random.Random(0)
    for text in TEXTS:
        words = words_of(text)
        assert replaced(text, {}) == text
        assert replaced(text, {index: word.text for index, word in enumerate(words)}) == text
        for _ in range(20):
            chosen = {index: "zyx" for index in reversed(range(len(words))) if draw.random() < 0.5}
            result = replaced(text, chosen)
            kept = [text[a:b] for a, b in zip([0, *(w.end for w in words)], [*(w.start for w in words), len(text)])]
            expected = "".join(
                part
                for index, gap in enumerate(kept)
                for part in (gap, *([_word(words, index, chosen)] if index < len(words) else []))
            )
            assert result == expected


def _word(words, index, chosen):
    old = words[index].text
    if index not in chosen:
        return old
    letters = [character for character in old if character.isalpha()]
    if len(letters) > 1 and all(character.isupper() for character in letters):
        return "ZYX"
    return "Zyx" if old[0].isupper() else "zyx"


def test_an_index_that_is_no_words_is_an_error():
    for index in (-1, 2):
        with pytest.raises(IndexError, match="of a text with 2 words"):
            replaced("two words", {index: "x"})


def test_long_texts_without_end_take_no_long_time_to_split():
    # Squared time would take minutes here, and the test's own time limit says so.
    for piece in ("a", "a-", "e\u0301", "-", "'", "\u0301", "1a"):
        words_of(piece * 200_000)
