"""Hashes of plain values and of files: keys of what is kept on disk, and the digests that a report names."""

import hashlib
import json
from pathlib import Path
from typing import Any


def digest_of(value: Any) -> str:
    """BLAKE2b of 128 bits, 32 hexadecimal digits, of anything that JSON can hold; the order of keys has no effect."""
    return hashlib.blake2b(_text(value), digest_size=16).hexdigest()


def sha256_of(value: Any) -> str:
    """SHA-256 of anything that JSON can hold; the order of keys has no effect."""
    return hashlib.sha256(_text(value)).hexdigest()


def sha256_of_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes. OSError where the file cannot be read."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
