"""What needs no real GPU to be seen on one: each file of `checks`, in a process whose torch has pretended GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.device.build import compiler

ROOT = Path(__file__).parents[2]
CHECKS = sorted(path.name for path in (Path(__file__).parent / "checks").glob("check_*.py"))
TORCH = "2.13"
"""The device reaches into what torch keeps to itself; this is the release that CI installs."""


@pytest.fixture(autouse=True)
def device_can_be_made():
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA, beside which no device can be pretended")
    if not torch.__version__.startswith(f"{TORCH}."):
        pytest.skip(f"the pretended GPU is made for torch {TORCH}; this is {torch.__version__}")
    if compiler() is None:
        reason = "no C++ compiler (CXX, or g++), with which the pretended GPU is built"
        pytest.fail(reason) if os.environ.get("FASTADV_REQUIRE_NATIVE") else pytest.skip(reason)


@pytest.mark.parametrize("check", CHECKS)
def test_on_a_gpu(check):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.gpu.device.plugin", "-p", "no:cacheprovider"]
    command += ["-o", "python_files=check_*.py", str(Path(__file__).parent / "checks" / check)]
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cuda",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "kernels"), *sys.path]),
    }
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
    assert " passed" in run.stdout and " skipped" not in run.stdout
