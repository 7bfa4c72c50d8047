"""``fastadv evaluate robustness``: what is printed and written, and that a mistake is one line."""

import json

import numpy as np
import pytest
from matplotlib.image import imread

from fastadv.cli.main import main
from fastadv.data.variants.word_sets import WordSets
from fastadv.evaluation.robustness.page import FILES
from tests.conftest import write_tiny_bert
from tests.evaluation.attacked import TEXTS
from tests.evaluation.made_up_sets import write_sts_benchmark


def run(arguments, capsys):
    status = main(["evaluate", "robustness", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert_dir):
    """A second model, sentences, word sets, and STS-B and SICK-R of made-up text."""
    folder = tmp_path_factory.mktemp("robustness")
    write_tiny_bert(folder / "other", hidden_size=16)
    lines = [
        f"{word} {text} seen by {number + 2} people" for number, text in enumerate(TEXTS) for word in ("good", "so")
    ]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    (folder / "few.txt").write_text("never\nthe film\n")
    WordSets({"people": ["men"], "good": ["great"]}, {"good": ["bad"], "never": ["always"]}).save(folder / "sets.json")
    write_sts_benchmark(folder / "senteval", num_pairs=24)
    (folder / "senteval/SICK").mkdir()
    pairs = [f"{i}\tthe film was good {i % 5}\tthe story was {'dull' * (i % 3)}\t{1 + i % 5}\tx" for i in range(20)]
    (folder / "senteval/SICK/SICK_test_annotated.txt").write_text("\n".join(["a\tb\tc\td\te", *pairs]) + "\n")
    return folder


def test_the_files_say_what_is_printed(folder, tiny_bert_dir, capsys):
    out = folder / "out"
    given = ["--model", tiny_bert_dir, "--model", folder / "other", "--texts", folder / "texts.txt"]
    given += ["--word_sets", folder / "sets.json", "--senteval", folder / "senteval", "--num_pairs", 20, "--out", out]
    status, said, _ = run([*given, "--dry_run"], capsys)
    assert status == 0 and "24 of 24 sentences" in said and "20 pairs of STS-B" in said and not out.exists()
    assert "edited by typos, looks, spaces, synonyms (one word, 10 %, 30 %, 50 %), flipped by antonym, negation" in said
    status, said, err = run(given, capsys)
    assert status == 0 and all("unknown to the tokenizer" in line for line in err.splitlines())
    assert {path.name for path in out.iterdir()} == set(FILES)
    record = json.loads((out / "robustness.json").read_text())
    assert record["kind"] == "robustness" and record["data"]["num_sentences"] == 24
    assert record["data"]["num_pairs"] == {"STS-B": 20, "SICK-R": 20}
    first, second = record["models"]
    assert first["fingerprint"] != second["fingerprint"] and second["hidden_size"] == 16
    assert second["model"] == str(folder / "other") and first["pooling"] == "cls" and first["max_length"] == 64
    edits = 4 * 4 + 5 + 2 + 2 + 4 + 1
    assert [len(record[key]) for key in ("rows", "choices", "sts")] == [2 * edits, 2 * 16, 2 * 2 * 17]
    quantities = [row[key] for part in ("rows", "choices", "sts") for row in record[part] for key in row.keys()]
    quantities = [one for one in quantities if isinstance(one, dict) and one["value"] is not None]
    assert len(quantities) > 400 and all(one["low"] <= one["value"] <= one["high"] for one in quantities)
    names = {key for part in ("rows", "choices", "sts") for row in record[part] for key in row if key[0] != "n"}
    known = {"model", "edit", "share", "keeps_meaning", "flip", "set"}
    assert names - known <= set(record["quantities"]) and all("unit" in q for q in record["quantities"].values())
    table, page = ((out / f"robustness.{kind}").read_text(encoding="utf-8") for kind in ("md", "html"))
    row = next(r for r in record["rows"] if (r["model"], r["edit"], r["share"]) == (second["name"], "typos", 0.3))
    for text in (said, table, page):
        assert f"{row['cosine']['value']:.3f}" in text and f"less {first['name']}" in text
        assert "STS with both sentences edited" in text and "antonym" in text
    assert page.count("<svg") == 4 and "<script" not in page and first["fingerprint"][:16] in page
    picture = imread(out / "robustness.png")
    assert picture.shape[1] > picture.shape[0] > 500 and np.ptp(picture) > 0
    # What was read is said last; of models that cut texts alike, once.
    *printed, read, cut = said.splitlines()
    assert str(out) in printed[-1] and read == f"read {folder / 'texts.txt'}: 24 sentences of 24 lines"
    assert cut.startswith(f"{folder / 'texts.txt'}: 24 texts, 0 cut to 64 tokens; ")


def test_the_same_command_gives_the_same_bytes(folder, tiny_bert_dir, tmp_path, capsys):
    given = ["--model", tiny_bert_dir, "--texts", folder / "texts.txt", "--edits", "typos", "--flips", "number"]
    given += ["--num_sentences", 16, "--seed", 5]
    (_, first, _), (_, second, _) = (run([*given, "--out", tmp_path / name], capsys) for name in "ab")
    first, second = (said.replace(str(tmp_path / name), "out") for said, name in ((first, "a"), (second, "b")))
    assert first == second and "negation" not in first
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_sentences_may_be_those_of_sts_b(folder, tiny_bert_dir, capsys):
    given = ["--model", tiny_bert_dir, "--texts", folder / "senteval", "--edits", "swap", "--shares", "0.5"]
    status, said, _ = run(given, capsys)
    assert status == 0 and "sentences of STS-B test" in said.splitlines()[0] and "50 %" in said


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["--model"]),
        (["--model", "m", "--model", "m"], ["m is given twice"]),
        (["--model", "no/such/model"], ["no/such/model"]),
        (["--model", "TINY", "--max_length", "65"], ["65", "64"]),
        (["--model", "TINY", "--edits", "typo"], ["--edits", "'typo'", "typos"]),
        (["--model", "TINY", "--edits", "no.such:edit"], ["no.such"]),
        (["--model", "TINY", "--edits"], ["--edits"]),
        (["--model", "TINY", "--flips", "antonym"], ["antonym", "--word_sets"]),
        (["--model", "TINY", "--word_sets", "few.txt"], ["few.txt", "JSON"]),
        (["--model", "TINY", "--shares", "many"], ["--shares", "'many'"]),
        (["--model", "TINY", "--shares", "30"], ["--shares 30"]),
        (["--model", "TINY", "--num_sentences", "3"], ["'3'", "16"]),
        (["--model", "TINY", "--keyboard", "abc"], ["abc", "qwertz"]),
        (["--model", "TINY", "--seed", "-1"], ["seed", "'-1'"]),
        (["--model", "TINY", "--texts", "few.txt"], ["2 different", "16"]),
        (["--model", "TINY", "--texts", "none.txt"], ["none.txt"]),
        (["--model", "TINY", "--num_pairs", "9"], ["--num_pairs", "--senteval"]),
        (["--model", "TINY", "--senteval", "none"], ["none", "SentEval"]),
        (["--model", "TINY", "--out", "few.txt"], ["few.txt", "folder"]),
    ],
)
def test_a_mistake_is_one_line(folder, tiny_bert_dir, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    given = [str(tiny_bert_dir) if one == "TINY" else one for one in arguments]
    status, said, err = run(["--texts", "texts.txt", *given], capsys)
    assert status == 2 and not said
    assert len(err.splitlines()) == 1 and err.startswith("fastadv: ") and all(word in err for word in words), err
