"""The README's code runs as printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_loop_of_one_s_own_is_short_and_searches_uphill(capsys):
    source = next(block for block in BLOCKS if "adversary.search" in block)
    assert len(source.splitlines()) <= 30
    exec(compile(source, "README.md", "exec"), {"__name__": "readme"})
    gains = [float(line.split()[-3]) for line in capsys.readouterr().out.splitlines()]
    assert len(gains) == 3 and min(gains) > 0


def test_the_trainer_example_parses_its_config(monkeypatch):
    source = next(block for block in BLOCKS if "Trainer(" in block)
    monkeypatch.chdir(ROOT)
    names = {"__name__": "readme"}
    exec(compile(source, "README.md", "exec"), names)

    class Recorded:
        def __init__(self, config, callbacks):
            self.config, self.callbacks = config, callbacks

        def fit(self):
            return self

    names["Trainer"] = Recorded
    recorded = names["train"]()
    assert recorded.config.train.max_steps == 300
    assert isinstance(recorded.callbacks[0], names["Tell"])


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "docs/methods.md"])
def test_files_that_are_linked_exist(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / file).parent / target).exists(), target
