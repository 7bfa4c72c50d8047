"""The page on the architecture: its tree is the package's, its order the tested one, its files are there."""

import re
from pathlib import Path

from tests.test_layering import LAYERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_tree_has_a_line_for_every_folder_and_no_other():
    drawn, parents = [], []
    lines = PAGE.partition("```\n")[2].partition("```")[0].splitlines()
    for line in lines[1:]:
        indent, name, about = re.fullmatch(r"( +)(\w+)/ +(\S.*)", line).groups()
        parents = [*parents[: len(indent) // 2 - 1], name]
        drawn.append("/".join(parents))
        assert len(about.split()) > 2, line
    package = ROOT / "fastadv"
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob("*.py")} - {"."}
    assert lines[0] == "fastadv/" and drawn == sorted(folders)


def test_the_order_of_layers_is_the_tested_one():
    (order,) = re.findall(r"Bottom to top: ([^.]*)\.", PAGE)
    assert re.split(r",\s+", order) == LAYERS


def test_every_file_that_is_named_is_there():
    named = re.findall(r"`([\w/]+\.py)`", PAGE)
    assert len(named) > 20
    assert not [name for name in named if not any((ROOT / top / name).is_file() for top in ("", "fastadv"))]
