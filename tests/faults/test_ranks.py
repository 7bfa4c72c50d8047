"""One of two ranks dies or hangs: the other says so in one line and ends, nothing is left running, nothing is lost."""

import signal
import socket

import pytest

from tests.faults.runs import assert_equal_runs, resumed_at, whole_checkpoints

PLANTED = {"objective": "tests.faults.objectives:Planted"}
TIMEOUT_MINUTES = 0.15
IMPATIENT = {**PLANTED, "engine.timeout_minutes": TIMEOUT_MINUTES}


@pytest.fixture(scope="module")
def start_ranks(server):
    """``start_ranks(config, env)``: two children, rank 0 and rank 1."""
    started = []

    def start(config, env=None, num_started=2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", **(env or {})}
        ranks = [
            server.start(
                ["--config", config],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                plants=[("hurry", {})],
            )
            for rank in range(num_started)
        ]
        started.extend(ranks)
        return ranks

    yield start
    for child in started:
        child.kill()


def finish(ranks):
    return [child.wait() for child in ranks]


@pytest.fixture(scope="module")
def untouched(start_ranks, write_config_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    ended = finish(start_ranks(write_config_in(folder, "run", **PLANTED)))
    assert [rank.status for rank in ended] == [0, 0], ended
    return folder / "run"


def in_batch(number, rank, **fault):
    """The environment that makes ``rank`` fail in its batch ``number``, from 0."""
    return {"FAULT_BATCH": str(number), "FAULT_RANK": str(rank), "FAULT_IN": "loss", **fault}


@pytest.mark.parametrize("where", ["inner", "loss"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank(start_ranks, write_config, untouched, tmp_path, lost, where):
    config = write_config("run", **PLANTED)
    fault = {**in_batch(4, lost, FAULT_SIGNAL=str(int(signal.SIGKILL))), "FAULT_IN": where}
    ranks = start_ranks(config, fault)
    ended = finish(ranks)
    assert ended[lost].status == -signal.SIGKILL
    assert_one_line(ended[1 - lost], 1 - lost, "after step 4: another process has ended")
    assert [child.orphans() for child in ranks] == [[], []]
    assert whole_checkpoints(tmp_path / "run") == [2, 4]
    ended = finish(start_ranks(config))
    assert [rank.status for rank in ended] == [0, 0] and resumed_at(ended[0].err) == 4
    assert_equal_runs(tmp_path / "run", untouched)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_hangs(start_ranks, write_config, tmp_path, lost):
    config = write_config("run", **IMPATIENT)
    ranks = start_ranks(config, in_batch(3, lost, FAULT_SIGNAL=str(int(signal.SIGSTOP))))
    other = ranks[1 - lost].wait()
    line = f"after step 3: another process did not answer for {TIMEOUT_MINUTES} minutes (engine.timeout_minutes)"
    assert_one_line(other, 1 - lost, line)
    assert ranks[1 - lost].orphans() == []
    # A stopped process cannot end by itself: a launcher, or a user, kills it.
    assert ranks[lost].is_stopped(1.0)
    ranks[lost].kill()
    assert ranks[lost].wait().status == -signal.SIGKILL and ranks[lost].orphans() == []
    assert whole_checkpoints(tmp_path / "run") == [2]


def test_a_rank_that_hung_and_goes_on_ends_too(start_ranks, write_config):
    ranks = start_ranks(write_config("run", **IMPATIENT), in_batch(3, 1, FAULT_SIGNAL=str(int(signal.SIGSTOP))))
    ranks[0].wait()
    ranks[1].signal(signal.SIGCONT)
    ended = ranks[1].wait()
    # It finds the connection closed, and its own time over, which went on while it stood still.
    is_over = "did not answer" in ended.err
    why = f"another process did not answer for {TIMEOUT_MINUTES} minutes" if is_over else "another process has ended"
    assert_one_line(ended, 1, f"after step 3: {why}")


def test_a_rank_that_never_comes(start_ranks, write_config):
    (rank,) = start_ranks(write_config("run", **IMPATIENT), num_started=1)
    line = f"another process did not answer for {TIMEOUT_MINUTES} minutes (engine.timeout_minutes)"
    assert_one_line(rank.wait(), 0, line)


@pytest.mark.parametrize("where", ["inner", "loss"])
def test_a_nan_on_one_rank(start_ranks, write_config, untouched, tmp_path, where):
    config = write_config("run", **PLANTED)
    fault = {**in_batch(2, 1, FAULT_ROW="1"), "FAULT_IN": where}
    ended = finish(start_ranks(config, fault))
    for number, rank in enumerate(ended):
        assert_one_line(rank, number, "step 3: ")
    assert whole_checkpoints(tmp_path / "run") == [2]
    ended = finish(start_ranks(config))
    assert [rank.status for rank in ended] == [0, 0] and resumed_at(ended[0].err) == 2
    assert_equal_runs(tmp_path / "run", untouched)


def assert_one_line(ended, rank, begins):
    assert ended.status == 1, ended
    assert len(ended.said) == 1 and "Traceback" not in ended.err, ended.err
    prefix = f"fastadv: rank {rank}: " if rank else "fastadv: "
    assert ended.said[0].startswith(prefix) and begins in ended.said[0], ended.err
