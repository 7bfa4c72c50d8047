"""SIGKILL at drawn moments, again and again: the run ends as if nothing had happened, to the last bit.

Every round kills one process; the next one goes on from the newest whole checkpoint, or is killed on its way there.
Five rounds hurt one run, which is then let go to its end and compared with a run that nobody touched.
"""

import random
import signal
import time

import pytest

from tests.faults.runs import assert_equal_runs, last_logged_step, resumed_at, whole_checkpoints
from tests.faults.watch import Watch

SAVE_EVERY = 2
STEPS = {"train.max_steps": 40, "train.save_every": SAVE_EVERY, "train.eval_every": 3}
# What five rounds hit in turn; twenty rounds are all four.
GROUPS = (
    ("write", "moment", "rename", "write", "log"),
    ("write", "removal", "write", "moment", "export"),
    ("best", "write", "log", "write", "rename"),
    ("moment", "write", "removal", "moment", "write"),
)


@pytest.fixture
def untouched(server, write_config, tmp_path):
    """A run that nobody touched, and how many seconds it took."""
    start = time.monotonic()
    ended = server.run(["--config", write_config("untouched", **STEPS)])
    assert ended.status == 0, ended.err
    return tmp_path / "untouched", time.monotonic() - start


class Killer:
    """One round: starts the run, kills it at a drawn moment of a kind, and says where; None where it ended first."""

    def __init__(self, server, config, run, seconds_of_a_run, draw):
        self.server, self.config, self.run = server, config, run
        self._seconds, self._draw = seconds_of_a_run, draw

    def strike(self, kind):
        return getattr(self, f"_{kind}")() or None

    def _start(self, *plants):
        self.child = self.server.start(["--config", self.config], plants=plants)
        return self.child

    def _kill(self):
        self.child.kill()
        self.ended = self.child.wait()
        # It may have come to its end just before.
        return self.ended.status == -signal.SIGKILL

    def _at_own_stop(self, *plants):
        child = self._start(*plants)
        if not child.is_stopped(60.0):
            self.ended = child.wait(1.0)
            return False
        return True

    def _moment(self):
        child, delay = self._start(), self._draw.uniform(0.0, self._seconds)
        if child.has_ended(delay):
            self.ended = child.wait()
            return None
        return self._kill() and f"after {delay:.3f} s"

    def _write(self):
        """While a file of a checkpoint is open for writing: seen with the process stopped, so that it is so."""
        watch = Watch(self.run)
        child, num_events = self._start(), self._draw.randint(1, 60)
        found = None
        for path in watch.paths(child.has_ended):
            if not path.match("checkpoints/partial-step-*/*") and not path.match("checkpoints/partial-step-*/*/*"):
                continue
            num_events -= 1
            if num_events >= 0:
                continue
            if not child.stop():
                break
            found = next((p for p in child.written_files() if "/checkpoints/partial-step-" in str(p)), None)
            if found is not None:
                break
            child.signal(signal.SIGCONT)
        watch.close()
        if found is None:
            self.ended = child.wait()
            return None
        size = found.stat().st_size
        return self._kill() and f"in {found.relative_to(self.run)}, {size:,} bytes of it written"

    def _rename(self):
        """Just before a checkpoint, whole already, gets its name, or an old one loses it."""
        count = self._draw.randint(1, 6)
        pattern = r"/checkpoints/(partial-|replaced-)?step-\d+$"
        if not self._at_own_stop(("stop_before", {"event": "os.rename", "path": pattern, "count": count})):
            return None
        return self._kill() and f"before rename {count} of a checkpoint"

    def _removal(self):
        """Among the files of an old checkpoint as they are removed one by one."""
        count = self._draw.randint(1, 10)
        options = {"event": "os.remove", "path": "", "count": count, "within": r"/checkpoints/[a-z-]*step-\d+$"}
        if not self._at_own_stop(("stop_before", options)):
            return None
        return self._kill() and f"before removal {count} in an old checkpoint"

    def _log(self):
        """Right after a line of the log was written, or before the log of the earlier process is cut and replaced."""
        if self._draw.random() < 0.3:
            options = {"event": "os.rename", "path": r"/metrics\.jsonl$"}
            if not self._at_own_stop(("stop_before", options)):
                return None
            return self._kill() and "before the log was replaced"
        watch = Watch(self.run)
        child, num_events = self._start(), self._draw.randint(4, 25)
        for path in watch.paths(child.has_ended):
            num_events -= path.name == "metrics.jsonl"
            if num_events == 0:
                break
        watch.close()
        if child.has_ended():
            self.ended = child.wait()
            return None
        return self._kill() and "after a line of the log"

    def _best(self):
        options = {"event": "os.rename", "path": r"/best-step-\d+\.safetensors$"}
        if not self._at_own_stop(("stop_before", options)):
            return None
        return self._kill() and "before the best weights got their name"

    def _export(self):
        event, count = self._draw.choice([("open", 1), ("open", 2), ("open", 4), ("os.rename", 1)])
        path = r"/\.model\.writing-" if event == "open" else r"/model$"
        if not self._at_own_stop(("stop_before", {"event": event, "path": path, "count": count})):
            return None
        return self._kill() and f"in the export, before {event} {count}"


