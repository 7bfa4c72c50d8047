"""Objectives from user code: found, their options checked by type and name, mistakes told in one line."""

import sys

import pytest

from fastadv import UserError, load_config
from fastadv.config.schema import to_yaml

MINE = '''
from enum import Enum
from typing import Dict, List, Literal, Optional

from fastadv.objectives import Objective


class Colour(Enum):
    red = 1


class Mine(Objective):
    """An objective of a user's.

    Args:
        margin: how far apart
    """

    def __init__(self, hidden_size: int, *, margin: float = 0.5, kind: Literal["a", "off"] = "a", **options):
        super().__init__(hidden_size)
        raise SystemError("options are checked without building anything")


class Derived(Mine):
    def __init__(
        self,
        hidden_size,
        *,
        num_words: int,
        weights: Optional[List[float]] = None,
        counts: Dict[str, int] = {},
        anything=None,
        colour: Colour = Colour.red,
        **options,
    ):
        super().__init__(hidden_size, **options)


class Bare(Objective):
    pass


class NoObjective:
    pass
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder that a user works in, with objectives of his own."""
    folder = tmp_path / "my_objectives"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "needs_more.py").write_text("import a_package_nobody_has")
    (folder / "broken.py").write_text("x = (")
    (folder / "raises.py").write_text("raise RuntimeError('first line\\nsecond line')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "my_objectives"
    for name in [name for name in sys.modules if name.startswith("my_objectives")]:
        del sys.modules[name]


def options(objective, **given):
    overrides = [f"--objective_options.{name}={value}" for name, value in given.items()]
    return load_config(overrides=[f"--objective=my_objectives.mine:{objective}", *overrides])


def test_an_objective_in_the_current_folder_is_found_and_its_defaults_are_recorded(package):
    assert options("Mine").objective_options == {"margin": 0.5, "kind": "a"}
    assert options("Bare").objective_options == {}


def test_options_have_the_types_of_the_constructor_and_of_the_bases_it_hands_them_to(package, tmp_path):
    config = options("Derived", num_words=3, margin=1, kind="off", weights="[1, 2]", counts="{a: 1}", anything="[x]")
    assert config.objective_options == {
        "num_words": 3,
        "weights": [1.0, 2.0],
        "counts": {"a": 1},
        "anything": ["x"],
        "margin": 1.0,
        "kind": "off",
    }
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config(str(tmp_path / "again.yaml")) == config


@pytest.mark.parametrize(
    "objective, given, expected",
    [
        (
            "Mine",
            {"margn": 1},
            ["objective_options.margn = 1", "Mine", "nearest is objective_options.margin"],
        ),
        ("Mine", {"margin": "wide"}, ["objective_options.margin = wide", "finite number"]),
        ("Mine", {"kind": "b"}, ["objective_options.kind = b", "a, off"]),
        ("Mine", {"hidden_size": 3}, ["objective_options.hidden_size = 3", "no such key"]),
        ("Derived", {}, ["objective_options.num_words is missing", "Derived", "whole number"]),
        ("Derived", {"num_words": 1.5}, ["objective_options.num_words = 1.5", "whole number"]),
        (
            "Derived",
            {"num_words": 1, "weights": "[a]"},
            ["objective_options.weights = [a]", "list of finite numbers or null"],
        ),
        ("Derived", {"num_words": 1, "counts": "{a: b}"}, ["objective_options.counts = {a: b}", "mapping"]),
        ("Derived", {"num_words": 1, "colour": "red"}, ["objective_options.colour", "Colour"]),
        ("Bare", {"margin": 1}, ["objective_options.margin = 1", "Bare", "takes no options"]),
        ("NoObjective", {}, ["my_objectives.mine:NoObjective", "subclass"]),
        ("Missing", {}, ["my_objectives.mine:Missing"]),
    ],
)
def test_a_wrong_option_gives_one_line_with_its_name(package, objective, given, expected):
    with pytest.raises(UserError) as caught:
        options(objective, **given)
    line = str(caught.value)
    assert line.isprintable() and all(words in line for words in expected), line


@pytest.mark.parametrize(
    "module, expected",
    [
        ("needs_more", "a_package_nobody_has"),
        ("broken", "never closed"),
        ("raises", "first line second line"),
        ("absent", "my_objectives.absent"),
    ],
)
def test_a_module_that_does_not_import_gives_one_line(package, module, expected):
    with pytest.raises(UserError) as caught:
        load_config(overrides=[f"--objective={package}.{module}:Mine"])
    line = str(caught.value)
    assert line.isprintable() and f"{package}.{module}:Mine" in line and expected in line


def test_help_shows_the_options_of_the_named_objective(package):
    from fastadv.launch.help import help_text

    text = help_text(f"{package}.mine:Mine")
    assert "--objective_options.margin" in text and "how far apart" in text
    assert "--objective_options.temperature" not in text
