"""`bench/gpu.sh`: a part that fails takes nothing from the others, and nothing is timed of a kernel that is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import part as parts
from bench.gpu import step
from bench.gpu.kernel_calls import CALLS
from bench.gpu.part import Part, unproven_ops

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(monkeypatch, tmp_path):
    """``command("--seconds", 5)``: the command line of a part, whose results go to the test's folder."""
    return lambda *more: monkeypatch.setattr(sys, "argv", ["part", "--dry", "--out", str(tmp_path), *map(str, more)])


def proven(folder, *but):
    rows = [{"op": op, "is_right": op not in but} for op in CALLS]
    (folder / "check.json").write_text(json.dumps({"results": rows}))


def test_every_part_runs_in_order_within_ten_minutes_whatever_the_others_end_with(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/calls\n[[ "$*" != *gpu.step* ]]\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python)}
    ended = subprocess.run(["bash", "bench/gpu.sh", "--dry"], cwd=ROOT, env=environment, capture_output=True, text=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    modules = [" ".join(call.split()[1:4] if "--ops" in call else call.split()[1:2]) for call in calls]
    assert modules == [
        "bench.gpu.check",
        "bench.gpu.step",
        "bench.gpu.time --ops info_nce",
        "bench.gpu.time --ops rest",
    ]
    assert ended.returncode == 1 and ended.stdout.splitlines()[-1].endswith("failed or stopped: step")
    # A part is ended 20 seconds after its last row may begin, and killed 5 seconds later.
    assert sum(float(call.split("--seconds ")[1]) + 25 for call in calls) < 600


def test_the_file_is_whole_after_every_row_and_an_error_is_a_row(command, tmp_path):
    command("--seconds", 1000)
    part = Part("check")
    part.row(lambda: {"is_right": True}, op="one")
    part.row(lambda: 1 / 0, op="two")
    written = json.loads((tmp_path / "check.json").read_text())
    assert written["results"] == [
        {"op": "one", "is_right": True},
        {"op": "two", "error": "ZeroDivisionError: division by zero"},
    ]
    assert not written["is_complete"]
    with pytest.raises(SystemExit) as ended:
        part.end()
    assert ended.value.code == 1
    assert json.loads((tmp_path / "check.json").read_text())["is_complete"]


def test_what_time_does_not_suffice_for_is_left_out_and_said(command, tmp_path, monkeypatch):
    command("--seconds", 10)
    part = Part("check")
    monkeypatch.setattr(parts.time, "perf_counter", lambda: part._start + 6)
    assert part.is_late(0.5) and not part.is_late()
    monkeypatch.setattr(parts.time, "perf_counter", lambda: part._start + 11)
    assert part.is_late()
    with pytest.raises(SystemExit):
        part.end()
    assert not json.loads((tmp_path / "check.json").read_text())["is_complete"]


def test_an_op_is_proven_by_right_rows_alone(tmp_path):
    assert unproven_ops(tmp_path, ["project"]) == ["project"]
    proven(tmp_path, "project")
    assert unproven_ops(tmp_path, ["project", "info_nce"]) == ["project"]


def test_without_a_gpu_or_a_package_it_ends_in_one_line(command, monkeypatch, tmp_path):
    monkeypatch.setattr(parts.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["part", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="bench.gpu.check: torch sees no GPU; --dry"):
        Part("check")
    command()
    with pytest.raises(SystemExit, match="^bench.gpu.step: needs no_such_package, not installed here$"):
        Part("step", needs=["torch", "no_such_package"])


@pytest.mark.parametrize("wrong", [(), ("project",)])
def test_steps_are_counted_and_timed_and_run_plain_torch_where_a_kernel_is_wrong(wrong, command, tmp_path, monkeypatch):
    """In float32, for in half precision a CPU's padding hides the gradients that torch's own counter dies of."""
    command()
    proven(tmp_path, *wrong)
    chosen = []
    monkeypatch.setattr(step, "set_backend", chosen.append)
    # Rows that compile take a minute.
    monkeypatch.setattr(Part, "is_late", lambda self, share=1.0: share < 1)
    with pytest.raises(SystemExit) as ended:
        step.main()
    assert ended.value.code == 0
    written = json.loads((tmp_path / "step.json").read_text())
    assert chosen == ["reference"] * len(wrong) and written["kernels"] == ("reference" if wrong else "auto")
    flops = {row["row"]: row["gflop"] for row in written["results"]}
    assert list(flops) == ["robustsentembed exact", "simcse exact", "robustsentembed none"]
    # Two clean passes; the adversarial ones and five inner steps besides; the gradients of all weights at each of them.
    assert flops["simcse exact"] < flops["robustsentembed exact"] < flops["robustsentembed none"]
