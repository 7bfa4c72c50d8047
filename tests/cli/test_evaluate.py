"""``fastadv evaluate transfer | geometry``: what is printed and written, and that a mistake is one line."""

import json

import pytest

from fastadv.cli.main import main
from tests.evaluation.made_up_sets import write_sets, write_sts_benchmark


def run(arguments, capsys):
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def transfer(tiny_bert_dir, tmp_path, capsys):
    """``transfer(*arguments)`` runs it on two sets of made-up text and returns status, stdout and stderr."""
    data = write_sets(tmp_path / "senteval", ["SST-2", "TREC"], num_rows=12)
    (data / "TREC" / "TREC_10.label").unlink()

    def run_it(*arguments):
        options = ["--model", tiny_bert_dir, "--data", data, "--max_length", 32, "--cache_dir", tmp_path / "cache"]
        return run(["evaluate", "transfer", *options, *arguments], capsys)

    return run_it


@pytest.fixture
def geometry(tiny_bert_dir, tmp_path, capsys):
    """Likewise on STS-B's test split of made-up text."""
    data = write_sts_benchmark(tmp_path / "senteval")

    def run_it(*arguments):
        options = ["--model", tiny_bert_dir, "--data", data, "--max_length", 32]
        return run(["evaluate", "geometry", *options, *arguments], capsys)

    return run_it


def test_transfer_prints_and_writes_the_scores(transfer, tmp_path):
    arguments = ["--sets", "SST-2", "--out", tmp_path / "scores.json"]
    status, out, _ = transfer(*arguments, "--dry_run")
    assert status == 0 and "SST-2 (train 24, dev 24, test 24)" in out and "scores.json" in out
    assert not (tmp_path / "scores.json").exists() and not (tmp_path / "cache").exists()
    status, out, _ = transfer(*arguments)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert status == 0 and f"{scores['SST-2']:.2f}" in out and "cls pooling, cut to 32 tokens" in out
    details = scores["details"]
    assert details["seed"] == 1111 and details["pooling"] == "cls" and details["sets"]["SST-2"]["num_rows"] == 24
    status, again, _ = transfer(*arguments)
    assert status == 0 and again == out
    assert json.loads((tmp_path / "scores.json").read_text())["details"]["sets"]["SST-2"]["is_kept"]


def test_a_set_that_is_not_there_is_said_and_the_rest_still_scored(transfer, tmp_path):
    for arguments in (["--dry_run"], ["--out", tmp_path / "scores.json"]):
        status, out, err = transfer("--sets", "TREC", "SST-2", *arguments)
        assert status == 1
        lines = [line for line in err.splitlines() if "warning" not in line]
        assert len(lines) == 1 and lines[0].startswith("fastadv: TREC n/a: ") and "TREC_10.label is not there" in err
    cells = dict(zip(*(line.split() for line in out.splitlines()[1:])))
    assert cells["TREC"] == "n/a" and 0 <= float(cells["SST-2"]) <= 100
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["TREC"] is None and scores["SST-2"] == pytest.approx(float(cells["SST-2"]), abs=0.006)


def test_geometry_prints_and_writes_what_it_measured(geometry, tmp_path, tiny_bert_dir):
    (tmp_path / "second").symlink_to(tiny_bert_dir)
    arguments = ["--model", tmp_path / "second", "--out", tmp_path / "out" / "here", "--num_sentences", 40]
    status, out, _ = geometry(*arguments, "--dry_run")
    assert status == 0 and "40 of" in out and "20 pairs scored above 4" in out and "second" in out
    assert not (tmp_path / "out").exists()
    status, out, _ = geometry(*arguments)
    assert status == 0 and str(tmp_path / "out" / "here") in out and out.count("less the first") == 1
    assert sorted(path.name for path in (tmp_path / "out" / "here").iterdir()) == [
        "geometry.csv",
        "geometry.json",
        "geometry.png",
    ]
    record = json.loads((tmp_path / "out" / "here" / "geometry.json").read_text())
    assert record["num_sentences"] == 40 and len(record["models"]) == 2
    assert record["models"][1]["quantities"]["uniformity"]["difference"] == 0


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["transfer", "--data", "."], ["--model"]),
        (["transfer", "--model", "m"], ["--data"]),
        (["transfer", "--model", "m", "--data", "no/where"], ["no/where", "SentEval"]),
        (["transfer", "--model", "m", "--data", ".", "--sets", "SST2"], ["SST2", "SST-2", "TREC"]),
        (["transfer", "--model", "m", "--data", ".", "--sets", "MR", "MR"], ["MR, MR", "once"]),
        (["transfer", "--model", "m", "--data", ".", "--seed", "-1"], ["seed", "'-1'"]),
        (["transfer", "--model", "m", "--data", ".", "--seed", "4294967296"], ["seed", "4294967295"]),
        (["transfer", "--model", "m", "--data", ".", "--out", "scores.csv"], ["scores.csv", ".json"]),
        (["transfer", "--model", "no/such/model", "--data", "."], ["no/such/model"]),
        (["transfer", "--model", "TINY", "--data", ".", "--max_length", "65"], ["65", "64"]),
        (["transfer", "--model", "TINY", "--data", ".", "--max_length", "32", "--cache_dir", "file"], ["file"]),
        (["geometry", "--data", "."], ["--model"]),
        (["geometry", "--model", "m", "--model", "m", "--data", "."], ["m is given twice"]),
        (["geometry", "--model", "m", "--data", "no/where.txt"], ["no/where.txt"]),
        (["geometry", "--model", "m", "--data", "few.txt", "--num_sentences", "15"], ["'15'", "16"]),
        (["geometry", "--model", "m", "--data", "few.txt", "--seed", "4294967296"], ["seed", "4294967295"]),
        (["geometry", "--model", "m", "--data", "few.txt", "--out", "file"], ["file", "folder"]),
        (["geometry", "--model", "no/such/model", "--data", "few.txt"], ["no/such/model"]),
        (["geometry", "--model", "TINY", "--data", "few.txt", "--max_length", "9"], ["2 sentences", "16"]),
        (["geometry", "--model", "m", "--data", "sts", "--split", "validation"], ["validation", "dev"]),
        (["geometry", "--model", "m", "--data", "sts", "--split", "dev"], ["STS-B dev", "not there"]),
    ],
)
def test_a_mistake_is_one_line(arguments, expected, capsys, tmp_path, tiny_bert_dir, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "few.txt").write_text("never\nthe film\n")
    write_sts_benchmark(tmp_path / "sts", num_pairs=30)
    status, out, err = run(["evaluate", *(str(tiny_bert_dir) if a == "TINY" else a for a in arguments)], capsys)
    assert status == 2 and not out
    assert len(err.splitlines()) == 1 and err.startswith("fastadv: "), err
    assert all(words in err for words in expected), err
