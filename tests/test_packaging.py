"""What gets installed: names that shadow nothing, a complete sdist, a wheel that imports elsewhere."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

# Prints where the two packages came from and whether the C++ library is there. The finder of an editable
# install would send both names back to the clone, so it goes first.
IMPORT_FROM = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, sys.argv[1])
import fastadv, fastadv_kernels, torch
offsets = torch.tensor([0, 2, 3], dtype=torch.int32)
updated = fastadv_kernels.token_update(torch.zeros(3, 4), torch.ones(3, 4), offsets, 0.1, 0.1, "linf")
assert torch.equal(updated, torch.full((3, 4), 0.1))
print(fastadv.__file__, fastadv_kernels.__file__, fastadv_kernels.backend.native_library is not None)
"""


def run(*command, **kwargs):
    finished = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


def test_kernels_is_not_a_package():
    # A package of that name on sys.path breaks transformers, which depends on a distribution called kernels.
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert (ROOT / "kernels" / "fastadv_kernels" / "__init__.py").exists()


def test_no_module_of_fastadv_has_the_name_of_a_library():
    # Running fastadv/train.py puts the folder fastadv first on sys.path: its modules would hide these.
    ours = {path.stem for path in (ROOT / "fastadv").iterdir() if path.suffix == ".py" or path.is_dir()}
    libraries = set(sys.stdlib_module_names) | set(importlib.metadata.packages_distributions())
    assert (ours - {"__init__", "__pycache__"}) & libraries == set()


def test_the_version_is_written_once():
    import fastadv

    assert fastadv.__version__ == "0.1.0"
    for name in ("pyproject.toml", "CMakeLists.txt"):
        assert fastadv.__version__ not in (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The folder that the sdist unpacks to."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, str(folder), cwd=ROOT)
    (archive,) = folder.glob("fastadv-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def build_wheel(sdist, folder, env):
    """Builds a wheel from the sdist and unpacks it to ``site``: whether the C++ library is in it."""
    settings = {"build-dir": str(folder / "build")}
    build = f"from scikit_build_core.build import build_wheel; build_wheel({str(folder)!r}, {settings!r})"
    run(sys.executable, "-c", build, cwd=sdist, env=env)
    (wheel,) = folder.glob("fastadv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    names = {path.name for path in (folder / "site").iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"fastadv", "fastadv_kernels"}
    return any((folder / "site" / "fastadv_kernels").glob("_native*"))


def imported(folder, env):
    """The last line that IMPORT_FROM prints of the unpacked wheel, split."""
    return run(sys.executable, "-c", IMPORT_FROM, str(folder / "site"), cwd=folder, env=env).splitlines()[-1].split()


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_wheel_imports_from_outside_the_clone(sdist, tmp_path):
    assert build_wheel(sdist, tmp_path, os.environ)
    engine, kernels, has_native = imported(tmp_path, os.environ)
    assert engine == str(tmp_path / "site" / "fastadv" / "__init__.py")
    assert kernels == str(tmp_path / "site" / "fastadv_kernels" / "__init__.py")
    assert has_native == "True"


# A compiler that passes CMake's check of it and fails on the sources, as an old one would.
FAILING_COMPILER = """#!/bin/sh
case "$*" in *kernels/csrc/*|*nanobind/src/*) exit 1 ;; esac
exec {compiler} "$@"
"""


@pytest.mark.parametrize("compiler", ["none", "misnamed", "failing"])
def test_without_a_compiler_that_works_the_wheel_runs_on_the_reference(sdist, tmp_path, compiler):
    env = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX")}
    if compiler == "none":
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in ("cmake", "ninja"):
            found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
            if found:
                (tools / name).symlink_to(found)
        env["PATH"] = str(tools)
    elif compiler == "misnamed":
        env["CC"] = env["CXX"] = str(tmp_path / "no-such-compiler")
    else:
        real = shutil.which("c++")
        if real is None:
            pytest.skip("needs a C++ compiler")
        script = tmp_path / "failing-compiler"
        script.write_text(FAILING_COMPILER.format(compiler=real), encoding="utf-8")
        script.chmod(0o755)
        env["CXX"] = str(script)
    assert not build_wheel(sdist, tmp_path, env)
    # Without a library the wheels are one and the same.
    if compiler == "none":
        assert imported(tmp_path, env)[2] == "False"


def test_what_runs_on_linux_alone_is_not_installed_elsewhere():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["triton"]]
    for system, left_out in [
        ("Linux", set()),
        ("Windows", {"deepspeed", "triton"}),
        ("Darwin", {"deepspeed", "triton"}),
    ]:
        skipped = {r.name for r in required if r.marker and not r.marker.evaluate({"platform_system": system})}
        assert skipped == left_out
