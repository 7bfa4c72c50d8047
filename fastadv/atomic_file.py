"""Files that are there whole or not at all."""

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
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
