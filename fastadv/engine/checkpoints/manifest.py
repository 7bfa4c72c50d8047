"""What a checkpoint consists of, by size and SHA-256, so that a damaged one is known before anything of it is read.

``manifest.json`` lists every other file of the folder, and files beside the folder that belong to it. It is written
last. Its bytes are a function of what it says, a digest of it included, so that no byte of it can change unnoticed
either. That guards against torn writes, failing disks and mixed-up copies. It is no signature: whoever can write the
folder can write a manifest to it. What such a stranger could do is bounded by how the files are loaded: tensors and
numbers only (`fastadv.engine.checkpoints.checkpoint`).
"""

import errno
import hashlib
import json
import logging
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Callable, Iterable

from fastadv.files.disk import save_failed

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_FORMAT = 1
_BLOCK_BYTES = 1 << 20
# No manifest of ours comes near; a file of this name that is larger is not read.
_MANIFEST_MAX_BYTES = 1 << 28
_FIRST_WORD_S = 2.0


class CheckpointFault(ValueError):
    """What is wrong with a checkpoint, in one line: which file, what was expected, what was found."""


@dataclass(frozen=True)
class Entry:
    """One file."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All files of a checkpoint but its manifest."""

    files: dict[str, Entry]
    """by path relative to the folder, with forward slashes"""
    beside: dict[str, Entry]
    """by name, in the folder that holds the checkpoint"""

    def paths(self, folder: Path) -> dict[Path, Entry]:
        """Every file with its place on disk."""
        inside = {folder / name: entry for name, entry in self.files.items()}
        return inside | {folder.parent / name: entry for name, entry in self.beside.items()}


class _HashingFile:
    """Writes to a file and hashes what it is given.

    Once a write has failed the rest is swallowed and ``failure`` says why: torch's zip writer, which writes through
    this, would lose the reason, and writes its directory even then.
    """

    def __init__(self, file: BinaryIO):
        self._file, self._digest = file, hashlib.sha256()
        self.num_bytes = 0
        self.failure: OSError | None = None

    def write(self, data) -> int:
        data = memoryview(data).cast("B")
        if self.failure is None:
            self._digest.update(data)
            try:
                self._file.write(data)
            except OSError as error:
                self.failure = error
        self.num_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        pass

    def entry(self) -> Entry:
        return Entry(self.num_bytes, self._digest.hexdigest())


def write_file(path: Path, fill: Callable[[BinaryIO], None]) -> Entry:
    """Writes one file to the disk itself (fsync), hashed on its way there.

    Args:
        fill: writes the content, from its first byte to its last, to the stream it is given.

    Raises:
        SaveFailed: the file could not be written, with the reason and the bytes that are free.
    """
    try:
        file = open(path, "wb")
    except OSError as error:
        raise save_failed(path, error) from error
    stream = _HashingFile(file)
    try:
        fill(stream)
        if stream.failure is not None:
            raise stream.failure
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise save_failed(path, error) from error
    finally:
        # Closing flushes again; what could not be written then has been said.
        with suppress(OSError):
            file.close()
    return stream.entry()


