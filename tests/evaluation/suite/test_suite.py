"""``fastadv evaluate all``: two systems of two seeds each, stopped and gone on with; and what is not right."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr

from fastadv.cli.main import main
from fastadv.encoder import Encoder
from fastadv.errors import UserError
from fastadv.evaluation.suite import adv_sts as suite_adv_sts
from fastadv.evaluation.suite import attacks as suite_attacks
from fastadv.evaluation.suite import parts as suite_parts
from fastadv.evaluation.suite.models import systems_of
from fastadv.evaluation.suite.report import FILES
from fastadv.evaluation.suite.schema import System
from fastadv.evaluation.text_report.findings import sentence
from tests.evaluation.evaluated import arguments, evaluation_of, number_of, rows_in, run, without_seconds, write_models
from tests.evaluation.made_up_sets import write_sets, write_sts_benchmark

NAMES = {"a": "one/a", "b": "one/b", "c": "two/c", "d": "two/d"}
PARTS = ["sts", "transfer", "geometry", "adv-sts", "embeddings", "text-synonym", "robustness"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert_dir):
    return write_models(tmp_path_factory.mktemp("suite"), tiny_bert_dir)


@pytest.fixture(scope="module")
def whole(folder):
    """The folder of an evaluation of all parts."""
    out = folder / "whole"
    assert main(arguments(folder, out)) == 0
    return out


def test_every_part_is_there_with_what_its_numbers_came_from(whole, folder):
    evaluation = evaluation_of(whole)
    assert list(evaluation["parts"]) == PARTS and evaluation["format"] == 2 and evaluation["seed"] == 0
    assert [system["name"] for system in evaluation["systems"]] == ["one", "two"]
    assert evaluation["systems"][1]["models"] == [str(folder / "c"), str(folder / "d")]
    for name, part in evaluation["parts"].items():
        assert part["status"] == ("partial" if name in ("sts", "transfer") else "done"), part
        assert part["files"] and all((whole / file).is_file() for file in part["files"])
        data = part["protocol"]["data"]
        assert len(data["sha256"]) == 64 and data["num_rows"] > 0 and data["path"]
    assert {"fastadv", "torch", "transformers", "scikit-learn"} <= set(evaluation["versions"])
    for model, (path, name) in zip(evaluation["models"], NAMES.items()):
        assert (model["model"], model["name"], model["system"]) == (str(folder / path), name, name[:3])
        assert model["kind"] == "classifier" and model["pooling"] == "cls" and model["max_length"] == 64
    assert len({model["fingerprint"] for model in evaluation["models"]}) == 4
    assert {row["part"] for row in evaluation["numbers"] if row["seed"] == 1111} == {"transfer"}
    assert {row["part"] for row in evaluation["numbers"] if row["value"] is not None} == set(PARTS)
    for row in evaluation["numbers"]:
        assert (row["value"] is None) == (row["why"] is not None)
        if row["value"] is not None:
            assert row["num"] > 0 and row["low"] <= row["value"] <= row["high"]
            assert (row["spread"] is None) == (row["model"] is not None)
    for row in evaluation["differences"]:
        assert row["system"] == "two" and row["baseline"] == "one" and row["low"] <= row["value"] <= row["high"]
        assert 0 < row["p_value"] <= row["p_holm"] <= 1
    for name in ("numbers", "differences"):
        rows = rows_in(whole / f"{name}.csv")
        assert len(rows) == len(evaluation[name])
        for row, line in zip(evaluation[name], rows):
            assert {k: "" if v is None else str(v) for k, v in row.items()} == line
    summary = (whole / "summary.md").read_text(encoding="utf-8")
    assert all(f"## {name}\n" in summary for name in PARTS) and "n/a in STS12" in summary
    for part in ("adv-sts", "text-synonym"):
        said = [sentence(f) for f in evaluation["parts"][part]["findings"] if f["cap"] == "any"]
        assert len(said) == 3 and all(f"* {line}\n" in summary for line in said)


def test_rates_of_texts_are_those_of_their_rows(whole, folder):
    evaluation = evaluation_of(whole)
    report = json.loads((whole / "text-synonym/text-attack.json").read_text(encoding="utf-8"))
    for model, name in NAMES.items():
        rows = rows_in(whole / f"text-synonym/rows-{name.replace('/', '-')}.csv")
        outcomes = [row["outcome"] for row in rows]
        num_attacked = outcomes.count("succeeded") + outcomes.count("failed")
        shares = {
            "accuracy": (num_attacked, 12),
            "accuracy under attack": (outcomes.count("failed"), 12),
            "attack success": (outcomes.count("succeeded"), num_attacked),
        }
        assert len(rows) == 12
        rates = next(entry["rates"] for entry in report["models"] if entry["name"] == name)
        assert rates["success"]["any"]["count"] == outcomes.count("succeeded")
        assert rates["robust_accuracy"]["value"] == outcomes.count("failed") / 12
        for metric, (count, total) in shares.items():
            row = number_of(evaluation, part="text-synonym", metric=metric, model=str(folder / model))
            assert row["value"] == (100 * (count / total) if total else None)


def test_adversarial_sts_is_that_of_its_rows(whole, folder):
    evaluation = evaluation_of(whole)
    report = json.loads((whole / "adv-sts/text-attack.json").read_text(encoding="utf-8"))
    assert sum("control" in entry for entry in report["models"]) == 3
    for model, name in NAMES.items():
        rows = rows_in(whole / f"adv-sts/rows-{name.replace('/', '-')}.csv")
        human = [float(row["label"]) for row in rows]
        before, after = ([float(row[name]) for row in rows] for name in ("score", "score_adversarial"))
        is_fooled = [abs(s - y) + 1 <= abs(t - y) for s, t, y in zip(before, after, human)]
        assert [row["outcome"] == "succeeded" for row in rows] == is_fooled and len(rows) == 12
        wanted = {
            "fooled": 100 * (sum(is_fooled) / 12),
            "spearman": 100 * float(spearmanr(before, human).statistic),
            "spearman under attack": 100 * float(spearmanr(after, human).statistic),
        }
        for metric, value in wanted.items():
            row = number_of(evaluation, part="adv-sts", metric=metric, model=str(folder / model))
            assert row["value"] == value
        entry = next(entry for entry in report["models"] if entry["name"] == name)
        assert entry["rates"]["success"]["any"]["count"] == sum(is_fooled)
        assert entry["spearman_adversarial"] == wanted["spearman under attack"]


def test_accuracy_under_pgd_is_that_of_its_rows(whole, folder):
    evaluation = evaluation_of(whole)
    rows = rows_in(whole / "embeddings/attack.csv")
    for model, name in NAMES.items():
        radii = [float(row["fooling_epsilon"] or "inf") for row in rows if row["model"] == name]
        for epsilon in (None, 0.1, 1.0):
            row = number_of(evaluation, part="embeddings", epsilon=epsilon, model=str(folder / model))
            num_right = sum(radius > (epsilon or 0.0) for radius in radii)
            assert row["value"] == pytest.approx(100 * num_right / 12, abs=1e-12) and row["num"] == 12


def test_robustness_is_that_of_its_file(whole, folder):
    evaluation = evaluation_of(whole)
    record = json.loads((whole / "robustness/robustness.json").read_text(encoding="utf-8"))
    assert record["settings"]["word_sets"] == str(folder / "sets.json") and record["data"]["num_sentences"] == 16
    for model, name in NAMES.items():
        of_model = {"part": "robustness", "model": str(folder / model)}
        rows = {(row["edit"], row["share"]): row for row in record["rows"] if row["model"] == name}
        for key, words in {("typos", None): "typos, one word", ("synonyms", 0.3): "synonyms, 30 % of words"}.items():
            found = [
                number_of(evaluation, metric=f"{metric}, {words}", **of_model) for metric in ("cosine", "retrieval@1")
            ]
            wanted = [rows[key][metric] for metric in ("cosine", "retrieval")]
            assert [row["value"] for row in found] == pytest.approx([one["value"] for one in wanted], abs=1e-12)
            assert [row["num"] for row in found] == [rows[key]["num"]] * 2
        (choice,) = (
            row for row in record["choices"] if (row["model"], row["edit"], row["flip"]) == (name, "typos", "negation")
        )
        nearer = number_of(evaluation, metric="typos nearer than negation", **of_model)
        assert (nearer["value"], nearer["low"]) == pytest.approx((choice["nearer"]["value"], choice["nearer"]["low"]))
    metrics = {row["metric"] for row in evaluation["numbers"] if row["part"] == "robustness"}
    assert not any("swap" in metric for metric in metrics) and "cosine, negation, one change" in metrics


def test_a_stopped_evaluation_goes_on(whole, folder, tmp_path, capsys, monkeypatch):
    # As a run leaves it that was stopped before the embeddings were done.
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    for pattern in ("parts/embeddings-*", "parts/text-*", *FILES):
        for path in out.glob(pattern):
            path.unlink()
    for name in PARTS[4:]:
        shutil.rmtree(out / name)
    attack = suite_attacks.AttackRun.run

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(suite_attacks.AttackRun, "run", stop)
    for part in (suite_parts.StsPart, suite_parts.TransferPart, suite_parts.GeometryPart, suite_adv_sts.AdvStsPart):
        monkeypatch.setattr(part, "measure", stop)
    with pytest.raises(KeyboardInterrupt):
        main(arguments(folder, out))
    assert list(evaluation_of(out)["parts"]) == PARTS[:4]
    monkeypatch.setattr(suite_attacks.AttackRun, "run", attack)
    said = run(arguments(folder, out), capsys)
    assert "[7/7] robustness done" in said.err
    assert without_seconds(evaluation_of(out)) == without_seconds(evaluation_of(whole))
    for name in ("numbers.csv", "differences.csv", "summary.md"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_what_has_changed_is_measured_again(folder, tmp_path, capsys):
    out = tmp_path / "out"
    given = [*arguments(folder, out, "--parts", "sts", models=["a"])]
    run(given, capsys, status=1)
    before = number_of(evaluation_of(out), set="STS-B", model=str(folder / "a"))
    data = write_sts_benchmark(tmp_path / "senteval", seed=5)
    given[given.index("--data") + 1] = str(data)
    run(given, capsys, status=1)
    after = number_of(evaluation_of(out), set="STS-B", model=str(folder / "a"))
    assert before["value"] != after["value"] and len(list((out / "parts").glob("sts-*.npz"))) == 2
    # A damaged part is no part.
    for path in (out / "parts").glob("sts-*.npz"):
        path.write_bytes(path.read_bytes()[:200])
    run(given, capsys, status=1)
    assert number_of(evaluation_of(out), set="STS-B", model=str(folder / "a")) == after


@pytest.fixture(scope="module")
def hostile(folder, tiny_bert_dir):
    """Encoders whose vectors are all equal, or NaN."""
    for name, value in (("constant", 0.0), ("nan", float("nan"))):
        encoder = Encoder.from_pretrained(str(tiny_bert_dir), pooling="cls")
        with torch.no_grad():
            for parameter in encoder.hf.encoder.layer[-1].output.LayerNorm.parameters():
                parameter.fill_(value)
        encoder.save_pretrained(folder / name)
    return folder


def test_models_that_do_not_work_leave_the_others_theirs(hostile, tmp_path, capsys):
    parts = ["--parts", "sts", "transfer", "geometry", "adv-sts"]
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    run(arguments(hostile, alone, *parts, models=["good=a"]), capsys, status=1)
    said = run(arguments(hostile, beside, *parts, models=["equal=constant", "good=a", "nan=nan"]), capsys, status=1)
    assert "equal: the model gives every text the same vector" in said.err and "nan: " in said.err
    evaluation = evaluation_of(beside)
    assert {part["status"] for part in evaluation["parts"].values()} == {"partial"}
    good = [row for row in evaluation["numbers"] if row["system"] == "good"]
    assert good == evaluation_of(alone)["numbers"] and evaluation["differences"] == []
    for name, why in (("equal", "same vector"), ("nan", "NaN")):
        rows = [row for row in evaluation["numbers"] if row["system"] == name]
        assert len(rows) == len(good) and all(row["value"] is None and why in row["why"] for row in rows)
    run(arguments(hostile, tmp_path / "none", *parts, models=["nan"]), capsys, status=1)
    assert {part["status"] for part in evaluation_of(tmp_path / "none")["parts"].values()} == {"n/a"}


def test_data_that_are_not_right_are_n_a_and_the_rest_runs(folder, tmp_path, capsys):
    data = write_sts_benchmark(tmp_path / "senteval")
    write_sets(data, ["SST-2", "MRPC"], num_rows=40)
    (data / "STS/STSBenchmark/sts-test.csv").write_text("")
    sst = data / "SST/binary/sentiment-train"
    sst.write_text("".join(line[:-1] + "1\n" for line in sst.read_text().splitlines()))
    out = tmp_path / "out"
    given = arguments(folder, out, models=["a"])
    given[given.index("--data") + 1] = str(data)
    given[given.index("--labelled") + 1] = str(tmp_path / "none.csv")
    given[given.index("--word_sets") + 1] = str(tmp_path / "none.json")
    planned = run([*given, "--dry_run"], capsys, status=1).out
    assert "sts: n/a: " in planned and "transfer: rows: SST-2" in planned and not out.exists()
    run(given, capsys, status=1)
    parts = evaluation_of(out)["parts"]
    assert {name for name, part in parts.items() if part["status"] == "n/a"} == set(PARTS) - {"transfer"}
    assert all(part["why"] for part in parts.values())
    assert "sts-test.csv" in parts["geometry"]["why"] and "none.json" in parts["text-synonym"]["why"]
    evaluation = evaluation_of(out)
    one_class = number_of(evaluation, set="SST-2", model=str(folder / "a"))
    assert one_class["value"] is None and "all 80 rows of train" in one_class["why"]
    assert number_of(evaluation, set="MRPC", metric="accuracy", model=str(folder / "a"))["value"] is not None
    assert number_of(evaluation, set="mean with TREC", model=str(folder / "a"))["value"] is None


def test_a_mistake_of_ours_is_not_swallowed(folder, tmp_path, monkeypatch):
    def break_down(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(suite_parts.StsPart, "measure", break_down)
    with pytest.raises(ZeroDivisionError):
        main(arguments(folder, tmp_path / "out", "--parts", "sts", models=["a"]))


def test_the_plan_names_parts_and_kinds(folder, tmp_path, capsys):
    planned = run(arguments(folder, tmp_path / "out", "--dry_run"), capsys).out
    assert "(classifier)" in planned and "geometry: 120 of 120 sentences" in planned
    assert "sts, STS12: n/a:" in planned and "text-synonym: 12 texts" in planned
    assert "robustness: 16 of 24 sentences of" in planned
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "models,words",
    [
        (["x=a,b", "x=c"], ["two systems", "'x'"]),
        (["x=a,b", "y=b/"], ["b", "twice"]),
        (["x=a,,b"], ["x=a,,b", "DIR"]),
        (["x=tests,./tests"], ["tests", "twice"]),
    ],
)
def test_systems_that_are_not_told_apart_are_refused(models, words):
    with pytest.raises(UserError) as error:
        systems_of(models)
    assert all(word in str(error.value) for word in words)


def test_an_existing_folder_is_no_list_and_has_no_name(tmp_path, monkeypatch):
    """As sweeps call their folders."""
    monkeypatch.chdir(tmp_path)
    folders = ["lr=3e-5,bs=8/model", "lr=1e-5/model", "runs/lr=3e-5,bs=8/model", "x", "a,b", "b"]
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    for folder in folders:
        assert [system.models for system in systems_of([folder])] == [(folder,)]
    assert systems_of([",".join(folders[:3])])[0].models == tuple(folders[:3])
    assert systems_of([f"mine={folders[2]},{folders[1]}", "x"]) == [
        System("mine", (folders[2], folders[1])),
        System("x", ("x",)),
    ]
    assert systems_of(["lr=nowhere,x"]) == [System("lr", ("nowhere", "x"))]
    # Of two readings that are there the longer name is the one that is meant.
    assert systems_of(["x,a,b"])[0].models == ("x", "a,b")


def test_names_of_systems():
    assert [system.name for system in systems_of(["runs/a/model", "RAR=runs/b/model,runs/c/model"])] == ["a", "RAR"]
    assert systems_of(["runs/lr=1/model"])[0].models == ("runs/lr=1/model",)
    assert systems_of(["a=runs/lr=1/model"])[0] == System("a", ("runs/lr=1/model",))
    for given, name in (("runs/mine/model", "mine"), ("/runs/mine/", "mine"), ("demo:minilm", "demo:minilm")):
        assert systems_of([given])[0].name == name


@pytest.mark.parametrize(
    "more,words",
    [
        (["--parts", "sts", "stt"], ["stt", "transfer"]),
        (["--parts", "sts", "sts"], ["--parts", "once"]),
        (["--model", "no/where"], ["no/where"]),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, capsys, more, words):
    said = run(arguments(folder, tmp_path / "out", *more, models=["a"]), capsys, status=2)
    assert said.err.count("\n") == 1 and all(word in said.err for word in words)


def test_a_folder_of_something_else_is_not_written_to(folder, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert "something other" in run(arguments(folder, tmp_path, models=["a"]), capsys, status=2).err
