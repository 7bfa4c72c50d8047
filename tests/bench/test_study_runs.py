"""What studies share: the order of jobs, the end at a failure, logs and the three files."""

import json
import threading

import pytest

from bench.studies.study_runs import in_order, run_logged, write_study


def test_jobs_give_their_results_in_their_order():
    assert in_order([3, 1, 2], lambda job: job * 10, 2) == [30, 10, 20]


def test_nothing_is_begun_after_a_failure_also_while_an_earlier_job_runs():
    begun, has_failed = [], threading.Event()

    def run(job):
        begun.append(job)
        if job == 0:
            assert has_failed.wait(600)
        elif job == 1:
            has_failed.set()
            raise SystemExit("job 1 failed")

    with pytest.raises(SystemExit, match="job 1"):
        in_order(range(20), run, 2)
    assert sorted(begun) == [0, 1]


def test_a_job_may_wait_for_one_before_it():
    is_done = threading.Event()

    def run(job):
        if job == "second":
            assert is_done.wait(600)
        else:
            is_done.set()
        return job

    assert in_order(["first", "second"], run, 2) == ["first", "second"]


def test_a_command_that_fails_says_its_last_line_and_its_log(tmp_path, capsys):
    log = tmp_path / "logs" / "command.txt"
    run_logged("json.tool", ["--help"], log, "asking")
    assert "usage" in log.read_text() and "asking: done in" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"asking failed: .*no-such-file.*command\.txt"):
        run_logged("json.tool", ["no-such-file"], log, "asking")


def test_a_study_leaves_its_files_and_nothing_else(tmp_path):
    write_study(tmp_path, "# text\n", {"a": 1}, lambda path: path.write_bytes(b"png"))
    assert json.loads((tmp_path / "study.json").read_text()) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.json", "study.md", "study.png"]
