"""One run at a time in a run folder: ``run.lock`` there names the process that writes to the folder.

A process of the same machine is known to run by the kernel's lock on the file, which ends with the process however it
ends; so is one of another machine where the file system passes locks on (NFS does unless it is mounted to keep them to
itself). Where it does not, a run shows that it lives by the file's time, which it renews every ``BEAT_S``.
"""

import fcntl
import json
import logging
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator

from fastadv.errors import SaveFailed, UserError
from fastadv.files.atomic_file import naming
from fastadv.files.small_file import read_small

log = logging.getLogger(__name__)

LOCK = "run.lock"
BEAT_S = 10.0
"""Seconds between two signs of life of a run."""
PATIENCE_S = 60.0
"""Seconds without a sign of life after which a run of another machine counts as gone."""

_MAX_BYTES = 1 << 16

# A process that is forked, such as one that loads data, may outlive its parent by seconds, and must not hold its lock.
_held: set[int] = set()


def _leave_to_parent() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


class RunLock:
    """The lock of a run folder that this process holds; `locked` makes it."""

    def __init__(self, path: Path, descriptor: int):
        self._path, self._descriptor, self._is_released = path, descriptor, threading.Event()
        self._own = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": time.time_ns()})
        _held.add(descriptor)

    def write(self) -> None:
        """Gives the file this process's name, and renews its time from now on."""
        with naming(self._path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, self._own.encode(), 0)
            os.fsync(self._descriptor)
        threading.Thread(target=self._beat, name=LOCK, daemon=True).start()

    def require(self) -> None:
        """Raises SaveFailed where another run has taken the folder over, or the file was deleted."""
        if self._is_own():
            return
        raise SaveFailed(
            f"{self._path.parent} is no longer this run's: {self._path} was deleted, or is now that of "
            f"{_holder(_content(self._path))[1]}; nothing more is written to it"
        )

    def release(self) -> None:
        """Removes the file, unless it is another run's by now, and the kernel's lock with it."""
        self._is_released.set()
        with suppress(OSError):
            if self._is_own():
                self._path.unlink()
        _held.discard(self._descriptor)
        os.close(self._descriptor)

    def _is_own(self) -> bool:
        return _content(self._path) == self._own

    def _beat(self) -> None:
        while not self._is_released.wait(BEAT_S):
            with suppress(OSError):
                if self._is_own():
                    os.utime(self._path)


@contextmanager
def locked(folder: Path) -> Iterator[RunLock]:
    """Holds the lock of a run folder. A lock whose process is gone is taken over, with one line in the log.

    Raises:
        UserError: another process holds it.
    """
    lock = RunLock(folder / LOCK, _taken(folder / LOCK))
    try:
        lock.write()
        yield lock
    finally:
        lock.release()


def _taken(path: Path) -> int:
    """An open file that this process has locked and may write its name to."""
    while True:
        descriptor, is_new = _opened(path)
        try:
            can_lock = _lock(descriptor, path)
            # Its last holder may have removed it meanwhile.
            if not _is_still(descriptor, path):
                os.close(descriptor)
                continue
            if not is_new:
                _take_over(path, can_lock)
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise


def _opened(path: Path) -> tuple[int, bool]:
    """The open file, and whether this process has made it: on any file system, one process alone."""
    while True:
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), True
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), False


def _lock(descriptor: int, path: Path) -> bool:
    """Takes the kernel's lock; False where the file system has none. UserError where another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(path, "") from None
    except OSError:
        return False
    return True


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _take_over(path: Path, can_lock: bool) -> None:
    """Returns where the process that ``path`` names is gone; UserError where it lives, or may live."""
    content = _content(path)
    host, holder = _holder(content)
    is_here = host == socket.gethostname()
    if not (is_here and can_lock):
        seen, until = os.stat(path).st_mtime_ns, time.monotonic() + PATIENCE_S
        log.info("%s is of %s: waiting %g s for a sign of life", path, holder, PATIENCE_S)
        while time.monotonic() < until:
            time.sleep(min(1.0, PATIENCE_S / 4))
            # Read anew: a file that is opened is asked for at the server, of one that is not NFS may remember the time.
            if _content(path) != content or os.stat(path).st_mtime_ns != seen:
                raise _in_use(path, f"; where that process is gone, delete {path}")
    log.info("%s of %s, which is gone, is taken over", path, holder)


def _in_use(path: Path, advice: str) -> UserError:
    _, holder = _holder(_content(path))
    return UserError(
        f"the run folder {path.parent} is in use by {holder}; wait for it or end it, or name another folder "
        f"(train.output_dir){advice}"
    )


def _content(path: Path) -> str | None:
    try:
        return read_small(path, _MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None


def _holder(content: str | None) -> tuple[str | None, str]:
    """The machine that a lock names, and its process in words."""
    try:
        held = json.loads(content or "")
        host, pid = str(held["host"]), int(held["pid"])
    except (ValueError, KeyError, TypeError):
        return None, "a process that has not given its name"
    return host, f"process {pid} on {host}"
