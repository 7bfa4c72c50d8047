"""The Triton kernels' values, in Triton's interpreter: one process for all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_in_the_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
    command += ["-o", "python_files=check_*.py", str(Path(__file__).parent / "interpreted")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2_000:]
    assert " passed" in run.stdout and " skipped" not in run.stdout
