"""What happens to files below a folder, as it happens (Linux inotify)."""

import ctypes
import os
import select
import struct
import time
from pathlib import Path
from typing import Callable, Iterator

_OPEN, _MODIFY, _CREATE, _CLOSE_WRITE, _IS_FOLDER = 0x20, 0x2, 0x100, 0x8, 0x40000000
_EVENT = struct.Struct("iIII")


class Watch:
    """Tells of every file that is created, opened, written to or closed after writing, in folders made later too."""

    def __init__(self, folder: Path):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        self._folders: dict[int, Path] = {}
        self._add(folder)

    def _add(self, folder: Path) -> None:
        number = self._libc.inotify_add_watch(
            self._descriptor, os.fsencode(folder), _OPEN | _MODIFY | _CREATE | _CLOSE_WRITE
        )
        if number < 0:
            # Gone again.
            return
        self._folders[number] = folder
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                self._add(entry)

    def paths(self, is_over: Callable[[], bool], timeout_s: float = 60.0) -> Iterator[Path]:
        """The path of each event in turn, until ``is_over``."""
        until = time.monotonic() + timeout_s
        while not is_over():
            assert time.monotonic() < until, f"nothing ended within {timeout_s:.0f} s"
            if not select.select([self._descriptor], [], [], 0.05)[0]:
                continue
            data = os.read(self._descriptor, 1 << 16)
            while data:
                number, mask, _, length = _EVENT.unpack_from(data)
                name, data = data[_EVENT.size : _EVENT.size + length], data[_EVENT.size + length :]
                folder = self._folders.get(number)
                if folder is None or not name:
                    continue
                path = folder / os.fsdecode(name.rstrip(b"\0"))
                if mask & _IS_FOLDER:
                    if mask & _CREATE:
                        self._add(path)
                    continue
                yield path

    def close(self) -> None:
        os.close(self._descriptor)
