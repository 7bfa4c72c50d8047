"""The README's code runs as printed."""

import os
import re
import shlex
from pathlib import Path

import pytest

from fastadv.cli.main import main
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import draw_head
from fastadv.encoder.classifier.text_classifier import Classifier

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_loop_of_one_s_own_is_short_and_searches_uphill(capsys):
    source = next(block for block in BLOCKS if "adversary.search" in block)
    assert len(source.splitlines()) <= 30
    exec(compile(source, "README.md", "exec"), {"__name__": "readme"})
    gains = [float(re.search(r"raised by (\S+)", line)[1]) for line in capsys.readouterr().out.splitlines()]
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


COMMANDS = re.findall(r"^    (fastadv .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_taken_as_printed(command, tmp_path, monkeypatch, capsys, tiny_bert_dir):
    """In a folder that has what they name, each gives its plan."""
    (tmp_path / "my_sentences.txt").write_text("a film\nanother one\n", encoding="utf-8")
    (tmp_path / "my.jsonl").write_text('{"body": "a film"}\n{"body": "another one"}\n', encoding="utf-8")
    if "--recipe" in command and "FASTADV_ATTACK_DATA" not in os.environ:
        pytest.skip("the data of text attacks are not at hand (make attack-data)")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "model").symlink_to(tiny_bert_dir)
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command)[1:]
    if "evaluate" in arguments:
        # The data sets are not part of this repository; the reader of the folder has tests of its own.
        monkeypatch.setattr("fastadv.evaluation.vectors.sts.read_sts_sets", lambda folder, names: {})
        arguments += ["--max_length", "60"]
    for name in ("reviews", "reviews-dev", "reviews-test"):
        (tmp_path / f"{name}.csv").write_text("text,stars\na film,1\nanother one,5\n", encoding="utf-8")
    if "attack" in arguments:
        classes = LabelMap(("1", "5"))
        encoder = Encoder.from_pretrained(str(tiny_bert_dir))
        Classifier(encoder, draw_head(encoder.hf.config, classes), classes).save_pretrained("runs/reviews/model")
    if "report" in arguments:
        for name in ("config.yaml", "metrics.jsonl"):
            (tmp_path / "runs" / "mine" / name).touch()
    if "train" in arguments:
        (tmp_path / "runs" / "mine" / "model").unlink()
        (tmp_path / "runs" / "mine").rmdir()
    assert main([*arguments, "--dry_run"]) == 0, capsys.readouterr().err


def test_nothing_is_left_to_fill_in():
    assert not re.findall(
        r"\b[A-Z]{3,}_[A-Z_]{3,}\b(?!\s*\()", re.sub(r"`[^`]*`", "", (ROOT / "README.md").read_text())
    )
