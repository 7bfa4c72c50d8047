"""Laws of checked word sets: part of speech, inflection, senses, neighbours, and an encoder's word on sentences."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("nltk")
pytest.importorskip("lemminflect")

from fastadv.cli.main import main
from fastadv.data.variants.word_sets import WordSets
from fastadv.evaluation.resources.attack_data import prepare
from fastadv.evaluation.resources.word_sets_checked import CheckedSets, Checks
from fastadv.evaluation.resources.word_usage import Form, WordUsage
from fastadv.evaluation.resources.word_vectors import WordVectors
from fastadv.evaluation.resources.wordnet import open_wordnet
from tests.evaluation.packages import write_packages

TAGS = {
    **dict.fromkeys(("film", "movie", "gain", "loss", "dog"), "NN"),
    **dict.fromkeys(("films", "movies", "dogs"), "NNS"),
    **dict.fromkeys(("rises", "climbs", "falls"), "VBZ"),
    **dict.fromkeys(("rose", "climbed", "fell"), "VBD"),
    **dict.fromkeys(("good", "bad", "fine"), "JJ"),
    **dict.fromkeys(("Rex", "Film"), "NNP"),
}
FRAMES = (
    *("a {0} is here today .", "the {0} is here today ."),
    *("many {1} were shown today .", "all the {1} were shown ."),
    *("a price {2} a lot .", "it {2} now ."),
    *("a price {3} a lot .", "it {3} then ."),
    *("the {4} dog of Rex ran .", "they are {4} ones ."),
)
FILLERS = (
    ("film", "films", "rises", "rose", "good"),
    ("movie", "movies", "climbs", "climbed", "fine"),
    ("loss", "dogs", "falls", "fell", "bad"),
    ("gain", "dogs", "falls", "fell", "bad"),
)
TEXTS = [frame.format(*filler) for filler in FILLERS for frame in FRAMES] * 8
WORDS = tuple(sorted({word for word in TAGS if word.islower()}))
EASY = Checks(min_sense_share=0.3, min_cosine=-1)


def tag(tokens):
    return [(token, TAGS.get(token, "DT")) for token in tokens]


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
    return WordVectors(WORDS, np.random.default_rng(3).standard_normal((len(WORDS), 6)).astype(np.float32))


@pytest.fixture(scope="module")
def make_sets(wordnet, vectors):
    def make(checks=EASY, texts=TEXTS, tagger=tag, function_words=()):
        return CheckedSets(wordnet, WordUsage(texts, tagger), vectors, function_words, checks)

    return make


def test_a_word_has_a_form_where_it_is_of_one_part_of_speech():
    usage = WordUsage(TEXTS, tag)
    assert usage.form("films") == Form("n", ("NNS",)) and usage.form("rose") == Form("v", ("VBD",))
    # A determiner, a name, an unknown word.
    assert usage.form("the") is usage.form("rex") is usage.form("unheard") is None

    def noun_or_verb(tokens):
        return [(token, "NN" if place % 2 else "VB") for place, token in enumerate(tokens)]

    mixed = WordUsage(["love love love love"] * 9, noun_or_verb)
    assert mixed.form("love") is None and mixed.per_million("love") == pytest.approx(1e6 * 4 / 6)
    assert WordUsage(["Film is here"] * 9, tag).form("film") == Form("n", ("NN",))
    assert WordUsage(["The Film is here"] * 9, tag).form("film") is None
    assert WordUsage(["film"] * 7, tag).form("film") is None


def test_rare_words_are_unknown():
    assert "film" in WordUsage(TEXTS, tag).counts and "film" not in WordUsage(TEXTS, tag, 1e5).counts


def test_contractions_are_cut_as_the_tagger_expects():
    seen = []
    WordUsage(["I don't like Anna's well-made film, it’s 90"], lambda tokens: seen.append(tokens) or tag(tokens))
    expected = ["I", "do", "n't", "like", "Anna", "'s", "well-made", "film", ",", "it", "’s", "90"]
    assert seen == [expected]


def test_neighbours_are_lost_where_the_other_never_stands_beside_them():
    texts = ["he said that", "he said so", "he said it", "he told me", "she told me"] * 20
    usage = WordUsage(texts, tag)
    assert usage.lost_neighbours("said", "said") == usage.lost_neighbours("told", "told") == 0
    # All that stands after "said" is lost; before "told", half is.
    assert usage.lost_neighbours("said", "told") == 1
    assert WordUsage(["he said it", "he told it", "she told it"] * 20, tag).lost_neighbours("said", "told") == 0
    assert WordUsage(["he said it", "he told it", "she told it"] * 20, tag).lost_neighbours("told", "said") == 0.5


def test_synonyms_keep_part_of_speech_and_inflection(make_sets):
    sets = make_sets().synonyms()
    assert sets["film"] == ["movie"] and sets["films"] == ["movies"] and sets["movies"] == ["films"]
    assert sets["rises"] == ["climbs"] and sets["rose"] == ["climbed"] and sets["good"] == ["fine"]
    assert make_sets().synonyms() == sets and list(make_sets().synonyms()) == list(sets)


def test_antonyms_keep_them_too(make_sets):
    pairs = {("good", "bad"), ("rises", "falls"), ("rose", "fell"), ("gain", "loss")}
    assert make_sets().antonyms() == {a: [b] for pair in pairs for a, b in (pair, pair[::-1])}


def test_a_word_that_is_also_another_part_of_speech_has_no_synonyms(make_sets):
    def films_are_verbs(tokens):
        return [(t, "VBZ" if t == "films" and i < 2 else g) for i, (t, g) in enumerate(tag(tokens))]

    sets = make_sets(tagger=films_are_verbs).synonyms()
    assert "films" not in sets and "movies" not in sets and sets["film"] == ["movie"]


def test_function_words_are_left_alone(make_sets):
    sets = make_sets(function_words=("film", "good"))
    assert not {"film", "movie", "good"} & set(sets.synonyms()) and not {"good", "bad"} & set(sets.antonyms())


@pytest.mark.parametrize(
    "changed, lost",
    [
        ({"min_sense_share": 0.4}, {"rises", "climbs", "rose", "climbed"}),
        ({"min_cosine": 1.1}, set(WORDS)),
        ({"max_lost_neighbours": -0.1}, set(WORDS)),
        ({"min_per_million": 1e6}, set(WORDS)),
    ],
)
def test_each_check_refuses(make_sets, changed, lost):
    assert not lost & set(make_sets(replace(EASY, **changed)).synonyms())


def test_an_article_before_the_word_stays_right(make_sets, monkeypatch):
    from fastadv.evaluation.resources import word_sets_checked

    matches = word_sets_checked._AFTER_AN.match
    assert all(map(matches, ("awful", "hour", "honest", "unimaginative", "idea")))
    assert not any(map(matches, ("film", "unique", "usual", "one", "horrid", "european")))
    monkeypatch.setattr(word_sets_checked, "_AFTER_AN", word_sets_checked.re.compile("movie"))
    assert not {"film", "movie", "films", "movies"} & set(make_sets().synonyms())


class Encoder:
    """Sentences as counts of their words, one of which may weigh more than the others."""

    def __init__(self, **weights):
        self.weights = weights

    def encode_texts(self, texts):
        words = sorted({word for text in TEXTS for word in text.split()} | set(WORDS))
        return np.array([[text.split().count(w) * self.weights.get(w, 1) for w in words] for text in texts], float)


def test_an_encoder_refuses_synonyms_that_move_sentences_far(make_sets):
    sets = make_sets(replace(EASY, min_sentence_cosine=0.5, min_nearer_share=0))
    texts = [text.replace(" .", " yes it is so .") for text in TEXTS]
    before = {"film": ["movie"], "good": ["fine"]}
    assert sets.kept_in_sentences(before, texts, Encoder()) == before
    assert sets.kept_in_sentences(before, texts, Encoder(movie=20)) == {"good": ["fine"]}
    # No nearer than random words of the same form.
    strict = make_sets(replace(EASY, min_sentence_cosine=0.5, min_nearer_share=1))
    assert strict.kept_in_sentences({"good": ["fine"]}, texts, Encoder()) == {}
    assert sets.kept_in_sentences(before, ["too short"], Encoder()) == {}


def test_the_command_checks_sets_in_texts(data_dir, tmp_path, capsys, monkeypatch):
    near = np.eye(5, dtype=np.float32)
    near[1] = near[0] + 0.1 * near[1]
    WordVectors(("film", "movie", "gain", "loss", "dog"), near).save(tmp_path / "v.npz")
    # The tagger in miniature takes all words for nouns.
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(data_dir))
    options = ["--texts", str(tmp_path / "texts.txt"), "--encoder", "none", "--num_components", "0"]
    command = ["word-sets", "--vectors", str(tmp_path / "v.npz"), "--out", str(tmp_path / "sets.json"), *options]
    assert main([*command, "--dry_run"]) == 0
    assert "checked in" in capsys.readouterr().out and not (tmp_path / "sets.json").exists()
    assert main(command) == 0
    sets = WordSets.load(tmp_path / "sets.json")
    assert dict(sets.synonyms) == {"film": ("movie",), "movie": ("film",)}
    assert dict(sets.antonyms) == {"gain": ("loss",), "loss": ("gain",)}
    assert sets.source["texts"].endswith("texts.txt") and sets.source["encoder"] == "none"
    assert sets.source["checks"]["min_cosine"] == Checks().min_cosine
    # Vectors may be fitted and written besides; the sets stay the same.
    made = tmp_path / "fitted.npz"
    assert main([*command, "--counter_fit", "--vectors_out", str(made)]) == 0
    again = WordSets.load(tmp_path / "sets.json")
    assert made.exists() and again == sets and "counter_fitting" not in again.source
