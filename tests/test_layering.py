"""The order of the package's layers: a file imports from its own layer and from those below it, and never in a circle.

Imports are read from the syntax tree, so those inside functions and under ``TYPE_CHECKING`` count.
"""

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = (
    "errors files config distributed data encoder perturbation objectives launch engine/step planning pages evaluation "
    "report engine/checkpoints engine/monitor engine dry_run train cli"
).split()
"""Bottom to top; `engine` is what lies in none of its folders that have a place of their own"""
DOORS = {Path("fastadv/__init__.py"), Path("fastadv/__main__.py")}
"""What users open: they lead to every layer, so no layer may come in by them"""
FOLDERS = "fastadv", "bench", "tests"
MOST_FILES = 13

CIRCLES: set[frozenset[str]] = set()
"""Modules of one layer that still import each other in a circle; exact, so that the list can only shrink"""


def layer(path: Path) -> str:
    names = "/".join(path.with_suffix("").parts[1:3]), path.with_suffix("").parts[1]
    return next(name for name in names if name in LAYERS)


def imports(path: Path, root: Path) -> Iterator[tuple[Path, int]]:
    """Files of ``fastadv`` that ``path`` imports, and in which line; paths relative to ``root``."""
    for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = path.parts[: -node.level] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            imported = [base + (alias.name,) for alias in node.names]
        elif isinstance(node, ast.Import):
            imported = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        for names in imported:
            if names[0] != "fastadv" or names == ("fastadv", "__version__"):
                continue
            # A module, a package, or a name inside either.
            places = "/".join(names), "/".join(names[:-1])
            files = [Path(f"{place}{end}") for place in places for end in (".py", "/__init__.py")]
            yield next(file for file in files if (root / file).is_file()), node.lineno


def modules(root: Path) -> list[Path]:
    return sorted({path.relative_to(root) for path in (root / "fastadv").rglob("*.py")} - DOORS)


def upward(root: Path) -> list[str]:
    """Every import that goes up, with its file and line."""
    found = [(path, target, line) for path in modules(root) for target, line in imports(path, root)]
    return [
        f"{path}:{line} imports {target}"
        for path, target, line in found
        if target in DOORS or LAYERS.index(layer(target)) > LAYERS.index(layer(path))
    ]


def circles(root: Path) -> set[frozenset[str]]:
    """Groups of modules, of one layer each, in which every module imports every other, directly or through others."""
    imported = {path: {target for target, _ in imports(path, root)} - DOORS for path in modules(root)}

    def reachable(start: Path) -> set[Path]:
        reached: set[Path] = set()
        waiting = [start]
        while waiting:
            new = {target for target in imported[waiting.pop()] if layer(target) == layer(start)} - reached
            reached |= new
            waiting += new
        return reached

    reached = {path: reachable(path) for path in imported}
    groups = [{other for other in reached[path] if path in reached[other]} for path in imported]
    return {frozenset(str(path.relative_to("fastadv").with_suffix("")) for path in group) for group in groups if group}


def test_no_import_goes_up():
    assert upward(ROOT) == []


def test_modules_of_one_layer_do_not_import_each_other_in_a_circle():
    assert circles(ROOT) == CIRCLES


def test_kernels_import_nothing_of_the_package():
    kernels = sorted(path.relative_to(ROOT) for path in (ROOT / "kernels").rglob("*.py"))
    assert kernels and not [f"{path}:{line}" for path in kernels for _, line in imports(path, ROOT)]


@pytest.mark.parametrize("top", FOLDERS)
def test_no_folder_has_more_files_than_one_looks_over(top):
    folders = {path.parent for path in (ROOT / top).rglob("*.py")}
    counts = {
        str(folder.relative_to(ROOT)): sum(
            path.name not in ("__init__.py", "conftest.py") for path in folder.glob("*.py")
        )
        for folder in folders
    }
    assert not {folder: count for folder, count in counts.items() if count > MOST_FILES}


@pytest.mark.parametrize(
    "line",
    [
        "from fastadv.launch.load import load_config",
        "from fastadv import launch",
        "import fastadv.engine.loop",
        "from ..launch import load",
        "from fastadv import load_config",
        "def late():\n    from fastadv.launch import load",
        "if TYPE_CHECKING:\n    from fastadv.launch.load import load_config",
    ],
)
def test_a_planted_import_is_found(tmp_path, line):
    for name in ("__init__", "config/schema", "launch/__init__", "launch/load", "engine/loop", "data/rows"):
        path = tmp_path / "fastadv" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "from fastadv import __version__\nfrom fastadv.config import schema\n" if "data" in name else ""
        )
    (tmp_path / "fastadv/config/__init__.py").touch()
    assert upward(tmp_path) == [] and circles(tmp_path) == set()
    (tmp_path / "fastadv/config/schema.py").write_text(line)
    (found,) = upward(tmp_path)
    assert found.startswith(f"fastadv/config/schema.py:{len(line.splitlines())} imports fastadv/"), found


def test_a_planted_circle_is_found(tmp_path):
    (tmp_path / "fastadv/data").mkdir(parents=True)
    for name, other in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        (tmp_path / f"fastadv/data/{name}.py").write_text(f"def late():\n    import fastadv.data.{other}")
    assert circles(tmp_path) == {frozenset({"data/a", "data/b", "data/c"})}


def test_every_name_that_is_imported_is_there():
    """Imports inside functions run when the function does; a name that moved would be missed until then."""
    missing = []
    for path in sorted(path for root in FOLDERS for path in (ROOT / root).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in FOLDERS:
                continue
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name) and importlib.util.find_spec(f"{node.module}.{alias.name}") is None:
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.module}.{alias.name}")
    assert missing == []
