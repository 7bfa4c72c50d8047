"""Word sets from vectors made by hand and a WordNet in miniature, and the command that makes them."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("nltk")

from fastadv.cli.main import main
from fastadv.config.commands import WordSetSettings
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.resources.attack_data import prepare
from fastadv.evaluation.resources.counter_fitting import CounterFitting
from fastadv.evaluation.resources.word_sets_build import (
    build_word_sets,
    choose_words,
    fit_to_wordnet,
    overlap,
    read_plain_sets,
    sample_lines,
)
from fastadv.evaluation.resources.word_vectors import WordVectors
from fastadv.evaluation.resources.wordnet import Lexicon, open_wordnet
from tests.evaluation.packages import write_packages

WORDS = ("dog", "dogs", "film", "movie", "films", "rise", "climb", "fall", "good", "bad", "fine", "gain", "loss")
OTHERS = ("the", "Film", "x", "3d", "obama", "don't", "climb's")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wordnet")
    prepare(folder / "attack-data", write_packages(folder / "packages"))
    return folder / "attack-data"


@pytest.fixture(scope="module")
def wordnet(data_dir):
    return open_wordnet(data_dir)


@pytest.fixture(scope="module")
def vectors():
    """Antonyms nearly in one place, as plain vectors have them; the rest at random."""
    drawn = np.random.default_rng(5).standard_normal((len(WORDS), 6))
    for word, other in (("bad", "good"), ("fall", "rise"), ("loss", "gain"), ("movie", "film")):
        drawn[WORDS.index(word)] = drawn[WORDS.index(other)] + 0.1 * drawn[WORDS.index(word)]
    return WordVectors(WORDS, drawn.astype(np.float32))


def test_words_are_chosen_by_their_looks_and_by_wordnet(wordnet, vectors):
    mixed = [word for pair in zip(WORDS, (*OTHERS, *(f"z{i}" for i in range(9)))) for word in pair]
    given = WordVectors(tuple(mixed), np.ones((len(mixed), 2), np.float32))

    def chosen(max_words):
        return choose_words(given, lambda words: Lexicon(wordnet, words), max_words)

    assert chosen(100) == list(WORDS) and chosen(3) == list(WORDS[:3])
    with pytest.raises(UserError, match="WordNet knows 0 of the 2 words"):
        unknown = WordVectors(("obama", "zz"), np.ones((2, 2), np.float32))
        choose_words(unknown, lambda words: Lexicon(wordnet, words), 5)


@pytest.mark.parametrize("min_cosine, num_neighbours, num_components", [(0.2, 3, 2), (-1, 100, 0), (0.8, 100, 1)])
def test_synonyms_are_the_neighbours_in_the_space_less_its_common_parts(
    wordnet, vectors, min_cosine, num_neighbours, num_components
):
    settings = WordSetSettings(num_neighbours, min_cosine, num_components)
    lexicon = Lexicon(wordnet, WORDS)
    sets = build_word_sets(vectors, lexicon, settings, {"vectors": "by hand"})
    centred = vectors.vectors.astype(np.float64) - vectors.vectors.mean(axis=0)
    u, s, vt = np.linalg.svd(centred, full_matrices=False)
    left = (u[:, num_components:] * s[num_components:]) @ vt[num_components:]
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    for row, word in enumerate(WORDS):
        cosines = left @ left[row]
        near = [WORDS[i] for i in np.argsort(-cosines) if i != row and cosines[i] >= min_cosine][:num_neighbours]
        expected = [other for other in near if other not in lexicon.antonyms(word)]
        assert list(sets.synonyms.get(word, [])) == expected
    assert dict(sets.antonyms) == {word: (lexicon.antonyms(word)[0],) for word in sets.antonyms}
    assert set(sets.antonyms) == {"rise", "fall", "good", "bad", "gain", "loss"}
    assert sets.source["vectors"] == "by hand" and sets.source["min_cosine"] == min_cosine


def test_fitting_parts_antonyms_and_brings_synonyms_that_are_near_enough(wordnet, vectors):
    sets, fitting = WordSetSettings(num_components=0, min_pair_cosine=-1), CounterFitting(num_steps=150)
    fitted = fit_to_wordnet(vectors, Lexicon(wordnet, WORDS), sets, fitting)

    def cosine(of, first, second):
        return float(of.directions[WORDS.index(first)] @ of.directions[WORDS.index(second)])

    for pair in (("good", "bad"), ("rise", "fall"), ("gain", "loss")):
        assert cosine(vectors, *pair) > 0.9 > 0.2 > cosine(fitted, *pair)
    for pair in (("film", "movie"), ("dog", "dogs"), ("rise", "climb"), ("good", "fine")):
        assert cosine(fitted, *pair) > 0.8
    far = fit_to_wordnet(
        vectors, Lexicon(wordnet, WORDS), WordSetSettings(num_components=0, min_pair_cosine=0.9), fitting
    )
    assert cosine(vectors, "rise", "climb") < 0.9 and cosine(far, "rise", "climb") < 0.8
    assert cosine(far, "film", "movie") > 0.8


def test_overlap_counts_members_of_both_vocabularies():
    ours = {"a": ["b", "c", "ours"], "b": ["a"], "mine": ["a"]}
    theirs = {"a": ["a", "b", "theirs", "d"], "d": ["a", "c"], "theirs": ["c"], "c": []}
    # Ours have a, b, c, mine, ours; theirs a, b, c, d, theirs. Words of theirs that we have: a, c.
    # a: ours {b, c} of their words, theirs {b} of ours; c: none and none.
    assert overlap(ours, theirs) == (2, 0.5, 1.0, 1.0, 0.5)
    assert overlap(ours, ours)[1:3] == (1.0, 1.0)
    nothing = overlap({}, theirs)
    assert nothing.num_words == 0 and all(math.isnan(value) for value in nothing[1:])


def test_sets_to_compare_with_are_checked(tmp_path):
    (tmp_path / "s.json").write_text('{"good": ["fine"]}')
    assert dict(read_plain_sets(tmp_path / "s.json")) == {"good": ("fine",)}
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "torn.json").write_text("{")
    for name, message in (("list", "map words to lists"), ("torn", "not JSON"), ("none", "No such file")):
        with pytest.raises(UserError, match=message):
            read_plain_sets(tmp_path / f"{name}.json")


def test_a_sample_can_be_read():
    sets = WordSets({"good": ["fine", "great", "nice"]}, {"good": ["bad"]})
    assert sample_lines(sets, ["good", "film"], 2) == ["good: fine, great | not: bad", "film: none | not: none"]


def test_the_command_makes_sets_and_vectors_that_recipes_read(data_dir, vectors, tmp_path, capsys, monkeypatch):
    vectors.save(tmp_path / "v.npz")
    (tmp_path / "s.json").write_text('{"film": ["movie", "films"]}')
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(data_dir))
    out, made = tmp_path / "sets.json", tmp_path / "fitted.npz"
    options = ["--out", str(out), "--vectors_out", str(made), "--compare", str(tmp_path / "s.json")]
    command = ["word-sets", "--vectors", str(tmp_path / "v.npz"), "--num_components", "1", *options]
    assert main([*command, "--dry_run"]) == 0
    assert "would make word sets of" in capsys.readouterr().out and not out.exists()
    assert main([*command, "--counter_fit", "--min_cosine", "0.6"]) == 0
    said = capsys.readouterr().out
    assert "13 words of 13, 6 numbers each" in said and "beside the sets given, over" in said
    assert "good: " in said and "| not: bad" in said
    sets, space = WordSets.load(out), WordVectors.load(made)
    assert "movie" in sets.synonyms["film"] and "bad" not in sets.synonyms.get("good", ())
    assert sets.source["counter_fitting"]["num_steps"] == CounterFitting().num_steps
    assert json.loads(out.read_text())["source"]["min_cosine"] == 0.6
    # The vectors written are of the space that the sets are neighbours in.
    cosines = space.directions @ space.directions[space.index["film"]]
    near = {word for word, cosine in zip(space.words, cosines) if cosine >= 0.6 and word != "film"}
    assert near == set(sets.synonyms["film"])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--out", "sets.txt"], "ends in .json"),
        (["--vectors_out", "v.txt"], "--vectors_out 'v.txt': expected a file that ends in .npz"),
        (["--min_cosine", "1.5"], "--min_cosine 1.5: expected a cosine"),
        (["--num_neighbours", "0"], "--num_neighbours"),
        (["--compare", "none.json"], "--compare 'none.json': No such file"),
        (["--vectors", "none.npz"], "word vectors 'none.npz': No such file"),
        (["--attack_data", "nowhere"], "there are no attack data at 'nowhere'"),
    ],
)
def test_mistakes_end_in_one_line(data_dir, vectors, tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    vectors.save("v.npz")
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(data_dir))
    assert main(["word-sets", "--vectors", "v.npz", "--out", "sets.json", *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
