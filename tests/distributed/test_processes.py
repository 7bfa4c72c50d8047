"""What one process does alone; several are started in tests/ranks."""

import threading
import time
from pathlib import Path

import pytest
import torch

from fastadv.distributed.processes import (
    first_rank_first,
    first_rank_only,
    highest,
    mean_over_ranks,
    threads_at_work,
)
from fastadv.errors import UserError


def test_alone_nothing_is_exchanged():
    def fail():
        raise UserError("no")

    assert first_rank_only(lambda: 5) == first_rank_first(lambda: 5) == 5
    assert highest(3, torch.device("cpu")) == 3
    assert mean_over_ranks({"a": (6.0, 3)}) == {"a": 2.0}
    for run in (first_rank_only, first_rank_first):
        with pytest.raises(UserError, match="no"):
            run(fail)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the kernel lists no threads here")
def test_a_thread_at_work_is_told_from_one_that_waits():
    is_named, go_on = threading.Event(), threading.Event()

    def run():
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("a (b) R c")
        is_named.set()
        while not go_on.is_set():
            pass
        go_on.clear()
        is_named.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_named.wait(60)
    assert threads_at_work("(b) R") == 1 and threads_at_work("(c)") == 0
    is_named.clear()
    go_on.set()
    until = time.monotonic() + 60
    while threads_at_work("(b) R") and time.monotonic() < until:
        time.sleep(0.01)
    assert threads_at_work("(b) R") == 0 and thread.is_alive()
    is_named.set()
    thread.join()
