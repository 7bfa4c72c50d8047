"""The benchmark of attacks on text: both wrappers in turns, and no speed where they disagree."""

import importlib.util
import json
import os

import pytest
import torch

if importlib.util.find_spec("textattack") is None:
    pytest.skip("the extra `attack` is not installed", allow_module_level=True)

from bench import text_attack
from bench.text_attack import OURS, THEIRS, Attacked
from fastadv.evaluation.resources.attack_data import VARIABLE, prepare
from fastadv.evaluation.text.attack import LabelledText
from tests.evaluation.attacked import TEXTS, make_classifier, own_labels, write_table
from tests.evaluation.packages import write_packages


def test_both_ways_are_timed_on_the_same_attacks(tmp_path, tiny_bert_dir, monkeypatch):
    if VARIABLE not in os.environ:
        prepare(tmp_path / "data", write_packages(tmp_path / "packages"))
        monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32)
    classifier.save_pretrained(tmp_path / "model")
    write_table(tmp_path / "texts.csv", own_labels(classifier))
    given = ["--data", tmp_path / "texts.csv", "--model", tmp_path / "model", "--texts", 3, "--max-length", 32]
    path = tmp_path / "attack.json"
    assert text_attack.main([str(value) for value in (*given, "--recipes", "deepwordbug", "--json", path)]) == 0
    first, second = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    assert (first["extra_info"]["wrapper"], second["extra_info"]["wrapper"]) == (OURS, THEIRS)
    for name in ("num_texts", "num_queries", "outcomes"):
        assert first["extra_info"][name] == second["extra_info"][name]
    ratio = first["extra_info"]["queries_per_s"] / second["extra_info"]["queries_per_s"]
    assert first["extra_info"]["ratio"] == pytest.approx(ratio) and first["extra_info"]["num_texts"] == 3
    assert first["extra_info"]["queries_per_s"] == pytest.approx(
        first["extra_info"]["num_queries"] / sum(first["stats"]["data"])
    )


def test_other_outcomes_end_it():
    texts = [LabelledText(row, (text,), 0) for row, text in enumerate(TEXTS[:2])]
    found = {
        OURS: [Attacked("failed", "a", 3, 0.1, 0.1), Attacked("succeeded", "b", 3, 0.1, 0.1)],
        THEIRS: [Attacked("failed", "a", 3, 0.4, 0.4), Attacked("failed", "b", 3, 0.4, 0.4)],
    }
    with pytest.raises(SystemExit, match=r"pwws: other outcomes .* for rows \[1\]: no speed to tell"):
        text_attack.summarise("pwws", found, texts, {})
    found[THEIRS][1] = Attacked("succeeded", "c", 3, 0.8, 0.8)
    ours, theirs = text_attack.summarise("pwws", found, texts, {})
    assert ours["extra_info"]["ratio"] == pytest.approx(6.0) and theirs["extra_info"]["queries_per_s"] == pytest.approx(
        5.0
    )
    assert ours["extra_info"]["share_equal_in_text_and_queries"] == 0.5
