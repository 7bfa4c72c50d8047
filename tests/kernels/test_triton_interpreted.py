"""The Triton kernels' values, in Triton's interpreter: each file in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = ("check_eta_table.py", "check_steps.py")

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize("file", FILES, ids=str)
def test_in_the_interpreter(file):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
    command.append(str(Path(__file__).parent / "interpreted" / file))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2_000:]
    assert " passed" in run.stdout and " skipped" not in run.stdout
