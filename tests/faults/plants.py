"""Faults that a child of the fork server plants in itself before it trains."""

import os
import re
import signal
import sys

_PATH_OF = {"open": 0, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0, "shutil.rmtree": 0, "os.rename": 1}
"""audit event → which of its arguments is the path (of a rename, the new name)"""


def stop_before(event: str, path: str, count: int = 1, within: str = "") -> None:
    """The process stops itself (SIGSTOP) just before its ``count``-th ``event`` whose path matches.

    Args:
        event: an audit event of Python (`_PATH_OF`).
        path: a regular expression, searched in the path.
        within: one for the path of the tree being removed; counting begins there. What a removal of a tree removes
            one by one is named relative to it.
    """
    seen = 0
    is_within = not within

    def hook(name, arguments):
        nonlocal seen, is_within
        if name not in _PATH_OF:
            return
        named = os.fsdecode(arguments[_PATH_OF[name]]) if not isinstance(arguments[_PATH_OF[name]], int) else ""
        if within and name == "shutil.rmtree":
            is_within = re.search(within, named) is not None
        if is_within and name == event and re.search(path, named):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(hook)


def vanish_before_open(path: str, count: int) -> None:
    """The file ``path`` is removed just before it is opened for the ``count``-th time."""
    seen = 0

    def hook(name, arguments):
        nonlocal seen
        if name == "open" and isinstance(arguments[0], (str, os.PathLike)) and os.fspath(arguments[0]) == path:
            seen += 1
            if seen == count:
                os.unlink(path)

    sys.addaudithook(hook)


def hurry() -> None:
    """No rank waits for the first one to speak, or for a launcher."""
    from fastadv import train

    train._SECONDS_FOR_FIRST_RANK = train._SECONDS_FOR_LAUNCHER = 0.2
