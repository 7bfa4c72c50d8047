"""Thresholds linked by shares: laws of the linking, the estimate of sentence vectors by hand, and the pairs."""

import json

import numpy as np
import pytest

from bench import recipe_calibration
from bench.recipe_calibration import USE_CONSTRAINTS, MeanOfWords, calibrate, changed_pairs, link, similarity
from fastadv.data.variants.word_sets import words_of
from fastadv.errors import UserError
from fastadv.evaluation.resources.word_vectors import WordVectors

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = tuple(a + b for a in LETTERS for b in LETTERS)
VECTORS = WordVectors(WORDS, np.random.default_rng(1).standard_normal((len(WORDS), 12)).astype(np.float32))


def made_up_texts(count, num_words=20, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, num_words)).capitalize() + "." for _ in range(count)]


def test_equal_measures_keep_the_threshold_and_rising_maps_carry_it_along():
    values = np.random.default_rng(0).uniform(-1, 1, 20_001)
    assert link(values, values, 0.3) == pytest.approx(0.3, abs=2e-4)
    for rising in (np.exp, lambda x: x**3, lambda x: 0.1 * x + 0.9):
        assert link(values, rising(values), 0.3) == pytest.approx(rising(0.3), abs=5e-4)
    # The order of the pairs makes no difference, nor does which pair has which value.
    assert link(values, np.exp(values[::-1]), 0.3) == link(values, np.exp(values), 0.3)
    for threshold in (-1.1, 1.1):
        with pytest.raises(UserError, match="more texts are needed"):
            link(values, values, threshold)


def test_similarities_are_textattacks():
    first, second = np.random.default_rng(0).standard_normal((2, 7, 5))
    first[0] = second[0]
    first[1] = -second[1]
    first[2] = 0
    expected = [a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30) for a, b in zip(first, second)]
    assert np.allclose(similarity(first, second, "cosine"), expected)
    angles = 1 - np.arccos(np.clip(expected, -1, 1)) / np.pi
    assert np.allclose(similarity(first, second, "angular"), angles, atol=1e-7)


def test_sentence_vectors_are_weighted_means_less_their_common_direction():
    texts = ["Aa bb, unheard-of aa!", "zz", "cc dd ee", "..."]
    found = MeanOfWords(VECTORS).encode(texts)
    plain = VECTORS.without_common_parts(1).vectors.astype(np.float64)
    rows = []
    for words in (["aa", "bb", "aa"], ["zz"], ["cc", "dd", "ee"]):
        total = np.zeros(12)
        for word in words:
            rank = WORDS.index(word) + 1
            probability = 1 / (rank * np.log(len(WORDS) + 1))
            total += 1e-3 / (1e-3 + probability) * plain[rank - 1]
        rows.append(total / len(words))
    rows = np.array([*rows, np.zeros(12)])
    u, s, vt = np.linalg.svd(rows, full_matrices=False)
    assert np.allclose(found, rows - np.outer(rows @ vt[0], vt[0]), atol=1e-6)
    assert np.linalg.matrix_rank(found, tol=1e-6) == 2


@pytest.mark.parametrize("window", [15, None])
def test_pairs_change_from_none_to_all_of_the_words_and_nothing_else(window):
    texts = [*made_up_texts(300), "too short to count", *made_up_texts(5, num_words=14)]
    first, second = changed_pairs(texts, VECTORS, window, np.random.default_rng(3))
    assert len(first) == (300 if window else 305)
    shares = []
    for before, after in zip(first, second):
        a, b = words_of(before), words_of(after)
        assert len(a) == len(b) == (window or len(a)) and before[0].isupper() == after[0].isupper()
        assert {word.key for word in b} <= set(WORDS)
        shares.append(np.mean([x.key != y.key for x, y in zip(a, b)]))
    # Evenly from none to all: mean a half, and a deviation of 1 / sqrt(12).
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06) and np.std(shares) == pytest.approx(0.29, abs=0.05)
    again = changed_pairs(texts, VECTORS, window, np.random.default_rng(3))
    other = changed_pairs(texts, VECTORS, window, np.random.default_rng(4))
    assert again == (first, second) and other != (first, second)


class SameKind:
    """An encoder that is the estimate itself."""

    def encode_texts(self, texts):
        return MeanOfWords(VECTORS).encode(texts)


def test_an_encoder_of_the_old_kind_keeps_its_thresholds():
    found = calibrate(SameKind(), VECTORS, made_up_texts(400), random_seed=2)
    assert set(found) == set(USE_CONSTRAINTS)
    for recipe, use in USE_CONSTRAINTS.items():
        # Between two neighbouring values of 400.
        assert found[recipe]["threshold"] == pytest.approx(use.threshold, abs=0.02)
        assert 0 < found[recipe]["refused"] < 1 and found[recipe]["num_pairs"] == 400
    with pytest.raises(UserError, match="5 texts are long enough"):
        calibrate(SameKind(), VECTORS, made_up_texts(5))


def test_the_command_writes_what_resources_read(monkeypatch, tmp_path, capsys):
    from fastadv import encoder

    VECTORS.save(tmp_path / "v.npz")
    (tmp_path / "texts.txt").write_text("\n".join(made_up_texts(200)) + "\n")
    monkeypatch.setattr(encoder.Encoder, "from_pretrained", lambda name: SameKind())
    files = ["--vectors", str(tmp_path / "v.npz"), "--data", str(tmp_path / "texts.txt")]
    assert recipe_calibration.main([*files, "--out", str(tmp_path / "t.json")]) == 0
    assert "bae: cosine 0.936338 -> 0." in capsys.readouterr().out
    assert set(json.loads((tmp_path / "t.json").read_text())) == set(USE_CONSTRAINTS)
    assert recipe_calibration.main([*files, "--out", str(tmp_path / "t.txt")]) == 2
    assert "ends in .json" in capsys.readouterr().err
