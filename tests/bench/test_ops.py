"""The benchmark of the CPU ops writes what the summary reads. No test asserts a time."""

import os
import sys

import pytest

from bench import ops, summary
from fastadv_kernels import mix_chains
from fastadv_kernels.backend import native_library

if native_library is None and not os.environ.get("FASTADV_REQUIRE_NATIVE"):
    pytest.skip("the benchmark compares the C++ library, which is not built", allow_module_level=True)


def test_the_benchmark_s_numbers_reach_table_and_figure(tmp_path, monkeypatch, capsys):
    measured, table, figure = (tmp_path / name for name in ("ops.json", "ops.md", "ops.png"))
    arguments = ["--json", measured, "--only", "mix_chains", "--shape", 2, 3, 16, "--threads", 1, "--no-compile"]
    monkeypatch.setattr(sys, "argv", ["ops", *map(str, arguments)])
    assert ops.main() == 0
    monkeypatch.setattr(sys, "argv", ["summary", str(measured), "--table", str(table), "--figure", str(figure)])
    assert summary.main() == 0
    rows = [line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| op | shape | dtype | device | threads | eager | native | copy | GB/s | of copy |")
    assert rows[1].startswith("| mix_chains | B=2 L=3 D=16 | float32 | cpu | 1 |")
    assert figure.stat().st_size > 1000


def test_wrong_results_get_no_time():
    def wrong(batch, backend):
        return mix_chains(batch.pgd, batch.fgsm, 0.3 if backend == "reference" else 0.301, backend=backend)

    with pytest.raises(AssertionError, match="no time is taken of wrong results"):
        ops.check(ops.Case("mix_chains", None, 3, wrong), ops.make_batch(2, 3, 16))


def test_every_case_is_correct():
    for case in ops.cases():
        ops.check(case, ops.make_batch(3, 5, 24))
