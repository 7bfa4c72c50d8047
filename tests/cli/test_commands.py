"""The command line: what each command prints, and that a user's mistake is one line and exit status 2."""

import html
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastadv
from fastadv.cli.main import main
from fastadv.config.schema import field_types
from fastadv.encoder import Encoder
from fastadv.report import write
from tests.encoder.sentence_files.folders import Folder
from tests.evaluation.attacked import SETS, run
from tests.evaluation.made_up_sets import write_sets, write_sts_benchmark

ROOT = Path(__file__).parents[2]


def write_sick(folder, num_pairs=6):
    """SICK's test split in SentEval layout, of a few pairs."""
    rows = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
    words = ["film", "story", "plot", "scene", "music", "camera"]
    rows += [
        f"{i}\tthe {words[i]} was good\tthe {words[-i - 1]} was not dull\t{1 + i % 5}\tNEUTRAL"
        for i in range(num_pairs)
    ]
    (folder / "SICK").mkdir(parents=True)
    (folder / "SICK/SICK_test_annotated.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def refusal(arguments, capsys):
    out, err = run(arguments, capsys, status=2)
    assert not out and len(err.splitlines()) == 1 and err.startswith("fastadv: "), err
    return err


def test_help_and_version_need_no_torch():
    code = (
        "import sys; from fastadv.cli.main import main\n"
        "try: main([sys.argv[1]])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'transformers', 'pydantic', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for flag, words in [
        ("--help", "fastadv train --config"),
        ("--version", f"fastadv {fastadv.__version__}"),
    ]:
        done = subprocess.run([sys.executable, "-c", code, flag], cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout


def test_python_m_fastadv_is_the_same_program():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "fastadv", "trian"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2 and not done.stdout
    assert (
        done.stderr.startswith("fastadv: ") and "trian" in done.stderr and "train" in done.stderr.replace("trian", "")
    )
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ([], ["COMMAND"]),
        (["evaluate"], ["evaluate", "KIND"]),
        (["encode"], ["--model", "--input", "--output"]),
        (["encode", "--model", "m", "--input", "i", "--output", "o.npy", "--colour", "red"], ["--colour"]),
        (
            ["encode", "--model", "m", "--input", "i", "--output", "o.npy", "--batch_size", "0"],
            ["batch_size", "'0'", "at least 1"],
        ),
        (
            ["encode", "--model", "m", "--input", "i", "--output", "o.npy", "--max_length", "2"],
            ["max_length", "at least 3"],
        ),
        (
            ["encode", "--model", "m", "--input", "i", "--output", "o.npy", "--pooling", "median"],
            ["pooling", "'median'", "mean"],
        ),
        (["encode", "--model", "m", "--input", "i", "--output", "o.csv"], ["o.csv", ".npy", ".parquet"]),
        (["encode", "--model", "m", "--input", "no/where.txt", "--output", "o.npy"], ["no/where.txt"]),
        (["evaluate", "sts", "--model", "m", "--data", "no/where"], ["no/where", "SentEval"]),
        (["evaluate", "sts", "--model", "m", "--data", ".", "--sets", "STS99"], ["STS99", "STS12"]),
        (["evaluate", "sts", "--model", "m", "--data", ".", "--out", "scores.txt"], ["scores.txt", ".json"]),
        (
            ["evaluate", "sts", "--model", "m", "--data", ".", "--out", "no/where.json"],
            ["no/where.json", "folder"],
        ),
        (["evaluate", "transfer", "--data", "."], ["--model"]),
        (["evaluate", "transfer", "--model", "m"], ["--data"]),
        (["evaluate", "transfer", "--model", "m", "--data", "no/where"], ["no/where", "SentEval"]),
        (["evaluate", "transfer", "--model", "m", "--data", ".", "--sets", "SST2"], ["SST2", "SST-2", "TREC"]),
        (["evaluate", "transfer", "--model", "m", "--data", ".", "--sets", "MR", "MR"], ["MR, MR", "once"]),
        (["evaluate", "transfer", "--model", "m", "--data", ".", "--seed", "-1"], ["seed", "'-1'"]),
        (["evaluate", "transfer", "--model", "m", "--data", ".", "--seed", "4294967296"], ["seed", "4294967295"]),
        (["evaluate", "transfer", "--model", "m", "--data", ".", "--out", "scores.csv"], ["scores.csv", ".json"]),
        (["evaluate", "transfer", "--model", "no/such/model", "--data", "."], ["no/such/model"]),
        (["evaluate", "transfer", "--model", "TINY", "--data", ".", "--max_length", "65"], ["65", "64"]),
        (
            ["evaluate", "transfer", "--model", "TINY", "--data", ".", "--max_length", "32", "--cache_dir", "file"],
            ["file"],
        ),
        (["evaluate", "geometry", "--data", "."], ["--model"]),
        (["evaluate", "geometry", "--model", "m", "--model", "m", "--data", "."], ["m is given twice"]),
        (["evaluate", "geometry", "--model", "m", "--data", "no/where.txt"], ["no/where.txt"]),
        (["evaluate", "geometry", "--model", "m", "--data", "few.txt", "--num_sentences", "15"], ["'15'", "16"]),
        (["evaluate", "geometry", "--model", "m", "--data", "few.txt", "--seed", "4294967296"], ["seed", "4294967295"]),
        (["evaluate", "geometry", "--model", "m", "--data", "few.txt", "--out", "file"], ["file", "folder"]),
        (["evaluate", "geometry", "--model", "no/such/model", "--data", "few.txt"], ["no/such/model"]),
        (["evaluate", "geometry", "--model", "TINY", "--data", "few.txt", "--max_length", "9"], ["2 sentences", "16"]),
        (["evaluate", "geometry", "--model", "m", "--data", "sts", "--split", "validation"], ["validation", "dev"]),
        (["evaluate", "geometry", "--model", "m", "--data", "sts", "--split", "dev"], ["STS-B dev", "not there"]),
        (["report", "no/where"], ["no/where", "folder"]),
        (["train", "--train.max_step", "3"], ["train.max_step = 3", "train.max_steps"]),
        (["train", "--dry-run"], ["--dry-run", "nearest is --dry_run"]),
        (["train", "--print-config", "--train.seed=1"], ["--print-config", "nearest is --print_config"]),
        (["train", "--confg", "a.yaml"], ["confg = a.yaml", "nearest is config"]),
        (["train", "--dry_run", "--crad", "h100"], ["crad = h100", "nearest is card"]),
        (["train", "--config", "no/where.yaml"], ["no/where.yaml", "No such file"]),
    ],
)
def test_a_mistake_is_one_line(arguments, expected, capsys, tmp_path, tiny_bert_dir, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "few.txt").write_text("never\nthe film\n")
    write_sts_benchmark(tmp_path / "sts", num_pairs=30)
    line = refusal([str(tiny_bert_dir) if argument == "TINY" else argument for argument in arguments], capsys)
    assert all(words in line for words in expected), line


