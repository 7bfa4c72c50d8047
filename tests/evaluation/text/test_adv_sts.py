"""Adversarial STS: the rule of what is fooled, the control, bands, and runs that go on where they stopped."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from fastadv.cli.main import main
from fastadv.config.text_attack import ADV_STS_RECIPES, TEXTATTACK_RECIPES, TextAttackSettings
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.resources.attack_data import VARIABLE
from fastadv.evaluation.text import adv_sts
from fastadv.evaluation.text.adv_sts import AdvStsData, AdvStsRun, bands_of, correlations, in_bands, matched_scale
from fastadv.evaluation.text.rows import read_rows, write_rows
from fastadv.evaluation.victims import similarity as similarity_victim
from fastadv.evaluation.victims.similarity import Scale, SimilarityVictim, is_fooled
from tests.evaluation.attacked import TEXTS
from tests.evaluation.attacked_rows import made_row
from tests.evaluation.packages import require_textattack, shared_attack_data

SETS = WordSets(
    synonyms={
        "film": ["movie", "scene", "plot"],
        "movie": ["film", "music"],
        "story": ["plot", "scene"],
        "dull": ["slow", "sad"],
        "music": ["camera", "plot"],
        "actor": ["camera", "scene"],
        "good": ["great", "wonderful"],
        "terrible": ["bad"],
        "never": ["always"],
    },
    antonyms={},
    source={},
)


class Words:
    """Vectors of a text: how often each of 40 buckets of words occurs in it. Counts the texts it is asked for."""

    def __init__(self):
        self.num_texts = 0

    def encode_texts(self, texts, batch_size=64, progress=False):
        self.num_texts += len(texts)
        vectors = np.zeros((len(texts), 40), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                vectors[row, sum(map(ord, word)) % 40] += 1
        return vectors


def score_by_hand(first, second, low, high):
    a, b = Words().encode_texts([first, second]).astype(float)
    norms = np.sqrt((a @ a) * (b @ b))
    return low + (high - low) * max(0.0, float(a @ b / norms) if norms else 0.0)


@pytest.mark.parametrize("side", ["both", "second"])
@pytest.mark.parametrize("low,high", [(0.0, 5.0), (1.0, 5.0)])
def test_the_two_classes_are_the_rule(side, low, high):
    victim = SimilarityVictim(Words(), Scale(low, high), side)
    first, second = TEXTS[3], TEXTS[5]
    candidates = [*TEXTS, ""]
    num_fooled = 0
    for human in np.linspace(low, high, 9):
        before = victim.set_pair(first, second, float(human))
        assert before == pytest.approx(score_by_hand(first, second, low, high))
        given = victim([victim.text_of(first, second)])[0]
        # As given every pair is kept, and so it is attacked.
        assert given.argmax() == victim.names.index("kept") == 1
        pairs = [(first, text) for text in candidates] if side == "second" else [(t, second) for t in candidates]
        found = victim([victim.text_of(*pair) for pair in pairs])
        assert found.sum(dim=1).tolist() == pytest.approx([1.0] * len(pairs))
        assert found.min() >= 0 and found.max() <= 1
        for pair, probabilities in zip(pairs, found):
            after = score_by_hand(*pair, low, high)
            fooled = abs(after - human) >= abs(before - human) + 1.0
            num_fooled += fooled
            assert (int(probabilities.argmax()) == 0) == fooled == bool(is_fooled(after, before, human))
    assert 0 < num_fooled < 9 * len(candidates)


def test_a_point_exactly_is_fooled_and_less_is_not():
    assert is_fooled(np.array([3.0, 3.001, 5.0]), 4.0, 4.0).tolist() == [True, False, True]

    class Cosines:
        # cos 1, 0.8 and 0.81: of 5 points 5, 4 and 4.05.
        def encode_texts(self, texts, batch_size=64, progress=False):
            return np.array([{"a": [1, 0], "b": [0.8, 0.6], "c": [0.81, np.sqrt(1 - 0.81**2)]}[t] for t in texts])

    victim = SimilarityVictim(Cosines(), Scale(0.0, 5.0), "second")
    assert victim.set_pair("a", "a", 5.0) == 5.0
    found = victim(["b", "c"])
    assert found[0].tolist() == [0.5, 0.5] and int(found[0].argmax()) == 0 and int(found[1].argmax()) == 1
    # Probabilities fall as the error grows.
    victim = SimilarityVictim(Words(), Scale(0.0, 5.0), "second")
    victim.set_pair(TEXTS[3], TEXTS[3], 5.0)
    errors = [5 - score_by_hand(TEXTS[3], text, 0, 5) for text in TEXTS]
    order = np.argsort(-victim(list(TEXTS))[:, 1].numpy(), kind="stable")
    assert (order == np.argsort(errors, kind="stable")).all()


def test_a_text_is_encoded_once_while_its_pair_is_attacked():
    encoder = Words()
    victim = SimilarityVictim(encoder, Scale(0.0, 5.0), "both", batch_size=4)
    victim.set_pair("a b", "c d", 2.0)
    victim.begin()
    encoder.num_texts = 0
    victim([("a b", "c d"), ("a x", "c d"), ("a b", "c y"), ("a x", "c y")])
    assert encoder.num_texts == 4
    victim([("a x", "c d")])
    assert encoder.num_texts == 4
    victim.begin()
    victim([("a b", "c d")])
    assert encoder.num_texts == 6


def test_scales():
    assert Scale(1.0, 5.0).scores(np.array([-1.0, 0.0, 0.5, 1.0])).tolist() == [1.0, 1.0, 3.0, 5.0]
    cosines, wanted = np.array([0.1, 0.5, 0.6, 0.9]), np.array([0.8, 0.82, 0.9, 0.85])
    moved = matched_scale(Scale(0.0, 5.0), cosines, wanted)
    made = moved.scores(cosines) / 5
    assert made.mean() == pytest.approx(wanted.mean()) and made.std() == pytest.approx(wanted.std())
    assert (np.argsort(made) == np.argsort(cosines)).all()
    flat = matched_scale(Scale(0.0, 5.0), np.full(4, 0.3), wanted)
    assert flat.gain == 0 and flat.scores(np.array([0.3]))[0] == pytest.approx(5 * wanted.mean())
    with pytest.raises(UserError, match="expected a scale longer than 1 point"):
        Scale(0.0, 1.0)


def test_bands_are_points_of_the_scale():
    assert list(bands_of(Scale(1.0, 5.0))) == ["1 to 2", "2 to 3", "3 to 4", "4 to 5"]
    assert list(bands_of(Scale(0.0, 2.5))) == ["0 to 1", "1 to 2", "2 to 2.5"]
    rows = [made_row(i, "failed", f"{y:g}", score=s, score_adversarial=s) for i, (y, s) in enumerate([(1, 5), (5, 2)])]
    found = in_bands([*rows, made_row(2, "error", "1.99")], bands_of(Scale(1.0, 5.0)))
    assert [row.label for row in found] == ["1 to 2", "4 to 5", "1 to 2"]
    assert [row.predicted for row in found] == ["4 to 5", "2 to 3", ""]


def test_correlations_leave_errors_out():
    rng = np.random.default_rng(0)
    human, scores, after = rng.normal(size=(3, 12))
    rows = [made_row(i, "failed", score=scores[i], score_adversarial=after[i]) for i in range(12)]
    rows[4] = made_row(4, "error")
    kept = np.arange(12) != 4
    expected = [100 * scipy.stats.spearmanr(values[kept], human[kept]).statistic for values in (scores, after)]
    assert correlations(rows, human.tolist()) == pytest.approx(expected)
    assert correlations(rows[:1], [1.0]) == (None, None)
    assert correlations([made_row(i, "failed", score=1.0) for i in range(4)], [1, 2, 3, 4])[0] is None


@pytest.fixture
def pairs_file(tmp_path):
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence1", "sentence2", "score"])
        for number in range(11):
            writer.writerow([TEXTS[number], TEXTS[number + 1], (number * 7) % 20])
        writer.writerow(["!", "...", 3])
    return path


def arguments_of(tmp_path, models, pairs_file, *more):
    SETS.save(tmp_path / "sets.json")
    named = [part for model in models for part in ("--model", str(model))]
    return [
        *("evaluate", "adv-sts", "--data", str(pairs_file), "--scale", "0", "20", "--recipe", "synonym"),
        *("--word_sets", str(tmp_path / "sets.json"), "--out", str(tmp_path / "out"), *named, *more),
    ]


def without_sets(arguments):
    at = arguments.index("--word_sets")
    return [*arguments[:at], *arguments[at + 2 :]]


@pytest.mark.parametrize("side", ["both", "second"])
def test_a_run_of_two_models(tmp_path, tiny_bert_dir, pairs_file, capsys, side):
    from tests.conftest import write_tiny_bert

    other = write_tiny_bert(tmp_path / "other", initializer_range=0.05)
    arguments = arguments_of(tmp_path, [tiny_bert_dir, other], pairs_file, "--side", side, "--max_length", "64")
    assert main([*arguments, "--dry_run"]) == 0 and not (tmp_path / "out").exists()
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "Spearman x 100" in table and "cosines of" in table
    report = json.loads((tmp_path / "out" / "text-attack.json").read_text())
    assert [bool(model.get("control")) for model in report["models"]] == [False, False, True]
    first = report["models"][0]
    rates = first["rates"]
    assert rates["num_attacked"] == 12 and rates["num_skipped"] == 0 and rates["num_succeeded"] > 0
    assert list(first["per_class"])[0] == "0 to 1" and report["protocol"]["side"] == side
    files = sorted((tmp_path / "out").glob("rows-*.csv"))
    assert len(files) == 3
    for path in files:
        for row in read_rows(path):
            human, fooled = float(row.label), row.outcome == "succeeded"
            assert fooled == (abs(row.score_adversarial - human) >= abs(row.score - human) + 1.0)
            if side == "second":
                assert row.first_adversarial == row.first
            if not fooled:
                assert (row.first_adversarial, row.second_adversarial) == (row.first, row.second)
    # The control's cosines have the mean and the spread of the other model's: before the clipping.
    control = report["models"][2]["control"]
    moved = control["offset"] + control["gain"] * first["cosine_mean"]
    assert moved == pytest.approx(report["models"][1]["cosine_mean"], abs=1e-6)
    assert control["gain"] * first["cosine_spread"] == pytest.approx(report["models"][1]["cosine_spread"], abs=1e-6)
    assert "mean and spread of cosines" in (tmp_path / "out" / "text-attack.html").read_text()


def test_a_stopped_run_goes_on_and_another_setting_starts_anew(tmp_path, tiny_bert_dir, pairs_file, monkeypatch):
    arguments = arguments_of(tmp_path, [tiny_bert_dir], pairs_file, "--max_length", "64", "--no_control")
    attacked = []

    def attack_pair(*given):
        attacked.append(given[3])
        return real(*given)

    real = adv_sts.attack_pair
    monkeypatch.setattr(adv_sts, "attack_pair", attack_pair)
    assert main(arguments) == 0 and attacked == list(range(12))
    whole = read_rows(tmp_path / "out" / "rows.csv")
    (part,) = (tmp_path / "out" / "parts").iterdir()
    content = part.read_bytes()
    # Killed in the middle of the ninth row.
    part.write_bytes(content[: int(len(content) * 0.7)])
    num_kept = len(read_rows(part))
    attacked.clear()
    assert main(arguments) == 0 and attacked == list(range(num_kept, 12)) and 2 < num_kept < 12
    again = read_rows(tmp_path / "out" / "rows.csv")
    assert [vars(row) | {"seconds": 0} for row in again] == [vars(row) | {"seconds": 0} for row in whole]
    # A pair on which the attack broke down is tried again.
    write_rows(part, [replace(row, outcome="error", note="it broke") if row.row == 3 else row for row in whole])
    attacked.clear()
    assert main(arguments) == 0 and attacked == [3]
    assert [row.outcome for row in read_rows(tmp_path / "out" / "rows.csv")] == [row.outcome for row in whole]
    attacked.clear()
    assert main([*arguments, "--side", "second"]) == 0 and len(attacked) == 12


@pytest.fixture
def attack_data(monkeypatch):
    """Those of the environment, or a WordNet of a dozen words."""
    require_textattack()
    monkeypatch.setenv(VARIABLE, str(shared_attack_data()))


@pytest.mark.parametrize("side", ["both", "second"])
def test_a_recipe_of_textattack(tmp_path, tiny_bert_dir, pairs_file, attack_data, side):
    arguments = arguments_of(tmp_path, [tiny_bert_dir], pairs_file, "--max_length", "64", "--side", side)
    assert main([*without_sets(arguments), "--recipe", "deepwordbug", "--max_queries", "40"]) == 0
    rows = read_rows(tmp_path / "out" / "rows.csv")
    assert {row.outcome for row in rows} <= {"succeeded", "failed"} and max(row.num_queries for row in rows) <= 40
    assert any(row.outcome == "succeeded" for row in rows)
    firsts = [row.first_adversarial != row.first for row in rows]
    assert any(firsts) == (side == "both")


def test_what_is_refused(tmp_path, tiny_bert_dir, pairs_file, capsys):
    arguments = arguments_of(tmp_path, [tiny_bert_dir], pairs_file, "--max_length", "64")

    def said(*more):
        assert main([*arguments, *more]) == 2
        return capsys.readouterr().err

    assert "given twice" in said("--model", str(tiny_bert_dir))
    assert "the scale goes from 0 to 3" in said("--scale", "0", "3")
    assert "expected a scale longer than 1 point" in said("--scale", "4", "4")
    assert "invalid choice: 'a2t'" in said("--recipe", "a2t")
    assert main(without_sets(arguments)) == 2
    assert "synonym needs --word_sets" in capsys.readouterr().err


def test_a_folder_has_its_own_sets_and_scales(tmp_path):
    folder = tmp_path / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    line = "main\tfile\t2012\t1\t{}\tone text\tanother text"
    (folder / "sts-test.csv").write_text("\n".join(line.format(score) for score in (0, 2.5, 5)) + "\n")
    data = AdvStsData.read(str(tmp_path))
    assert (data.scale.low, data.scale.high, data.source, data.rows) == (0.0, 5.0, "STS-B test", [0, 1, 2])
    assert AdvStsData.read(str(tmp_path), max_pairs=2, seed=1).pairs.scores != data.pairs.scores
    for given, message in (
        ({"name": "STS12"}, "expected one of STS-B, SICK-R"),
        ({"split": "valid"}, "STS-B has train, dev, test"),
        ({"scale": (0.0, 5.0)}, "--scale belongs to a file"),
    ):
        with pytest.raises(UserError, match=message):
            AdvStsData.read(str(tmp_path), **given)


def test_recipes_are_those_without_gradients():
    assert set(TEXTATTACK_RECIPES) - set(ADV_STS_RECIPES) == {"a2t"}
    data = AdvStsData(adv_sts.ScoredPairs(), [], Scale(0.0, 5.0), "none")
    with pytest.raises(UserError, match="adversarial STS takes one of deepwordbug"):
        AdvStsRun(["a"], data, TextAttackSettings(recipe="negation"), "out")
    with pytest.raises(UserError, match="expected one of both, second"):
        SimilarityVictim(Words(), Scale(0.0, 5.0), "first")
    assert similarity_victim.MARGIN == 1.0
