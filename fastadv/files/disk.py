"""Disks that are full, fail, or may not be written to: one line in the place of a traceback."""

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from fastadv.errors import SaveFailed, UserError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def check_folder(folder: Path, what: str) -> None:
    """UserError, beginning with ``what``, where a folder is neither there to be written to nor can be made."""
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise UserError(f"{what}: {nearest} is no folder that can be written to")


def save_failed(path: Path, error: OSError) -> SaveFailed:
    """The error to raise where writing ``path`` ended with ``error``."""
    # Some libraries put words of their own around the system's.
    reason = os.strerror(error.errno) if error.errno else error
    return SaveFailed(f"{path} cannot be written: {reason} ({free_space(path)})")


@contextmanager
def disk_errors_explained(folder: Path) -> Iterator[None]:
    """Within the block an error of a full or failing disk is `SaveFailed`.

    Args:
        folder: named where the error names no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        # Closing what is open fails on a full disk as well, and must not hide what failed first.
        first = error.__context__
        if isinstance(first, SaveFailed):
            raise first from None
        if isinstance(first, OSError) and first.errno in DISK_ERRORS and first.filename is not None:
            error = first
        raise save_failed(Path(error.filename or folder), error) from error


def free_space(path: Path) -> str:
    """How many bytes are free where ``path`` lies or would lie, in words."""
    for folder in path.parents:
        try:
            return f"{shutil.disk_usage(folder).free:,} bytes free there"
        except OSError:
            continue
    return "free bytes unknown"
