"""What needs no real GPU to be seen: `checks`, and tests of runs, in processes whose torch has pretended GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.device.build import compiler

ROOT = Path(__file__).parents[2]
CASES = {
    "device": ["tests/gpu/checks/check_device.py"],
    "waits": ["tests/gpu/checks/check_waits.py"],
    "trainings": ["tests/gpu/checks/check_trainings.py"],
}
"""Files of one process each"""
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


@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name):
    run_pytest(*CASES[name], options=["-p", "tests.gpu.device.plugin"], environment={"DS_ACCELERATOR": "cuda"})


@pytest.mark.several_processes
def test_two_ranks_on_two_gpus():
    """Every ZeRO stage in both precisions, a stop in between, dev scores, and what is not finite on one rank alone."""
    run_pytest("tests/ranks/test_run.py", options=[], environment={"PRETENDED_GPUS": "2"})


def run_pytest(*files, options, environment):
    """Runs the tests of ``files`` in a process of their own, none of which may fail or be skipped."""
    command = [sys.executable, "-m", "pytest", "-q", *options, "-p", "no:cacheprovider", "--tb=short", *files]
    paths = os.pathsep.join([str(ROOT / "kernels"), *sys.path])
    # Of the process that this is, pytest-xdist among others.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own |= {"PYTHONPATH": paths, **environment}
    run = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
    assert " passed" in run.stdout and " skipped" not in run.stdout
