"""Where deepspeed is not: training is refused in one line, everything else runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastadv.distributed.platforms import require_training_platform
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


@pytest.mark.parametrize("system, name", [("Windows", "Windows"), ("Darwin", "macOS"), ("FreeBSD", "FreeBSD")])
def test_a_platform_without_deepspeed_is_named_with_what_runs_there(system, name):
    with pytest.raises(UserError, match=f"Linux alone; on {name}: fastadv encode, evaluate and report") as caught:
        require_training_platform(system, has_deepspeed=False)
    assert "\n" not in str(caught.value)


def test_on_linux_the_cure_is_named():
    with pytest.raises(UserError, match="not installed; pip install deepspeed") as caught:
        require_training_platform("Linux", has_deepspeed=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("system", ["Linux", "Windows", "Darwin"])
def test_whoever_has_deepspeed_may_try(system):
    require_training_platform(system, has_deepspeed=True)


def test_deepspeed_is_looked_for(monkeypatch):
    require_training_platform()
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(UserError, match="deepspeed"):
        require_training_platform()


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
