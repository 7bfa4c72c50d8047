"""``fastadv attack``: files that say what was found, finished parts kept and never mixed, mistakes of one line."""

import json

import numpy as np
import pytest

from fastadv.config.embedding_attack import AttackSettings
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.embeddings import classifier_attack
from fastadv.evaluation.embeddings.run import AttackRun
from fastadv.evaluation.intervals import paired_interval, value_interval
from fastadv.evaluation.model_names import short_names
from fastadv.evaluation.text.attacked_data import AttackedData, hash_of_texts
from fastadv.files.csv_file import read_csv
from tests.evaluation.attacked import CLASSES, TEXTS, run

# --epsilons in any order; they come back ascending.
FAST = ["--num_steps", "3", "--epsilons", "0.5", "0.1"]


@pytest.fixture(scope="module")
def folder(attacked_folder):
    return attacked_folder


def arguments(folder, out, *more, models=("a",)):
    chosen = [argument for name in models for argument in ("--model", str(folder / name / "model"))]
    return ["attack", *chosen, "--data", str(folder / "texts.csv"), "--out", str(out), *FAST, *map(str, more)]


def read(out):
    return json.loads((out / "attack.json").read_text()), read_csv(out / "attack.csv")


def test_files_say_what_was_found(folder, tmp_path, capsys):
    out = tmp_path / "out"
    printed = run(arguments(folder, out), capsys)
    results, rows = read(out)
    assert [int(row["row"]) for row in rows] == list(range(len(TEXTS)))
    (model,) = results["models"]
    assert model["name"] == str(folder / "a/model") and model["labels"] == list(CLASSES)
    assert results["settings"]["epsilons"] == [0.1, 0.5] and results["data"]["num_texts"] == 12
    assert {"torch", "transformers", "fastadv", "python", "numpy"} <= set(results["versions"])
    # Labelled by the model itself: right everywhere before, and interval and classes as the csv has them.
    assert model["accuracy"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    for entry in model["epsilons"]:
        epsilon = entry["epsilon"]
        is_right = np.array([not row["fooling_epsilon"] or float(row["fooling_epsilon"]) > epsilon for row in rows])
        interval = value_interval(is_right, seed=0)
        assert entry["accuracy"] == pytest.approx(vars(interval))
        for name, found in entry["per_class"].items():
            of_class = np.array([row["label"] == name for row in rows])
            assert found == {"accuracy": pytest.approx(is_right[of_class].mean()), "num_texts": of_class.sum()}
        for key in ("distance_l2", "distance_cosine"):
            distances = [float(row[f"{key}@{epsilon:g}"]) for row in rows]
            assert entry[key]["value"] == pytest.approx(np.mean(distances), rel=1e-4)
            assert entry[key]["low"] < entry[key]["value"] < entry[key]["high"]
    accuracies = [entry["accuracy"]["value"] for entry in model["epsilons"]]
    assert 1 > accuracies[0] > accuracies[1]
    assert f"{accuracies[0]:.3f} [" in printed.out and "epsilon 0.1" in printed.out
    assert (out / "attack.png").read_bytes().startswith(b"\x89PNG")
    assert [check["name"] for check in model["checks"]] == [
        "gradients",
        "more_steps",
        "random_direction",
        "large_radius",
    ]
    assert not model["warnings"] and not printed.err


def test_the_library_gives_the_same_numbers(folder, tmp_path, capsys):
    out = tmp_path / "out"
    run(arguments(folder, out, "--no_checks", "--batch_size", 5), capsys)
    results, rows = read(out)
    data, _ = AttackedData(str(folder / "texts.csv")).read()
    settings = AttackSettings(epsilons=(0.1, 0.5), num_steps=3)
    found = classifier_attack.attack_classifier(Classifier.from_pretrained(str(folder / "a/model")), data, settings)
    assert [row["accuracy"]["value"] for row in results["models"][0]["epsilons"]] == found.is_right.mean(
        axis=1
    ).tolist()
    fooled = [float(row["fooling_epsilon"] or "inf") for row in rows]
    assert fooled == found.fooling_epsilon.tolist()
    assert results["models"][0]["checks"] == [] and results["data"]["hash"] == hash_of_texts(data)


def parts_of(out):
    return {path.name for path in (out / "parts").iterdir()}


def test_finished_parts_are_kept_and_never_mixed(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    first = run(arguments(folder, out), capsys).out
    before = parts_of(out)
    assert len(before) == 4  # clean, two radii, checks
    written = (out / "attack.json").read_text()
    with monkeypatch.context() as nothing_runs:
        nothing_runs.setattr(classifier_attack, "Target", None)
        assert run(arguments(folder, out), capsys).out == first
        assert (out / "attack.json").read_text() == written
        # Fewer radii are those that are there; the checks are of all radii together.
        run([*arguments(folder, out, "--no_checks")[:-3], "0.1", "--no_checks"], capsys)
        assert [row["epsilon"] for row in read(out)[0]["models"][0]["epsilons"]] == [0.1]
    assert parts_of(out) == before
    # The larger radius by itself is another part: it has met no text that the smaller one fools.
    run([*arguments(folder, out)[:-1], "--no_checks"], capsys)
    assert [row["epsilon"] for row in read(out)[0]["models"][0]["epsilons"]] == [0.5]
    assert len(parts_of(out)) == 5
    # One radius more is one part more, and another setting is other parts.
    run([*arguments(folder, out), "2", "--no_checks"], capsys)
    assert len(parts_of(out)) == 6
    for more in (["--num_restarts", 2], ["--keep_special_tokens"], ["--seed", 1], ["--max_texts", 9]):
        run(arguments(folder, tmp_path / "out", "--no_checks", *more), capsys)
    # The clean pass of the same texts is shared: --max_texts alone makes another.
    assert len(parts_of(out)) == 6 + 3 * 2 + 3


def test_other_weights_and_a_damaged_part_are_computed_again(folder, tmp_path, capsys):
    out = tmp_path / "out"
    expected = run(arguments(folder, out, "--no_checks"), capsys).out
    written, before = (out / "attack.json").read_text(), parts_of(out)
    for path in (out / "parts").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert run(arguments(folder, out, "--no_checks"), capsys).out == expected
    assert (out / "attack.json").read_text() == written and parts_of(out) == before
    run(arguments(folder, out, "--no_checks", models=("b",)), capsys)
    assert len(parts_of(out)) == 2 * len(before)


def test_models_side_by_side(folder, tmp_path, capsys):
    out = tmp_path / "out"
    printed = run(arguments(folder, out, "--transfer_from", folder / "b/model", models=("a", "b")), capsys).out
    results, rows = read(out)
    assert [model["name"] for model in results["models"]] == ["a", "b"]
    first, second = ([row for row in rows if row["model"] == name] for name in "ab")
    assert len(first) == len(second) == 12
    for number, epsilon in enumerate((0.1, 0.5)):
        right = [
            np.array([float(row["fooling_epsilon"] or "inf") > epsilon for row in of_model])
            for of_model in (first, second)
        ]
        expected = paired_interval(right[0], right[1], seed=0)
        assert results["models"][1]["epsilons"][number]["accuracy_difference"] == pytest.approx(vars(expected))
        assert 0 <= results["models"][0]["epsilons"][number]["accuracy_transferred"] <= 1
    assert "accuracy_difference" not in results["models"][0]["epsilons"][0]
    assert ["a", "b"] in [line.split() for line in printed.splitlines()]
    assert results["protocol"]["transfer_from"] == str(folder / "b/model")


def test_warnings_are_told(folder, tmp_path, capsys):
    out = tmp_path / "out"
    printed = run(arguments(folder, out, models=("constant",)), capsys)
    (model,) = read(out)[0]["models"]
    assert len(model["warnings"]) == 4
    lines = printed.err.splitlines()
    assert lines == [f"warning: {model['name']}: {warning}" for warning in model["warnings"]]


def test_texts_that_are_all_wrong_are_no_robustness(folder, tmp_path, capsys):
    texts = tmp_path / "wrong.csv"
    rows = read_csv(folder / "texts.csv")
    names = {name: CLASSES[(CLASSES.index(name) + 1) % len(CLASSES)] for name in CLASSES}
    lines = [f'"{row["text"]}",{names[row["label"]]}' for row in rows]
    texts.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    out = tmp_path / "out"
    printed = run(arguments(folder, out, "--data", texts), capsys)
    (model,) = read(out)[0]["models"]
    assert (model["num_attacked"], model["num_skipped"]) == (0, len(rows))
    assert model["warnings"][0].startswith("no text is right without an attack: none was attacked")
    of_radii = [line for line in printed.out.splitlines() if "epsilon" in line and "embeddings" not in line]
    assert of_radii and all(line.endswith("n/a") for line in of_radii)


def test_texts_are_drawn_by_the_seed(folder, tmp_path):
    source = str(folder / "texts.csv")
    (first, rows), (again, _) = (AttackedData(source, max_texts=5, seed=1).read() for _ in range(2))
    everything, all_rows = AttackedData(source, max_texts=None).read()
    assert first.first == again.first == [TEXTS[row] for row in rows] and sorted(rows) == list(rows) and len(rows) == 5
    assert first.labels == [everything.labels[row] for row in rows] and len(all_rows) == 12
    other, _ = AttackedData(source, max_texts=5, seed=2).read()
    assert hash_of_texts(other) != hash_of_texts(first) == hash_of_texts(again)


def test_dry_run_leaves_nothing(folder, tmp_path, capsys):
    out = tmp_path / "out"
    printed = run(arguments(folder, out, "--dry_run", "--num_restarts", 3), capsys)
    line = printed.out
    assert line.startswith("would attack") and "0.1, 0.5" in line and "3 runs" in line and str(out) in line
    assert not out.exists()
    one_step = ["attack", "--model", str(folder / "a/model"), "--data", str(folder / "texts.csv"), "--out", str(out)]
    assert "1 step," in run([*one_step, "--method", "fgm", "--dry_run"], capsys).out


def test_short_names():
    assert short_names(["runs/ft/model", "runs/scal/model/"]) == ["ft", "scal"]
    assert short_names(["runs/ft/model/"]) == ["runs/ft/model"]
    assert short_names(["a", "b"]) == ["a", "b"]
    assert short_names(["runs/x", "runs/x/model"]) == ["x", "x/model"]


@pytest.mark.parametrize(
    "more, expected",
    [
        (["--method", "cw"], ["--method", "'cw'", "apgd"]),
        (["--method", "fgm"], ["fgm", "num_steps"]),
        (["--norm", "l1"], ["--norm", "'l1'"]),
        (["--epsilons", "-1"], ["epsilons", "-1", "at least 0"]),
        (["--epsilons", "big"], ["--epsilons", "'big'"]),
        (["--step_sizes", "0"], ["step_sizes", "above 0"]),
        (["--num_steps", "0"], ["--num_steps", "'0'", "at least 1"]),
        (["--max_length", "65"], ["65", "64"]),
        (["--label_field", "stars"], ["stars"]),
        (["--data", "no/where.csv"], ["no/where.csv"]),
        (["--model", "no/where"], ["no/where"]),
        (["--transfer_from", "no/where"], ["no/where"]),
    ],
)
def test_a_mistake_is_one_line(folder, tmp_path, capsys, more, expected):
    printed = run([*arguments(folder, tmp_path / "out"), *more], capsys, status=2)
    assert not printed.out and len(printed.err.splitlines()) == 1 and printed.err.startswith("fastadv: ")
    assert all(words in printed.err for words in expected), printed.err
    assert not (tmp_path / "out").exists()


def test_mistakes_of_models_and_folders(folder, tmp_path, capsys, tiny_bert_dir):
    def refusal(arguments):
        printed = run(arguments, capsys, status=2)
        assert not printed.out and len(printed.err.splitlines()) == 1
        return printed.err

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    assert "notes" not in refusal(arguments(folder, tmp_path / "taken"))
    assert "something other than an attack" in refusal(arguments(folder, tmp_path / "taken"))
    assert "is a file" in refusal(arguments(folder, tmp_path / "taken" / "notes.txt"))
    assert "twice" in refusal(arguments(folder, tmp_path / "out", models=("a", "a")))
    untrained = ["attack", "--model", str(tiny_bert_dir), "--data", str(folder / "texts.csv")]
    assert "no trained classifier" in refusal([*untrained, "--out", str(tmp_path / "out")])
    with pytest.raises(UserError, match="twice"):
        AttackRun(["x", "x"], AttackedData("texts.csv"), AttackSettings(), "out")
    (tmp_path / "other.csv").write_text("text,label\nnever,bad\nit is dull,awful\n")
    unknown = [*arguments(folder, tmp_path / "out"), "--data", str(tmp_path / "other.csv")]
    assert "'awful'" in refusal(unknown)