def test_only_the_first_rank_speaks(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert run(["report", "no/where"], capsys, status=2) == ("", "")


def test_an_unexpected_error_keeps_its_traceback(tmp_path, monkeypatch):
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / name).touch()

    def write_whole_report(folders, out):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(write, "write_whole_report", write_whole_report)
    with pytest.raises(ZeroDivisionError):
        main(["report", str(tmp_path)])


def test_encode_writes_the_vectors_of_the_encoder(tiny_bert_dir, tmp_path, capsys):
    texts = ["the film was good .", "a dull story", "never"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    arguments = ["encode", "--model", tiny_bert_dir, "--pooling", "mean", "--max_length", "16"]
    arguments += ["--input", tmp_path / "texts.txt", "--output", tmp_path / "vectors.npy"]
    out, _ = run([*arguments, "--dry_run"], capsys)
    assert "would encode" in out and not (tmp_path / "vectors.npy").exists()
    out, _ = run(arguments, capsys)
    assert "3 vectors of 32" in out
    encoder = fastadv.Encoder.from_pretrained(str(tiny_bert_dir), pooling="mean", max_length=16)
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), encoder.encode_texts(texts))


def test_a_disk_that_takes_no_more_is_one_line(tiny_bert_dir, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("never\n" * 100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ("vectors.npy", "vectors.parquet"):
        arguments = ["encode", "--model", tiny_bert_dir, "--input", tmp_path / "texts.txt", "--output", tmp_path / name]
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
        try:
            _, err = run(arguments, capsys, status=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert f"{name} cannot be written: File too large" in err and "Traceback" not in err
    assert [path.name for path in tmp_path.glob("*vec*")] == []


def test_encode_refuses_a_length_above_the_positions(tiny_bert_dir, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("never\n")
    arguments = ["encode", "--model", tiny_bert_dir, "--max_length", "65", "--input", tmp_path / "texts.txt"]
    line = refusal([*arguments, "--output", tmp_path / "vectors.npy"], capsys)
    assert "65" in line and "64" in line


def test_evaluate_sts_prints_and_writes_the_scores(tiny_bert_dir, tmp_path, capsys, monkeypatch):
    data = write_sick(tmp_path / "senteval")
    arguments = ["evaluate", "sts", "--model", tiny_bert_dir, "--data", data, "--sets", "SICK-R", "--max_length", "32"]
    arguments += ["--out", tmp_path / "scores.json", "--cache_dir", tmp_path / "cache"]
    out, _ = run([*arguments, "--dry_run"], capsys)
    assert "SICK-R 6" in out and not (tmp_path / "scores.json").exists()
    out, _ = run(arguments, capsys)
    scores = json.loads((tmp_path / "scores.json").read_text())
    details = scores.pop("details")
    assert set(scores) == {"SICK-R", "mean"} and -100 <= scores["SICK-R"] <= 100
    assert (details["pooling"], details["max_length"], details["prompt"]) == ("cls", 32, "")
    assert f"{scores['SICK-R']:.2f}" in out and "cls pooling, cut to 32 tokens, no prompt, on cpu: Spearman" in out

    def encode_texts(*arguments, **options):
        raise AssertionError("a second run reads what the first has kept")

    monkeypatch.setattr(Encoder, "encode_texts", encode_texts)
    assert run(arguments, capsys).out == out


@pytest.fixture
def transfer(tiny_bert_dir, tmp_path, capsys):
    """``transfer(*arguments)`` runs it on two sets of made-up text and returns stdout and stderr."""
    data = write_sets(tmp_path / "senteval", ["SST-2", "TREC"], num_rows=12)
    (data / "TREC" / "TREC_10.label").unlink()

    def run_it(*arguments, status=0):
        options = ["--model", tiny_bert_dir, "--data", data, "--max_length", 32, "--cache_dir", tmp_path / "cache"]
        return run(["evaluate", "transfer", *options, *arguments], capsys, status)

    return run_it


def test_transfer_prints_and_writes_the_scores(transfer, tmp_path):
    arguments = ["--sets", "SST-2", "--out", tmp_path / "scores.json"]
    out, _ = transfer(*arguments, "--dry_run")
    assert "SST-2 (train 24, dev 24, test 24)" in out and "scores.json" in out
    assert not (tmp_path / "scores.json").exists() and not (tmp_path / "cache").exists()
    out, _ = transfer(*arguments)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert f"{scores['SST-2']:.2f}" in out and "cls pooling, cut to 32 tokens" in out
    details = scores["details"]
    assert details["seed"] == 1111 and details["pooling"] == "cls" and details["sets"]["SST-2"]["num_rows"] == 24
    # The second time the set is kept, and nothing is tokenised.
    table, said = out.splitlines()[:-1], out.splitlines()[-1]
    assert said == "SST-2: 72 texts, 25 cut to 32 tokens; 47 of 1,806 tokens unknown to the tokenizer"
    assert transfer(*arguments).out.splitlines() == table
    assert json.loads((tmp_path / "scores.json").read_text())["details"]["sets"]["SST-2"]["is_kept"]


def test_a_set_that_is_not_there_is_said_and_the_rest_still_scored(transfer, tmp_path):
    for arguments in (["--dry_run"], ["--out", tmp_path / "scores.json"]):
        out, err = transfer("--sets", "TREC", "SST-2", *arguments, status=1)
        lines = [line for line in err.splitlines() if "warning" not in line and "unknown" not in line]
        assert len(lines) == 1 and lines[0].startswith("fastadv: TREC n/a: ") and "TREC_10.label is not there" in err
    cells = dict(zip(*(line.split() for line in out.splitlines()[1:3])))
    assert cells["TREC"] == "n/a" and 0 <= float(cells["SST-2"]) <= 100
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["TREC"] is None and scores["SST-2"] == pytest.approx(float(cells["SST-2"]), abs=0.006)


def test_geometry_prints_and_writes_what_it_measured(tiny_bert_dir, tmp_path, capsys):
    data = write_sts_benchmark(tmp_path / "senteval")
    (tmp_path / "second").symlink_to(tiny_bert_dir)
    arguments = ["evaluate", "geometry", "--model", tiny_bert_dir, "--model", tmp_path / "second", "--data", data]
    arguments += ["--max_length", 32, "--out", tmp_path / "out" / "here", "--num_sentences", 40]
    out, _ = run([*arguments, "--dry_run"], capsys)
    assert "40 of" in out and "20 pairs scored above 4" in out and "second" in out
    assert not (tmp_path / "out").exists()
    out, _ = run(arguments, capsys)
    assert str(tmp_path / "out" / "here") in out and out.count("less the first") == 1
    assert sorted(path.name for path in (tmp_path / "out" / "here").iterdir()) == [
        "geometry.csv",
        "geometry.json",
        "geometry.png",
    ]
    record = json.loads((tmp_path / "out" / "here" / "geometry.json").read_text())
    assert record["num_sentences"] == 40 and len(record["models"]) == 2
    assert record["models"][1]["quantities"]["uniformity"]["difference"] == 0


def test_report_says_what_it_would_write(tmp_path, capsys):
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / name).touch()
    out, _ = run(["report", tmp_path, "--dry_run"], capsys)
    assert str(tmp_path / "report.html") in out and not (tmp_path / "report.html").exists()


def test_train_prints_the_configuration_that_it_would_run(tmp_path, capsys):
    out, _ = run(["train", "--train.max_steps", "7", "--print_config"], capsys)
    assert "max_steps: 7" in out
    (tmp_path / "printed.yaml").write_text(out)
    overrides = ["--train.max_steps=7"]
    assert fastadv.load_config(str(tmp_path / "printed.yaml")) == fastadv.load_config(overrides=overrides)


def test_train_dry_run_prints_a_plan_and_leaves_nothing(tiny_bert_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("the film was good\nnever\n")
    arguments = [
        "train",
        f"--encoder.model={tiny_bert_dir}",
        "--data.train",
        "texts.txt",
        "--train.output_dir",
        "out",
        "--dry_run",
    ]
    out, err = run(arguments, capsys)
    assert not err
    assert "texts.txt" in out and str(tiny_bert_dir) in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


def test_train_help_lists_every_key_by_stage(capsys):
    out, _ = run(["train", "--help"], capsys)
    for key in field_types():
        assert f"--{key} " in out
    assert "--objective_options.temperature" in out and "--config FILE" in out
    assert "Path to a configuration file" not in out
    assert not re.findall(r"--\w+\.\w+ \S+\s+\((?:type|default|required)", out), "a key without a word on what it is"


@pytest.fixture
def sentence_folder(tiny_bert_dir, tmp_path):
    said = {"prompts": {"query": "the film : ", "short": "a "}, "default_prompt_name": "query"}
    return Folder(modes=("cls",), after=("Normalize",), max_length=40, settings=said).write(
        tiny_bert_dir, tmp_path / "model"
    )


def test_encode_takes_the_model_s_own_prompt_unless_told(sentence_folder, tmp_path, capsys):
    texts = ["the film was good .", "never"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    arguments = ["encode", "--model", sentence_folder, "--input", tmp_path / "texts.txt", "--output"]
    made = {}
    for name, more in {"own": [], "named": ["--prompt_name", "query"], "none": ["--prompt", ""]}.items():
        run([*arguments, tmp_path / f"{name}.npy", *more], capsys)
        made[name] = np.load(tmp_path / f"{name}.npy")
    encoder = Encoder.from_pretrained(str(sentence_folder))
    np.testing.assert_array_equal(made["own"], encoder.encode_texts(texts))
    np.testing.assert_array_equal(made["own"], made["named"])
    assert np.abs(made["own"] - made["none"]).max() > 1e-3
    np.testing.assert_allclose(np.linalg.norm(made["none"], axis=1), 1, rtol=1e-5)
    line = refusal([*arguments, tmp_path / "v.npy", "--prompt_name", "passage"], capsys)
    assert "'passage'" in line and "its prompts are query, short" in line
    line = refusal([*arguments, tmp_path / "v.npy", "--prompt_name", "query", "--prompt", "x"], capsys)
    assert "both given" in line


# A kind of evaluation → its options, its results, what they say of the model, and the table for a reader.
SAYING = {
    "sts": (
        ["--data", "DATA", "--sets", "STS-B", "--cache_dir", "CACHE"],
        "out.json",
        lambda results: results["details"],
        "STDOUT",
    ),
    "transfer": (
        ["--data", "DATA", "--sets", "SST-2", "--cache_dir", "CACHE"],
        "out.json",
        lambda results: results["details"],
        "STDOUT",
    ),
    "geometry": (
        ["--data", "DATA", "--num_sentences", 20],
        "geometry.json",
        lambda results: results["models"][0],
        "STDOUT",
    ),
    "robustness": (
        ["--texts", "DATA", "--num_sentences", 16, "--edits", "swap"],
        "robustness.json",
        lambda results: results["models"][0],
        "robustness.md",
    ),
    "adv-sts": (
        ["--data", "DATA", "--max_pairs", 3, "--recipe", "synonym", "--word_sets", "SETS"],
        "text-attack.json",
        lambda results: results["models"][0],
        "text-attack.html",
    ),
    "all": (
        ["--data", "DATA", "--parts", "geometry", "--cache_dir", "CACHE"],
        "evaluation.json",
        lambda results: results["models"][0],
        "summary.md",
    ),
}


@pytest.mark.parametrize(
    "told, prompt", [([], "the film : "), (["--prompt", ""], ""), (["--prompt_name", "short"], "a ")]
)
@pytest.mark.parametrize("kind", SAYING)
def test_every_table_and_file_says_how_vectors_are_made(sentence_folder, tmp_path, capsys, kind, told, prompt):
    """By default as the model's own files say."""
    options, name, of_model, table = SAYING[kind]
    data = write_sts_benchmark(write_sets(tmp_path / "senteval", ["SST-2"], num_rows=12), num_pairs=30)
    out = tmp_path / ("out.json" if name == "out.json" else "out")
    SETS.save(tmp_path / "sets.json")
    paths = {"DATA": data, "CACHE": tmp_path / "cache", "SETS": tmp_path / "sets.json"}
    options = [paths.get(option, option) for option in options]
    arguments = ["evaluate", kind, "--model", sentence_folder, *options, "--out", out]
    printed = run([*arguments, *told], capsys).out
    results = of_model(json.loads((out if out.is_file() else out / name).read_text()))
    expected = ("cls", 40, prompt, ["Normalize"], "cpu")
    assert tuple(results[key] for key in ("pooling", "max_length", "prompt", "modules", "device")) == expected
    shown = printed if table == "STDOUT" else html.unescape((out / table).read_text())
    said = f"prompt {prompt!r}" if prompt else "no prompt"
    assert f"cls pooling, Normalize, cut to 40 tokens, {said}, on cpu" in shown


def test_train_takes_a_prompt_as_the_other_commands_do(sentence_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("the film was good\nnever\n")
    arguments = ["train", f"--encoder.model={sentence_folder}", "--data.train", "texts.txt", "--dry_run"]
    arguments += ["--evaluation.enabled=false"]
    assert "cls pooling, cut to 40 tokens, prompt 'the film : '" in run(arguments, capsys).out
    assert "cls pooling, cut to 40 tokens, no prompt" in run([*arguments, "--prompt", ""], capsys).out
    assert "prompt 'a story'" in run([*arguments, "--prompt=a story"], capsys).out
    assert "no such prompt" in refusal([*arguments, "--prompt_name", "passage"], capsys)
