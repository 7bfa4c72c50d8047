"""Several models on the same sentences: values against plain numpy, paired differences, files, and what is refused."""

import csv
import json

import numpy as np
import pytest
from matplotlib.image import imread

from fastadv.errors import UserError
from fastadv.evaluation.before_after.batches import dropout_distances
from fastadv.evaluation.model_run import check_once
from fastadv.evaluation.vectors.geometry_chart import short_names
from fastadv.evaluation.vectors.geometry_of_models import (
    QUANTITIES,
    describe_geometry_data,
    find_geometry_data,
    geometry_table,
    measure_geometry,
    write_geometry,
)
from fastadv.evaluation.vectors.vector_cache import model_fingerprint
from tests.evaluation.made_up_sets import write_sts_benchmark


@pytest.fixture
def loaders(tiny_encoder):
    """One model under two poolings; both tell the sentences apart."""
    return {
        "runs/a/model": lambda: tiny_encoder(pooling="cls"),
        "runs/b/model": lambda: tiny_encoder(pooling="mean"),
    }


@pytest.fixture
def sts(tmp_path):
    return find_geometry_data(str(write_sts_benchmark(tmp_path / "senteval")))


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_values_are_those_of_plain_numpy(loaders, sts):
    record = measure_geometry(loaders, sts)
    assert record["num_sentences"] == len(set(sts.sentences)) > 100 and record["num_positives"] == 20
    for row, load in zip(record["models"], loaders.values()):
        encoder = load()
        assert row["fingerprint"] == model_fingerprint(encoder)
        x = unit(encoder.encode_texts(sorted(set(sts.sentences))))
        first, second = (unit(encoder.encode_texts(side)) for side in sts.positives)
        gram = x @ x.T
        apart = ~np.eye(len(x), dtype=bool)
        singular = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
        share = singular[singular > 1e-9] / singular.sum()
        expected = {
            "alignment": np.mean(((first - second) ** 2).sum(axis=1)),
            "uniformity": np.log(np.mean(np.exp(-2 * (2 - 2 * gram))[apart])),
            "mean_cosine": np.mean(gram[apart]),
            "effective_rank": np.exp(-(share * np.log(share)).sum()),
            "top_share": singular[0] ** 2 / (singular**2).sum(),
        }
        values = {key: quantity["value"] for key, quantity in row["quantities"].items()}
        # Batches of other lengths round a vector otherwise, in float32.
        assert values == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(row["spectrum"], singular / np.sqrt(len(x)), atol=1e-5)
        for quantity in row["quantities"].values():
            assert quantity["low"] < quantity["value"] < quantity["high"]
    assert not record["warnings"]


def test_differences_are_paired(tiny_encoder, loaders, sts):
    record = measure_geometry({**loaders, "again": lambda: tiny_encoder(pooling="cls")}, sts)
    first, second, again = (row["quantities"] for row in record["models"])
    for key in QUANTITIES:
        assert "difference" not in first[key]
        difference = second[key]["difference"]
        assert difference == pytest.approx(second[key]["value"] - first[key]["value"], abs=1e-12)
        assert second[key]["difference_low"] < difference < second[key]["difference_high"]
        # The same model has no difference in any resample.
        names = ("difference", "difference_low", "difference_high")
        assert [again[key][name] for name in names] == pytest.approx([0, 0, 0], abs=1e-12)


def test_sentences_of_a_file_have_positives_by_dropout(tiny_encoder, tmp_path):
    texts = [f"the film was not very good {'very ' * i}" for i in range(30)]
    (tmp_path / "texts.txt").write_text("\n".join([*texts, *texts]) + "\n")
    data = find_geometry_data(str(tmp_path / "texts.txt"))
    assert data.positives is None and "two dropout masks" in describe_geometry_data(data, 20)
    record = measure_geometry({"m": tiny_encoder}, data, num_sentences=20, seed=3)
    assert record["num_sentences"] == 20 and record["positives"] == "two dropout masks"
    assert record["models"][0]["quantities"]["alignment"]["value"] > 0
    everything = measure_geometry({"m": tiny_encoder}, data, seed=3)
    assert everything["num_sentences"] == 30
    expected = dropout_distances(tiny_encoder(), sorted(texts), 64, 3)
    # Other masks fall on other sentences: the mean is near, not equal.
    assert everything["models"][0]["quantities"]["alignment"]["value"] == pytest.approx(expected.mean(), rel=0.3)


