"""Files that may be compressed: the name says whether one is (``.gz``), and its first bytes must agree."""

import gzip
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator

from fastadv.errors import UserError

_GZIP_MARK = b"\x1f\x8b"


def is_named_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def kind_of(path: Path) -> str:
    """The suffix that says how the content is laid out, in lower case: ``.csv`` for ``a.csv`` and ``A.CSV.GZ``."""
    return Path(path.stem).suffix.lower() if is_named_gzip(path) else path.suffix.lower()


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed as they are read.

    Raises:
        UserError: the file cannot be read, is damaged, or is gzip and not named so, or named so and no gzip.
    """
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(len(_GZIP_MARK)) == _GZIP_MARK
            file.seek(0)
            if is_gzip and not is_named_gzip(path):
                raise UserError(f"{path} holds gzip data; expected plain content, or the name {path.name}.gz")
            if not is_gzip and is_named_gzip(path):
                raise UserError(f"{path} holds no gzip data; expected gzip, or the name {path.stem}")
            if not is_gzip:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged: {str(error).rstrip('.')}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
