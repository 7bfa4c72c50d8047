"""Recipes built without a network: TextAttack's own, with our vectors, encoder, thresholds and masked LM in them."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.recipe_calibration import USE_CONSTRAINTS
from fastadv.config.text_attack import PAIR_ROLES, TEXTATTACK_RECIPES
from fastadv.encoder import Encoder
from fastadv.errors import UserError
from fastadv.evaluation.recipes.recipe_substitutes import SentenceModel, open_masked_lm
from fastadv.evaluation.recipes.text_recipes import (
    NEEDS_ENCODER,
    Resources,
    _Sorted,
    build_recipe,
    candidate_counts,
)
from fastadv.evaluation.resources.word_vectors import WordVectors
from tests.conftest import WORDS, write_tiny_bert
from tests.evaluation.packages import require_textattack, shared_attack_data

TEXT = "the good film was a slow climb to a gain"
THRESHOLDS = {"textfooler": 0.81, "textbugger": 0.42, "bae": 0.43, "bert-attack": 0.14}


@pytest.fixture(scope="module")
def encoder_dir(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("encoder") / "bert")


@pytest.fixture(scope="module")
def mlm_dir(tmp_path_factory, encoder_dir):
    from transformers import AutoConfig, AutoTokenizer, BertForMaskedLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("mlm") / "mlm"
    # TextAttack pads every text to 512 tokens.
    config = AutoConfig.from_pretrained(encoder_dir, max_position_embeddings=512)
    BertForMaskedLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder_dir).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vectors_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "v.npz"
    words = (*dict.fromkeys((*WORDS, *TEXT.split(), *(f"word{i}" for i in range(60)))),)
    vectors = np.random.default_rng(0).standard_normal((len(words), 5)).astype(np.float32)
    WordVectors(words, vectors).save(path)
    return path


@pytest.fixture(scope="module")
def resources(encoder_dir, mlm_dir, vectors_file):
    return Resources(shared_attack_data(), vectors_file, str(encoder_dir), mlm_dir, THRESHOLDS)


@pytest.fixture(scope="module")
def victim(resources):
    require_textattack()
    from fastadv.evaluation.recipes.textattack_offline import load_textattack

    class Victim(load_textattack(resources.data_dir).models.wrappers.ModelWrapper):
        """Says class 1 of a text with the word "film", class 0 of others; "good" makes it surer."""

        max_length = 32
        model = None

        def __call__(self, texts):
            score = torch.tensor([3.0 * ("film" in t.split()) + 0.5 * ("good" in t.split()) - 1 for t in texts])
            return torch.sigmoid(torch.stack([-score, score], dim=1))

    return Victim()


def test_every_recipe_is_textattacks_own_with_other_parts_in_it(resources, victim, monkeypatch):
    import nltk
    import textattack
    import transformers
    from textattack.constraints.semantics.sentence_encoders import SentenceEncoder, UniversalSentenceEncoder
    from textattack.constraints.semantics.sentence_encoders.sentence_bert import sbert
    from textattack.shared.utils import GLOBAL_OBJECTS, LazyLoader
    from textattack.transformations.word_swaps import word_swap_homoglyph_swap, word_swap_masked_lm

    asked, make = {}, UniversalSentenceEncoder.__init__

    def note(self, *arguments, **options):
        make(self, *arguments, **options)
        asked[name] = (self.threshold, self.metric, None if self.window_size == float("inf") else self.window_size)

    monkeypatch.setattr(UniversalSentenceEncoder, "__init__", note)
    download, before = nltk.download, dict(GLOBAL_OBJECTS)
    for name in TEXTATTACK_RECIPES:
        attack = build_recipe(name, victim, resources)
        assert isinstance(attack, textattack.Attack)
        parts = [attack.transformation, *attack.constraints, *attack.pre_transformation_constraints]
        assert all(type(part).__module__.startswith("textattack.") for part in [*parts, attack.search_method])
        encoders = [part for part in attack.constraints if isinstance(part, SentenceEncoder)]
        assert len(encoders) == (name in NEEDS_ENCODER)
        for constraint in encoders:
            assert constraint.model is resources.sentence_model
            assert constraint.threshold == (0.9 if name == "a2t" else THRESHOLDS[name])
        # What was put in their places for the time of building is gone.
        assert word_swap_masked_lm.AutoModelForMaskedLM is transformers.AutoModelForMaskedLM
        assert isinstance(sbert.sentence_transformers, LazyLoader) and "open" not in vars(word_swap_homoglyph_swap)
        assert nltk.download is download and GLOBAL_OBJECTS == before
    # The thresholds that `recipe_calibration` links to are those that the recipes ask for.
    assert asked == {recipe: tuple(use) for recipe, use in USE_CONSTRAINTS.items()}


PAIRS = {
    ("premise", "hypothesis"): ("textfooler", "a2t"),
    ("hypothesis", "premise"): ("textfooler", "a2t"),
    ("sentence1", "sentence2"): (),
    PAIR_ROLES: (),
}
"""names of a pair's columns → recipes that leave one of the texts as it is"""


