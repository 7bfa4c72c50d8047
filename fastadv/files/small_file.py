"""Text that is small if it is what it should be: read whole, and given up where it is endless or never comes."""

import errno
import os
import select

_BLOCK_BYTES = 1 << 16


def read_small(path: str | os.PathLike, max_bytes: int, patience_s: float = 5.0) -> bytes:
    """The bytes of a file, or of a pipe such as a shell's ``<(...)``.

    Args:
        max_bytes: more than these are an error, found before the rest is read.
        patience_s: how long a pipe may stay silent.

    Raises:
        OSError: the file cannot be read, is larger, or says nothing for so long.
        ValueError: no file has such a name.
    """
    # Opening a pipe that nobody writes to would wait for somebody.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    content = bytearray()
    try:
        while len(content) <= max_bytes:
            if not select.select([descriptor], [], [], patience_s)[0]:
                raise OSError(errno.ETIMEDOUT, f"nothing was written to it for {patience_s:g} s")
            block = os.read(descriptor, _BLOCK_BYTES)
            if not block:
                return bytes(content)
            content += block
    finally:
        os.close(descriptor)
    raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes")
