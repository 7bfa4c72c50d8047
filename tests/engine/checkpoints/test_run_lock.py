"""Two runs are never in one folder: who is refused, whose lock is taken over, and what a run does that lost its own."""

import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fastadv.dry_run import describe_plan
from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints import run_lock
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders
from fastadv.engine.checkpoints.reshape import reshape_checkpoint
from fastadv.engine.checkpoints.run_lock import LOCK, locked
from fastadv.errors import SaveFailed, UserError
from tests.quick_trainer import Trainer

# Holds the lock of the folder it is given, and has a child as a run has that load its data; both then wait.
HOLDER = """
import os, sys, time
from pathlib import Path
from fastadv.engine.checkpoints.run_lock import locked
with locked(Path(sys.argv[1])):
    if os.fork():
        print("held", flush=True)
    time.sleep(600)
"""


class AfterStep(Callback):
    def __init__(self, step, action):
        self._step, self._action = step, action

    def on_step(self, trainer, step, metrics):
        if step == self._step:
            self._action(trainer)


def write_lock(folder, **held):
    folder.mkdir(exist_ok=True)
    (folder / LOCK).write_text(json.dumps({"host": socket.gethostname(), "pid": 4_000_000, "since": 1, **held}))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(run_lock, "PATIENCE_S", 0.2)


@contextmanager
def renewing(path):
    """What a run on another machine does to its lock."""
    is_over = threading.Event()

    def beat():
        while not is_over.wait(0.01):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_second_run_is_refused_and_the_first_is_none_the_worse(make_config):
    refused = []

    def start_another(trainer):
        for config in (make_config(), make_config(**{"train.seed": 5})):
            with pytest.raises(UserError) as caught:
                Trainer(config).fit()
            refused.append(str(caught.value))
        assert f"run folder  {trainer.run_folder}" in describe_plan(trainer.config)
        with pytest.raises(UserError, match="is in use by"):
            reshape_checkpoint(trainer.run_folder, 2)

    trainer = Trainer(make_config(), [AfterStep(1, start_another)])
    folder = trainer.fit()
    assert trainer.is_finished and not (folder / LOCK).exists()
    named = f"the run folder {folder} is in use by process {os.getpid()} on {socket.gethostname()}; "
    assert len(refused) == 2 and all(line.startswith(named) and "\n" not in line for line in refused)


def test_the_lock_of_a_killed_process_is_taken_over_with_one_line(make_config, caplog):
    """Of one that was killed before it wrote more, too; and although a process it forked lives on."""
    config = make_config(**{"train.max_steps": 1})
    folder = Path(config.train.output_dir)
    folder.mkdir()
    root = Path(__file__).parents[3]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"is in use by process {holder.pid} on "):
            Trainer(config).fit()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with caplog.at_level(logging.INFO, "fastadv"):
            Trainer(config).fit()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()
    said = [record.getMessage() for record in caplog.records if LOCK in record.getMessage()]
    name = f"process {holder.pid} on {socket.gethostname()}"
    assert said == [f"{folder / LOCK} of {name}, which is gone, is taken over"]
    assert not (folder / LOCK).exists()


def without_locks(descriptor, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("where", ["another machine", "no locks", "no name"])
def test_what_the_kernel_cannot_tell_the_files_time_does(tmp_path, monkeypatch, impatient, caplog, where):
    folder = tmp_path / "run"
    write_lock(folder, **({"host": "node7"} if where == "another machine" else {}))
    if where == "no locks":
        monkeypatch.setattr(run_lock.fcntl, "flock", without_locks)
    if where == "no name":
        (folder / LOCK).write_text("")
    name = {
        "another machine": "process 4000000 on node7",
        "no locks": f"process 4000000 on {socket.gethostname()}",
        "no name": "a process that has not given its name",
    }[where]
    before = (folder / LOCK).read_text()
    with caplog.at_level(logging.INFO, "fastadv"):
        with renewing(folder / LOCK), pytest.raises(UserError) as caught:
            locked(folder).__enter__()
        assert f"in use by {name}; " in str(caught.value) and f"delete {folder / LOCK}" in str(caught.value)
        assert (folder / LOCK).read_text() == before
        with locked(folder) as lock:
            lock.require()
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder / LOCK} is of {name}: waiting 0.2 s for a sign of life",
        f"{folder / LOCK} is of {name}: waiting 0.2 s for a sign of life",
        f"{folder / LOCK} of {name}, which is gone, is taken over",
    ]


def test_a_run_shows_that_it_lives(tmp_path, monkeypatch):
    renewed = threading.Event()
    monkeypatch.setattr(run_lock, "BEAT_S", 0.01)
    monkeypatch.setattr(run_lock.os, "utime", lambda path: renewed.set())
    with locked(tmp_path):
        assert renewed.wait(60.0)


@pytest.mark.parametrize("how", ["deleted", "taken over"])
def test_a_run_that_lost_its_folder_writes_no_more_to_it(make_config, how):
    def lose(trainer):
        if how == "deleted":
            (trainer.run_folder / LOCK).unlink()
        else:
            write_lock(trainer.run_folder, host="node7", pid=5)

    config = make_config(**{"train.save_every": 1})
    folder = Path(config.train.output_dir)
    with pytest.raises(SaveFailed, match=f"^{folder} is no longer this run's: .*{LOCK} was deleted, or ") as caught:
        Trainer(config, [AfterStep(2, lose)]).fit()
    assert [path.name for path in checkpoint_folders(folder)] == ["step-1"]
    if how == "taken over":
        assert "process 5 on node7" in str(caught.value) and json.loads((folder / LOCK).read_text())["pid"] == 5


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / LOCK).symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="symbolic links"):
        locked(tmp_path).__enter__()


def test_a_lock_that_cannot_be_written_is_not_left(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, ExitStack() as held:
        patch.setattr(run_lock.os, "fsync", full)
        with pytest.raises(OSError, match=f"No space left on device: .*{LOCK}"):
            held.enter_context(locked(tmp_path))
    assert not (tmp_path / LOCK).exists()