@pytest.mark.parametrize("recipe", TEXTATTACK_RECIPES)
@pytest.mark.parametrize("roles", PAIRS, ids=" ".join)
def test_a_pairs_columns_reach_the_recipes_constraints(resources, victim, recipe, roles):
    """Which words may change is what TextAttack's own constraints say of a row of its own data set."""
    from collections import OrderedDict

    import textattack
    from textattack.shared import AttackedText

    from fastadv.evaluation.recipes.recipe_attack import RecipeAttack
    from fastadv.evaluation.recipes.text_recipes import _CLASSES, _substituted
    from fastadv.evaluation.text.search import TextSearch

    texts = ("the good film was slow", "a sad plot climb")
    with _substituted(recipe, resources):
        own = getattr(textattack.attack_recipes, _CLASSES[recipe]).build(victim)

    class Asked(Exception):
        pass

    def ask(given, label):
        asked.update(given)
        raise Asked

    asked = OrderedDict()
    attacker = RecipeAttack.build(recipe, victim, resources, roles)
    attacker = replace(attacker, victim=lambda pairs: victim([" ".join(pair) for pair in pairs]))
    attacker.attack.attack = ask
    with pytest.raises(Asked):
        attacker(TextSearch(texts, 1))
    assert list(asked.items()) == list(zip(roles, texts))

    def modifiable(attack, row):
        text = AttackedText(row)
        found = [set(part(text, attack.transformation)) for part in attack.pre_transformation_constraints]
        return [text.words[place] for place in sorted(set.intersection(*found))]

    expected = OrderedDict(zip(roles, texts))
    if roles == ("hypothesis", "premise"):
        # TextAttack knows the columns in one order; what they are does not depend on it.
        expected = OrderedDict(reversed(expected.items()))
    names = [[type(part) for part in attack.pre_transformation_constraints] for attack in (own, attacker.attack)]
    assert names[0] == names[1]
    found = modifiable(attacker.attack, asked)
    assert sorted(found) == sorted(modifiable(own, expected))
    of_each = [[word for word in text.split() if word in found] for text in texts]
    kept = [role == "premise" and recipe in PAIRS[roles] for role in roles]
    assert [not words for words in of_each] == kept


@pytest.mark.parametrize("recipe", ["deepwordbug", "pwws", "textfooler", "textbugger", "bae", "bert-attack"])
def test_every_recipe_attacks(resources, victim, recipe):
    """A text that one letter fools; what the others find depends on random vectors, but they come to an end."""
    attack = build_recipe(recipe, victim, resources)
    np.random.seed(0)
    result = attack.attack(TEXT, 1)
    assert result.original_result.output == 1 and result.num_queries > 0
    if recipe in ("deepwordbug", "pwws"):
        assert result.perturbed_result.output == 0
        assert "film" not in result.perturbed_text().split() and result.perturbed_text().endswith("climb to a gain")


def test_synonyms_come_in_one_order_in_every_process(resources, victim):
    swap = build_recipe("pwws", victim, resources).transformation._get_replacement_words
    found = swap("climb")
    assert isinstance(swap, _Sorted) and _Sorted(lambda word: ["b", "c", "a"])("x") == ["a", "b", "c"]
    assert found == sorted(found) and "rise" in found
    from textattack.transformations import WordSwapWordNet

    plain = WordSwapWordNet.__new__(WordSwapWordNet)
    plain.language = "eng"
    assert set(plain._get_replacement_words("climb")) == set(found)


@pytest.mark.skipif("FASTADV_ATTACK_DATA" in os.environ, reason="counts are of the WordNet in miniature")
def test_candidates_are_counted_by_word(resources, victim):
    attack = build_recipe("pwws", victim, resources)
    # "the" is a stop word; of "good" none, of "film" movie, of "was" none, of "risen" rise and climb.
    assert candidate_counts(attack, ["the good film was risen"]) == {
        "num_words": 4,
        "candidates_per_word": 0.75,
        "allowed_per_word": 0.75,
        "share_of_words": 0.5,
    }
    assert candidate_counts(attack, ["", "the"])["num_words"] == 0
    refusing = build_recipe("textfooler", victim, resources)
    refusing.constraints[-1].threshold, refusing.constraints[-1].skip_text_shorter_than_window = 1.1, False
    counts = candidate_counts(refusing, [TEXT])
    assert counts["candidates_per_word"] > 10 and counts["allowed_per_word"] == counts["share_of_words"] == 0


