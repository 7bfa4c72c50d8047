"""Files that are there whole or not at all, and errors that say which file they are about."""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


@contextmanager
def written_aside(path: str | Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; renamed to ``path`` when the block ends, removed when it fails.

    A reader of ``path`` sees the old file or the new one, also when the process is killed on the way.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with naming(path):
            yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Has an OSError of the block name ``path`` where it names no file: that of a write to an open one does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise
