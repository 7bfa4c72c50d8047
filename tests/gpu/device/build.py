"""The library of `csrc`, compiled once for each version of it and of torch."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
CACHE = Path(tempfile.gettempdir()) / f"fastadv-pretended-gpu-{os.getuid()}"


def compiler() -> str | None:
    """The C++ compiler, or None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def built(torch_folder: Path) -> Path:
    """The library for the torch of ``torch_folder``. Compiling takes 20 s; another process that wants it waits.

    Raises:
        RuntimeError: the compiler failed; what it said.
    """
    version = (torch_folder / "version.py").read_bytes()
    content = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    key = hashlib.sha256(b"\0".join([version, str(torch_folder).encode(), *content])).hexdigest()[:16]
    CACHE.mkdir(mode=0o700, exist_ok=True)
    if CACHE.stat().st_uid != os.getuid():
        raise RuntimeError(f"{CACHE} belongs to another user")
    library = CACHE / f"{key}.so"
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(torch_folder, library)
    return library


def _compile(torch_folder: Path, library: Path) -> None:
    include = torch_folder / "include"
    made = library.with_suffix(".part")
    command = [compiler(), "-O1", "-g0", "-shared", "-fPIC", "-std=c++20"]
    command += [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", SOURCES / "pretended_gpu.cpp"]
    command += ["-o", made, f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"the pretended GPU does not compile:\n{ended.stderr[-4000:]}")
    made.replace(library)
