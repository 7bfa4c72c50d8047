"""A disk that takes no more: one line, the last checkpoint as it was, and with room again the run's own end.

Where this process may mount one, a file system of a few hundred KB really fills (ENOSPC). Everywhere, a limit on the
size of a file stands for it (EFBIG): a write then fails half done.
"""

import ctypes
import os
import re
import signal

import pytest

from tests.faults.runs import assert_equal_runs, resumed_at, whole_checkpoints

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=4m") != 0:
        pytest.skip(f"nothing can be mounted here: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(os.fsencode(folder), 2)


def fill(disk, num_pages_left=0):
    """Leaves so many pages of the disk free."""
    ballast = disk / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        try:
            while file.write(b"x" * PAGE):
                pass
        except OSError:
            pass
    os.truncate(ballast, max(0, ballast.stat().st_size - num_pages_left * PAGE))


def assert_one_line(ended, named, status=1):
    assert ended.status == status, ended
    assert len(ended.said) == 1 and "Traceback" not in ended.err, ended.err
    assert "cannot be written" in ended.said[0] and re.search(named, ended.said[0]), ended.err


def stopped_before(server, config, event, path, count=1):
    child = server.start(["--config", config], plants=[("stop_before", dict(event=event, path=path, count=count))])
    assert child.is_stopped(60.0), child.err
    return child


@pytest.mark.parametrize("file", ["mp_rank_00_model_states", "generators-rank0", "trainer_state", "manifest"])
def test_a_disk_that_fills_while_saving(server, write_config, small_disk, untouched, file):
    config = write_config("disk/run")
    child = stopped_before(server, config, "open", f"partial-step-4/.*{file}")
    fill(small_disk)
    child.signal(signal.SIGCONT)
    assert_one_line(child.wait(), file)
    run = small_disk / "run"
    assert whole_checkpoints(run) == [2]
    go_on(server, config, run, untouched, small_disk, 2)


@pytest.mark.parametrize("num_pages_left", [0, 1, 2, 3, 4, 6])
def test_a_disk_that_is_all_but_full_when_the_run_goes_on(server, write_config, small_disk, untouched, num_pages_left):
    """The log, its events, config.yaml or a checkpoint: whatever meets the end of the disk first."""
    config = write_config("disk/run")
    child = stopped_before(server, config, "os.rename", r"checkpoints/(partial-)?step-\d+$", 2)
    child.kill()
    child.wait()
    run = small_disk / "run"
    assert whole_checkpoints(run) == [2]
    fill(small_disk, num_pages_left)
    # What the killed run left is removed first; its room is taken, too.
    child = stopped_before(server, config, "open", r"/\.?(config\.yaml|metrics\.jsonl)")
    fill(small_disk, num_pages_left)
    child.signal(signal.SIGCONT)
    assert_one_line(child.wait(), str(run))
    assert whole_checkpoints(run) == [2]
    go_on(server, config, run, untouched, small_disk, 2)


@pytest.mark.parametrize(
    "event, path", [("open", r"\.model\.writing-.*"), ("open", r"\.report\.html"), ("os.rename", r"/model$")]
)
def test_a_disk_that_fills_before_the_export(server, write_config, small_disk, untouched, event, path):
    config = write_config("disk/run")
    child = stopped_before(server, config, event, path)
    fill(small_disk)
    child.signal(signal.SIGCONT)
    ended = child.wait()
    run = small_disk / "run"
    if event == "open":
        assert_one_line(ended, str(run))
    assert whole_checkpoints(run) == [4, 6]
    go_on(server, config, run, untouched, small_disk, 6)


def go_on(server, config, run, untouched, disk, step):
    (disk / "ballast").unlink()
    ended = server.run(["--config", config])
    assert ended.status == 0 and resumed_at(ended.err) == step, ended.err
    assert_equal_runs(run, untouched)


def test_a_disk_that_fills_while_tokenising(server, write_config, small_disk):
    config = write_config("run", **{"data.cache_dir": str(small_disk / "cache")})
    fill(small_disk, 1)
    assert_one_line(server.run(["--config", config]), "data.cache_dir", 2)
    assert [path.name for path in (small_disk / "cache").iterdir()] == []
    (small_disk / "ballast").unlink()
    assert server.run(["--config", config]).status == 0


@pytest.mark.parametrize(
    "num_bytes, named, steps_kept, changes",
    [
        (500, "data.cache_dir", [], {"data.cache_dir": "cache"}),
        (1000, "config.yaml", [], {}),
        (
            4000,
            "metrics.jsonl|tensorboard",
            [],
            {"train.save_every": None, "train.eval_every": None, "train.max_steps": 20},
        ),
        (100_000, "checkpoints", [], {}),
    ],
    ids=["tokens", "config", "log", "checkpoint"],
)
def test_a_file_that_may_not_grow(server, write_config, untouched, tmp_path, num_bytes, named, steps_kept, changes):
    if "data.cache_dir" in changes:
        changes = {"data.cache_dir": str(tmp_path / "cache")}
    config, run = write_config("run", **changes), tmp_path / "run"
    ended = server.run(["--config", config], limits={"FSIZE": num_bytes})
    assert_one_line(ended, named, 2 if named == "data.cache_dir" else 1)
    assert whole_checkpoints(run) == steps_kept
    assert server.run(["--config", config]).status == 0
    assert server.run(["--config", write_config("other", **changes)]).status == 0
    assert_equal_runs(run, tmp_path / "other")


def test_an_export_that_may_not_grow(server, write_config, untouched, tmp_path):
    config, run = write_config("run"), tmp_path / "run"
    child = stopped_before(server, config, "open", r"\.model\.writing-")
    child.kill()
    child.wait()
    assert_one_line(server.run(["--config", config], limits={"FSIZE": 30_000}), "model")
    assert whole_checkpoints(run) == [4, 6]
    assert server.run(["--config", config]).status == 0
    assert_equal_runs(run, untouched)
