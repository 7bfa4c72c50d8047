"""Where deepspeed is not: training is refused in one line, everything else runs."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fastadv.distributed.processes import require_training_platform
from fastadv.errors import UserError

ROOT = Path(__file__).resolve().parents[2]

# As on a machine without it: importing it fails, and find_spec finds nothing.
BLOCKED = """
import importlib, pkgutil, sys
sys.modules["deepspeed"] = None
"""
IMPORT_ALL = """
import fastadv, fastadv_kernels
for package in (fastadv, fastadv_kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("_native"):
            importlib.import_module(module.name)
"""
RUN = """
from fastadv.cli.main import main
then = sys.argv.index("then")
sys.exit(main(sys.argv[1:then]) or main(sys.argv[then + 1:]))
"""


def without_deepspeed(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    command = [sys.executable, "-c", BLOCKED + code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "system, message",
    [
        ("Windows", "Linux alone; on Windows: fastadv encode, evaluate and report"),
        ("Darwin", "Linux alone; on macOS: fastadv encode, evaluate and report"),
        ("FreeBSD", "Linux alone; on FreeBSD: fastadv encode, evaluate and report"),
        ("Linux", "not installed; pip install deepspeed"),
    ],
)
def test_training_without_deepspeed_is_refused_and_told_what_runs(system, message, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: system)
    require_training_platform()
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(UserError, match=message) as caught:
        require_training_platform()
    assert "\n" not in str(caught.value)


def test_every_module_imports_without_deepspeed():
    without_deepspeed(IMPORT_ALL)


def test_encode_and_evaluate_run_without_deepspeed(tiny_bert_dir, tmp_path):
    (tmp_path / "texts.txt").write_text("a film\na story\n", encoding="utf-8")
    (tmp_path / "SICK").mkdir()
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    rows = "".join(f"{i}\tthe {word} was good\tthe plot\t{i}\tNEUTRAL\n" for i, word in enumerate(["film", "plot"], 1))
    (tmp_path / "SICK" / "SICK_test_annotated.txt").write_text(head + rows, encoding="utf-8")
    encode = "--input", tmp_path / "texts.txt", "--output", tmp_path / "vectors.npy"
    evaluate = "--data", tmp_path, "--sets", "SICK-R", "--max_length", "60", "--cache_dir", tmp_path / "cache"
    model = "--model", tiny_bert_dir
    printed = without_deepspeed(RUN, "encode", *model, *encode, "then", "evaluate", "sts", *model, *evaluate)
    assert "2 vectors of 32" in printed and "SICK-R" in printed