def test_a_model_without_dropout_has_no_alignment_by_it(tiny_encoder, tmp_path):
    texts = [f"the film was not very good {'very ' * i}" for i in range(20)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    data = find_geometry_data(str(tmp_path / "texts.txt"))
    record = measure_geometry({"none": lambda: tiny_encoder(dropout=0.0), "some": tiny_encoder}, data)
    assert len(record["warnings"]) == 1 and record["warnings"][0].startswith("none: the model has no dropout")
    assert "alignment" not in record["models"][0]["quantities"]
    assert "difference" not in record["models"][1]["quantities"]["alignment"]
    assert geometry_table(record).split("\n")[2].split()[:2] == ["none", "n/a"]
    write_geometry(record, tmp_path / "out")


def test_files_hold_what_was_measured(loaders, sts, tmp_path):
    record = measure_geometry(loaders, sts)
    for _ in range(2):
        write_geometry(record, tmp_path / "a" / "out")
    assert sorted(path.name for path in (tmp_path / "a" / "out").iterdir()) == [
        "geometry.csv",
        "geometry.json",
        "geometry.png",
    ]
    assert json.loads((tmp_path / "a" / "out" / "geometry.json").read_text()) == record
    with open(tmp_path / "a" / "out" / "geometry.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(QUANTITIES)
    for row in rows:
        (of_model,) = (m for m in record["models"] if m["model"] == row["model"])
        cells = {name: float(cell) for name, cell in row.items() if name not in ("model", "quantity") and cell}
        assert cells == of_model["quantities"][row["quantity"]]
    picture = imread(tmp_path / "a" / "out" / "geometry.png")
    assert picture.shape[0] > 400 and picture[..., :3].std() > 0.05
    lines = geometry_table(record).split("\n")
    assert len(lines) == 7 and len({len(line) for line in lines[1:5]}) == 1
    assert lines[3].startswith("runs/b/model") and lines[4].startswith("  less the first")
    assert [line.split(": ")[0] for line in lines[5:]] == [model["model"] for model in record["models"]]
    assert all(line.endswith(" pooling, cut to 64 tokens, no prompt, on cpu") for line in lines[5:])


def test_names_on_the_chart_are_as_short_as_tells_them_apart():
    assert short_names(["runs/a/model", "runs/b/model/"]) == ["a/model", "b/model"]
    assert short_names(["demo:minilm", "runs/x"]) == ["demo:minilm", "x"]
    assert short_names(["only/one"]) == ["one"]
    assert short_names(["model", "runs/model"]) == ["model", "runs/model"]


def test_a_split_of_sts_b_is_taken_as_asked(tmp_path):
    folder = str(write_sts_benchmark(tmp_path, num_pairs=30, split="dev", seed=1))
    assert len(find_geometry_data(folder, split="dev").positives[0]) == 10
    with pytest.raises(UserError, match="STS-B test is not there"):
        find_geometry_data(folder)
    with pytest.raises(UserError, match="--split 'validation': STS-B has train, dev, test"):
        find_geometry_data(folder, split="validation")


def test_pairs_scored_4_are_no_positives(tmp_path):
    write_sts_benchmark(tmp_path)
    path = tmp_path / "STS" / "STSBenchmark" / "sts-test.csv"
    path.write_text(path.read_text().replace("\t4.20\t", "\t4.00\t"))
    assert len(find_geometry_data(str(tmp_path)).positives[0]) == 15
    path.write_text("m\tf\t2012\t0\t4.0\ta\tb\n")
    with pytest.raises(UserError, match="no pair scored above 4"):
        find_geometry_data(str(tmp_path))


def test_what_cannot_be_measured(tiny_encoder, tmp_path, sts):
    (tmp_path / "few.txt").write_text("never\nthe film\n" * 20)
    with pytest.raises(UserError, match="has 2 sentences that differ after truncation, at least 16"):
        measure_geometry({"m": tiny_encoder}, find_geometry_data(str(tmp_path / "few.txt")))
    with pytest.raises(UserError, match="--model m is given twice"):
        check_once(["m", "n", "m"])

    def broken():
        encoder = tiny_encoder()
        next(encoder.hf.parameters()).data[:] = float("nan")
        return encoder

    with pytest.raises(UserError, match="^bad: the encoder gave vectors with NaN"):
        measure_geometry({"good": tiny_encoder, "bad": broken}, sts)