def hash_file(path: Path, sync: bool = False, told: Callable[[int], None] = lambda count: None) -> Entry:
    """Size and SHA-256 of a file that is there.

    Args:
        sync: also see to it that the content is on the disk itself.
        told: is called with the number of bytes of each block read.

    Raises:
        OSError: it cannot be read, or is a symlink.
    """
    digest, num_bytes = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
            told(len(block))
        if sync:
            os.fsync(file.fileno())
    return Entry(num_bytes, digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Sees to it that the names in ``folder`` are on the disk itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no such thing of a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Lists ``manifest`` and whatever else lies in ``folder``, and puts all names on the disk itself.

    Raises:
        SaveFailed, OSError: the disk is full, or the folder cannot be written.
    """
    files = dict(manifest.files)
    for name in sorted(_names_in(folder) - files.keys()):
        # Written by DeepSpeed on its own.
        files[name] = hash_file(folder / name, sync=True)
    text = _serialise(Manifest(files, manifest.beside))
    write_file(folder / MANIFEST, lambda stream: stream.write(text.encode()))
    for place in sorted({(folder / name).parent for name in files} | {folder}):
        sync_folder(place)


def _serialise(manifest: Manifest) -> str:
    content = {
        "format": _FORMAT,
        "files": {name: asdict(entry) for name, entry in manifest.files.items()},
        "beside": {name: asdict(entry) for name, entry in manifest.beside.items()},
    }
    content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps(content, sort_keys=True, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """What ``folder`` should hold.

    Raises:
        CheckpointFault: the folder is a symlink, or its manifest is missing, altered, or names files elsewhere.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise CheckpointFault("expected a folder, found a symlink or nothing")
    path = folder / MANIFEST
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MANIFEST_MAX_BYTES:
            raise CheckpointFault(f"{MANIFEST}: expected a file of ours, found {_kind(status)}")
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        raise CheckpointFault(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise CheckpointFault(f"{MANIFEST} cannot be read ({error.strerror})") from error
    try:
        content = json.loads(raw)
        if content["format"] != _FORMAT:
            raise CheckpointFault(f"{MANIFEST}: format {_FORMAT} expected, found {content['format']!r}")
        manifest = Manifest(*({k: Entry(**v) for k, v in content[part].items()} for part in ("files", "beside")))
        is_ours = _serialise(manifest).encode() == raw
    except CheckpointFault:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointFault(f"{MANIFEST} is no manifest ({' '.join(str(error).split())[:80]})") from error
    if not is_ours:
        raise CheckpointFault(f"{MANIFEST} was altered: its own sha256 does not fit what it says")
    for name, entry in (*manifest.files.items(), *manifest.beside.items()):
        _require_plain(name, entry, is_beside=name in manifest.beside)
    return manifest


def _require_plain(name: str, entry: Entry, is_beside: bool) -> None:
    """Refuses paths that lead out of the folder, and sizes and digests that are none."""
    path = PurePosixPath(name)
    is_inside = name == str(path) and not path.is_absolute() and ".." not in path.parts and name not in ("", ".")
    if not is_inside or any(c in name for c in "\\\0\n") or (is_beside and len(path.parts) > 1) or name == MANIFEST:
        raise CheckpointFault(f"{MANIFEST} names {name!r}, which is no path inside the checkpoint")
    is_size = type(entry.num_bytes) is int and entry.num_bytes >= 0
    if not is_size or not isinstance(entry.sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", entry.sha256):
        raise CheckpointFault(f"{MANIFEST}: {name} has no size and sha256")


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Compares names, kinds and sizes; reads no content.

    Raises:
        CheckpointFault: a file is missing, cut off, a symlink or no file at all, or one is there that is not listed.
    """
    for name in sorted(_names_in(folder) - manifest.files.keys()):
        raise CheckpointFault(f"{name} does not belong to it: {MANIFEST} does not list it")
    for path, entry in manifest.paths(folder).items():
        name = _shown(path, folder)
        try:
            status = path.lstat()
        except OSError as error:
            raise CheckpointFault(f"{name} is missing ({error.strerror})") from error
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointFault(f"{name}: a file expected, found {_kind(status)}")
        if status.st_size != entry.num_bytes:
            raise CheckpointFault(f"{name}: {entry.num_bytes} bytes expected, found {status.st_size}")


def _names_in(folder: Path) -> set[str]:
    """Everything in ``folder`` but its manifest, folders that hold nothing, and hidden files, which nothing reads."""
    names = set()
    for place, folders, files in os.walk(folder):
        # os.walk counts a symlink to a folder among the folders, and does not follow it.
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*files, *links):
            if not name.startswith("."):
                names.add((Path(place) / name).relative_to(folder).as_posix())
    return names - {MANIFEST}


def _kind(status: os.stat_result) -> str:
    kinds = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symlink", stat.S_IFIFO: "a pipe"}
    return f"{kinds.get(stat.S_IFMT(status.st_mode), 'something else')} of {status.st_size} bytes"


def check_contents(folder: Path, entries: Iterable[tuple[Path, Entry]], is_told: bool = True) -> None:
    """Compares the SHA-256 of files whose sizes are right.

    Args:
        entries: of `Manifest.paths`, all or some.
        is_told: log how far it is where it takes more than two seconds.

    Raises:
        CheckpointFault: a file has another content, or cannot be read.
    """
    entries = list(entries)
    num_bytes, num_read, next_word = sum(entry.num_bytes for _, entry in entries), 0, time.monotonic() + _FIRST_WORD_S

    def read(count: int) -> None:
        nonlocal num_read, next_word
        num_read += count
        if is_told and time.monotonic() > next_word:
            log.info(f"checking {folder.name}: {num_read / 1e9:.1f} of {num_bytes / 1e9:.1f} GB read")
            next_word += 5 * _FIRST_WORD_S

    for path, entry in entries:
        name = _shown(path, folder)
        try:
            found = hash_file(path, told=read)
        except OSError as error:
            raise CheckpointFault(f"{name} cannot be read ({error.strerror})") from error
        if found != entry:
            raise CheckpointFault(f"{name}: sha256 {entry.sha256[:16]}… expected, found {found.sha256[:16]}…")


def _shown(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path
