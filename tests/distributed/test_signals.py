"""A terminal that is closed while a run speaks to it; what signals do to a run is in tests/engine/runs/test_run.py."""

import os

import pytest

from fastadv.distributed.signals import leave_lost_terminal


def test_a_closed_terminal_takes_no_run_with_it():
    terminal, own = os.openpty()
    os.close(terminal)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(own, b"step 1")
    leave_lost_terminal([own])
    assert os.write(own, b"step 1") == 6
    os.close(own)


def test_what_is_still_there_stays():
    read, write = os.pipe()
    leave_lost_terminal([write])
    os.write(write, b"step 1")
    assert os.read(read, 10) == b"step 1"
    for descriptor in (read, write):
        os.close(descriptor)