def test_a_run_that_is_killed_again_and_again(server, write_config, untouched, tmp_path, pytestconfig):
    seed, num_rounds = pytestconfig.getoption("--fault-seed"), pytestconfig.getoption("--kill-rounds")
    first = pytestconfig.getoption("--first-round")
    reference, seconds = untouched
    hits, config, run = [], None, None
    for number in range(first, first + num_rounds):
        if config is None or number % 5 == 0:
            if config is not None:
                _finish(server, config, run, reference)
            config, run = _new_run(write_config, tmp_path, number)
        kind = GROUPS[number // 5 % len(GROUPS)][number % 5]
        name = f"--fault-seed {seed} --first-round {number}: {kind}"
        draw = random.Random(f"{seed} {number}")
        hit = None
        for attempt in range(5):
            expected = _newest(run)
            killer = Killer(server, config, run, seconds, draw)
            hit = killer.strike(kind)
            _check_resumed(killer.ended, expected, name)
            if hit is not None:
                break
            # It came to its end first; then this kind is tried on a new run.
            assert killer.ended.status == 0, f"{name}:\n{killer.ended.err}"
            assert_equal_runs(run, reference)
            config, run = _new_run(write_config, tmp_path, f"{number}-{attempt}")
        assert hit is not None, f"{name}: five runs ended before it"
        newest, last = _newest(run) or 0, last_logged_step(run)
        assert newest >= last - SAVE_EVERY, f"{name}: killed after step {last}, the newest checkpoint is of {newest}"
        hits.append(kind)
        print(f"round {number}, {name}, {hit}; after step {last}, checkpoint {newest}", flush=True)
    _finish(server, config, run, reference)
    if num_rounds >= 20:
        assert hits.count("write") >= num_rounds // 4


@pytest.mark.parametrize("event, path", [("open", r"/\.config\.yaml"), ("os.rename", r"/config\.yaml$")])
def test_killed_as_it_began(server, write_config, tmp_path, event, path):
    """Its folder does not yet look like a run's, and is taken for an empty one."""
    config = write_config("run", **{"train.max_steps": 1})
    child = server.start(["--config", config], plants=[("stop_before", {"event": event, "path": path})])
    assert child.is_stopped(60.0), child.err
    child.kill()
    child.wait()
    assert [entry.name for entry in (tmp_path / "run").iterdir()] != []
    ended = server.run(["--config", config])
    assert ended.status == 0, ended.err
    assert [entry.name for entry in (tmp_path / "run").iterdir() if entry.name.startswith(".")] == []


def test_the_loader_processes_of_a_killed_run_end(server, write_config, tmp_path):
    config, run = write_config("run", **{"data.num_workers": 1, "train.max_steps": 2000}), tmp_path / "run"
    run.mkdir()
    watch, child = Watch(run), server.start(["--config", config])
    next(path for path in watch.paths(child.has_ended) if path.name == "metrics.jsonl" and last_logged_step(run))
    watch.close()
    # The server of the workers, a worker, and what tracks their shared memory.
    assert len(child.orphans()) > 1
    child.signal(signal.SIGKILL)
    child.wait()
    until = time.monotonic() + 60.0
    while child.orphans() and time.monotonic() < until:
        time.sleep(0.1)
    assert child.orphans() == []


def _new_run(write_config, tmp_path, number):
    config, run = write_config(f"run-{number}", **STEPS), tmp_path / f"run-{number}"
    run.mkdir()
    return config, run


def _newest(run):
    return max(whole_checkpoints(run), default=None)


def _check_resumed(ended, expected, name):
    """It went on from the newest whole checkpoint, unless it was killed before it could say so."""
    found = resumed_at(ended.err)
    if found is not None or "step 1/" in ended.err or ended.status == 0:
        assert found == expected, f"{name}: went on from {found}, the newest whole checkpoint was {expected}"


def _finish(server, config, run, reference):
    expected = _newest(run)
    ended = server.run(["--config", config])
    assert ended.status == 0, ended.err
    _check_resumed(ended, expected, f"the end of {run.name}")
    assert_equal_runs(run, reference)