def test_neighbours_are_those_of_the_vectors_by_cosine(resources):
    require_textattack()
    words, vectors = resources.nearest_words, resources.vectors
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    for word in ("film", "word7"):
        row = vectors.words.index(word)
        cosines = unit @ unit[row]
        order = [int(i) for i in np.argsort(-cosines) if i != row]
        # More are asked for after fewer, and by either name.
        assert words.nearest_neighbours(word, 5) == order[:5]
        assert words.nearest_neighbours(words.word2index(word), 50) == order[:50]
        assert words.index2word(row) == word
        assert words.get_cos_sim(row, order[3]) == pytest.approx(float(cosines[order[3]]), abs=1e-6)
    with pytest.raises(KeyError):
        words.word2index("unheard")
    with pytest.raises(ValueError, match="at most 50"):
        words.nearest_neighbours("film", 51)


def test_the_sentence_model_encodes_each_text_once(encoder_dir, monkeypatch):
    from fastadv.evaluation.recipes import recipe_substitutes

    encoder, asked, moved = Encoder.from_pretrained(str(encoder_dir)), [], []

    class Counting:
        def encode_texts(self, texts):
            asked.extend(texts)
            return encoder.encode_texts(texts)

        to = moved.append

    monkeypatch.setattr(recipe_substitutes, "_MAX_CACHED", 3)
    model = SentenceModel(Counting())
    texts = ["a film", "a movie", "a film", ""]
    assert np.allclose(model.encode(texts), encoder.encode_texts(texts), atol=1e-5) and len(asked) == 3
    assert torch.equal(model(["a movie", "a film"]), torch.from_numpy(model.encode(["a movie", "a film"])))
    assert len(asked) == 3
    # "" is the one not asked for since, and makes room.
    model.encode(["a plot"])
    model.encode(["a movie", "a film"])
    assert asked[3:] == ["a plot"]
    model.encode([""])
    assert asked[4:] == [""] and model.to("cpu") is model and moved == ["cpu"]


def test_what_a_recipe_lacks_is_said_before_anything_is_loaded(resources, encoder_dir, tmp_path, monkeypatch):
    def lacking(**changes):
        return Resources(**{**vars_of(resources), **changes})

    cases = [
        (resources, "textfool", None, "expected one of deepwordbug, pwws"),
        (lacking(data_dir=tmp_path), "pwws", None, "there are no attack data at"),
        (lacking(word_vectors=None), "textfooler", None, "fastadv word-sets --vectors_out"),
        (lacking(word_vectors=tmp_path / "v.npz"), "a2t", None, "there is no such file"),
        (lacking(mlm=None), "bae", None, "needs a masked LM, which no package carries"),
        (lacking(mlm=tmp_path), "bert-attack", None, "expected a folder with config.json"),
        (lacking(sentence_encoder=str(tmp_path / "no")), "textbugger", None, "no"),
        (lacking(thresholds=None), "textbugger", None, "has no thresholds; `python -m"),
        (lacking(thresholds={"bae": 0.5}), "textbugger", None, "none for recipe textbugger"),
        (resources, "textfooler", encoder_dir / ".." / encoder_dir.name, "is the attacked model; name another"),
    ]
    for given, recipe, attacked, message in cases:
        with pytest.raises(UserError) as raised:
            given.check(recipe, attacked)
        assert message in str(raised.value) and "\n" not in str(raised.value)
    for recipe in TEXTATTACK_RECIPES:
        resources.check(recipe, tmp_path)
    lacking(word_vectors=None, mlm=None, thresholds=None).check("deepwordbug")


def vars_of(resources):
    names = ("data_dir", "word_vectors", "sentence_encoder", "mlm", "thresholds")
    return {name: getattr(resources, name) for name in names}


def test_a_folder_that_is_no_masked_lm_is_refused(tmp_path, encoder_dir):
    from transformers import AutoConfig, AutoTokenizer, BertForMaskedLM

    BertForMaskedLM(AutoConfig.from_pretrained(encoder_dir)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder_dir).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has 64 positions, expected 512"):
        open_masked_lm(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match="masked LM .* cannot be opened"):
        open_masked_lm(tmp_path)


def test_counting_ends_in_time():
    """The third word would take for ever, as BERT-Attack's combinations of many tokens do."""

    class Endless:
        pre_transformation_constraints = ()

        def transformation(self, text, indices_to_modify, pre_transformation_constraints):
            while indices_to_modify[0] == 2:
                pass
            return [text, text]

        def filter_transformations(self, candidates, text, original):
            return candidates[:1]

    counts = candidate_counts(Endless(), ["one two three four"], max_seconds=0.3)
    assert counts == {"num_words": 2, "candidates_per_word": 2.0, "allowed_per_word": 1.0, "share_of_words": 1.0}
