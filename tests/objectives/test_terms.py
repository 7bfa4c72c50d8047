"""Every term that an objective logs is documented, or marked as its own."""

import ast
from pathlib import Path

import pytest

import fastadv.objectives
from fastadv.objectives.terms import TERMS, logged_name

FOLDER = Path(fastadv.objectives.__file__).parent
PAGE = (FOLDER.parents[1] / "docs" / "monitoring.md").read_text(encoding="utf-8")


def strings(node):
    """Texts of the source that begin with loss_, of an f-string its constant beginning."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("loss_"):
            yield each.value


def test_the_names_are_those_that_the_sources_hold():
    sources = [path for path in FOLDER.rglob("*.py") if path.name != "terms.py"]
    held = {text for path in sources for text in strings(ast.parse(path.read_text(encoding="utf-8")))}
    beginnings = {text for text in held if text.endswith("_")}
    assert beginnings == {"loss_contrast_"} and held - beginnings <= TERMS
    # That of replaced token detection is the step's.
    assert {name for name in TERMS - held if not name.startswith(tuple(beginnings))} == {"loss_rtd"}


@pytest.mark.parametrize("name", sorted(TERMS))
def test_each_is_documented(name):
    assert logged_name(name) == name and f"`{name}`" in PAGE


@pytest.mark.parametrize("name", ["loss_mine", "margin", "delta_norm", "loss"])
def test_any_other_is_marked(name):
    assert logged_name(name) == f"own/{name}"
