"""BAT's map: texts drawn as BAT draws them, the same points every time, and the distances beside them."""

import csv
import json

import numpy as np
import pytest

from fastadv.cli.main import main
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.papers.perturbation_map import (
    KINDS,
    cosine_distances,
    map_models,
    map_table,
    perturbed_texts,
    project,
    write_map,
)
from tests.evaluation.attacked import CLASSES, TEXTS, write_table

SETS = WordSets(
    synonyms={"film": ["movie"], "movie": ["film"], "funny": ["sharp"], "terrible": ["bad"], "story": ["plot"]},
    antonyms={"good": ["bad"], "dull": ["sharp"], "great": ["terrible"], "love": ["hate"], "sad": ["funny"]},
    source={},
)


def labelled(num_texts=24, is_pair=False):
    texts = [f"{TEXTS[i % len(TEXTS)]} {'a good film' if i % 3 else 'never'} {i}" for i in range(num_texts)]
    second = [f"the great story {i}" for i in range(num_texts)] if is_pair else None
    return LabelledTexts(LabelMap(CLASSES), texts, second, [i % 4 for i in range(num_texts)])


@pytest.mark.parametrize("is_pair", [False, True])
def test_every_text_has_synonyms_and_one_antonym(is_pair):
    data = labelled(40, is_pair)
    found = perturbed_texts(data, range(100, 140), SETS, leave_out=["fair"])
    assert "fair" not in found.labels and found.rows == sorted(found.rows)
    for number, row in enumerate(found.rows):
        original, fickle, obstinate = (found.texts[kind][number] for kind in KINDS)
        given = (data.first[row - 100],) if not is_pair else (data.first[row - 100], data.second[row - 100])
        assert original == given and found.labels[number] == CLASSES[data.labels[row - 100]]
        assert fickle != original and [len(a.split()) for a in fickle] == [len(a.split()) for a in original]
        pairs = [(a, b) for x, y in zip(original, obstinate) for a, b in zip(x.split(), y.split()) if a != b]
        assert len(pairs) == 1 and pairs[0][1] in SETS.antonyms[pairs[0][0]]


def test_a_draw_is_of_all_texts_and_the_same_for_a_seed():
    data = labelled(60)
    few = [perturbed_texts(data, range(60), SETS, max_texts=10, seed=seed) for seed in (0, 0, 1)]
    assert few[0] == few[1] and few[0].rows != few[2].rows and len(few[0].rows) == 10
    assert max(few[0].rows) > 20


def test_points_are_the_same_every_time_and_as_many_as_texts(classifier, tmp_path):
    data = perturbed_texts(labelled(), range(24), SETS)
    runs = [map_models({"a": lambda: classifier}, data, seed=3) for _ in range(2)]
    np.testing.assert_array_equal(runs[0][1]["a"], runs[1][1]["a"])
    assert runs[0][1]["a"].shape == (3, len(data.rows), 2)
    other = map_models({"a": lambda: classifier}, data, seed=4)[0]
    assert other["models"] == runs[0][0]["models"] and json.dumps(other, allow_nan=False)
    for number, (record, points) in enumerate(runs):
        write_map(tmp_path / str(number), record, points, data)
    for name in ("perturbation-map.csv", "perturbation-map.png", "perturbation-map.json"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
    with (tmp_path / "0" / "perturbation-map.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * len(data.rows)
    last = lines[-1]
    assert (last["kind"], int(last["row"]), last["first"]) == (
        "obstinate",
        data.rows[-1],
        data.texts["obstinate"][-1][0],
    )
    assert float(last["x"]) == pytest.approx(runs[0][1]["a"][2, -1, 0], rel=1e-5)


def test_distances_are_those_of_the_models_vectors(classifier):
    data = perturbed_texts(labelled(), range(24), SETS)
    record, _ = map_models({"a": lambda: classifier}, data)
    vectors = {
        kind: classifier.encoder.encode_texts([one[0] for one in data.texts[kind]]).astype(float) for kind in KINDS
    }

    def distance(kind, row):
        a, b = vectors["original"][row], vectors[kind][row]
        return 1 - a @ b / np.sqrt((a @ a) * (b @ b))

    fickle, obstinate = ([distance(kind, row) for row in range(len(data.rows))] for kind in KINDS[1:])
    entry = record["models"][0]
    assert entry["distance_fickle"]["value"] == pytest.approx(np.mean(fickle), abs=1e-6)
    assert entry["distance_obstinate"]["value"] == pytest.approx(np.mean(obstinate), abs=1e-6)
    further = sum(o > f for o, f in zip(obstinate, fickle)) / len(fickle)
    assert entry["share_obstinate_further"]["value"] == pytest.approx(further)
    assert "a: fickle" in map_table(record)


def test_vectors_apart_lie_apart_and_equal_ones_do_no_harm():
    rng = np.random.default_rng(0)
    groups = np.concatenate([rng.normal(size=(20, 8)), rng.normal(size=(20, 8)) + 40])
    points = project(groups, seed=0)
    parts = points[:20], points[20:]
    inside = max(np.linalg.norm(part - part.mean(axis=0), axis=1).max() for part in parts)
    assert np.linalg.norm(parts[0].mean(axis=0) - parts[1].mean(axis=0)) > inside
    assert np.isfinite(project(np.ones((12, 8)))).all()
    assert cosine_distances(np.zeros((1, 3)), np.ones((1, 3))).tolist() == [1.0]


def test_what_is_refused():
    with pytest.raises(UserError, match="--leave_out 'neutral' is no class of the data; they are bad, fair"):
        perturbed_texts(labelled(), range(24), SETS, leave_out=["neutral"])
    none = WordSets(synonyms={}, antonyms={"good": ["bad"]}, source={})
    with pytest.raises(UserError, match="only 0 texts have both"):
        perturbed_texts(labelled(), range(24), none)


def test_the_command_maps_two_models(classifier, tmp_path, capsys):
    SETS.save(tmp_path / "sets.json")
    table = write_table(tmp_path / "data.csv", labelled())
    for name in ("one", "two"):
        classifier.save_pretrained(tmp_path / name)
    arguments = ["evaluate", "perturbation-map", "--data", str(table), "--word_sets", str(tmp_path / "sets.json")]
    arguments += ["--out", str(tmp_path / "out"), "--max_texts", "8", "--leave_out", "bad"]
    arguments += ["--model", str(tmp_path / "one"), "--model", str(tmp_path / "two")]
    assert main([*arguments, "--dry_run"]) == 0 and not (tmp_path / "out").exists()
    assert "would map at most 8 texts" in capsys.readouterr().out
    assert main(arguments) == 0
    assert (tmp_path / "out" / "perturbation-map.png").stat().st_size > 1000
    record = json.loads((tmp_path / "out" / "perturbation-map.json").read_text())
    assert [model["name"] for model in record["models"]] == ["one", "two"] and record["num_texts"] == 8
    assert record["models"][0]["distance_fickle"] == record["models"][1]["distance_fickle"]
