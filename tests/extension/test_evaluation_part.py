"""A part of an evaluation that lives outside the package goes through ``fastadv evaluate all --parts``."""

import json

import pytest

from fastadv.cli.main import main
from fastadv.encoder import Encoder
from fastadv.report.content import content_of
from fastadv.report.sources import read_sources

PART = '''
import numpy as np

from fastadv.errors import UserError
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.parts import Found, Part, PartData
from fastadv.evaluation.suite.schema import FEATURES, Quantity

TEXTS = ["a film", "a dull film", "never a film"]


class Lengths(Part):
    """How long the vectors are."""

    name = "lengths"

    def read(self, models):
        return PartData(TEXTS, "three texts", "0" * 64, len(TEXTS), "3 texts")

    def measure(self, data, models, out, progress):
        clean = Quantity("lengths", "texts", "length", None, "", None, FEATURES)
        measured = []
        for model in models:
            rows = np.linalg.norm(model.load().encode_texts(data.content), axis=1)
            measured.append(Measured(clean, model.model, float(rows.mean()), num=3, rows=rows))
            halved = clean.under_attack(metric="length, halved")
            measured.append(Measured(halved, model.model, float(rows.mean()) / 2, num=3, rows=rows / 2))
        return Found(measured, [], self.settings())


class Needy(Lengths):
    """Cannot be set up."""

    name = "needy"

    @classmethod
    def from_options(cls, options):
        raise UserError("it needs more")


class Unread(Part):
    name = "unread"

    def measure(self, data, models, out, progress):
        return Found([], [], {})


class Unnamed(Lengths):
    name = "a/b"
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_bert_dir):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    Encoder.from_pretrained(str(tiny_bert_dir), pooling="mean").save_pretrained(folder)
    return str(folder)


@pytest.fixture
def evaluate(model, tmp_path, monkeypatch):
    (tmp_path / "my_parts.py").write_text(PART)
    (tmp_path / "my_broken_parts.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["evaluate", "all", "--model", f"mine={model}", "--out", str(tmp_path / "out"), "--parts"]
    return lambda *more: main([*command, *more])


def test_a_part_of_ones_own_is_planned_measured_kept_and_reported(evaluate, tmp_path, capsys):
    assert evaluate("my_parts:Lengths", "--dry_run") == 0
    assert "lengths: 3 texts" in capsys.readouterr().out
    for _ in range(2):
        assert evaluate("my_parts:Lengths") == 0
        assert "lengths texts: length" in capsys.readouterr().out
    evaluation = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert evaluation["parts"]["lengths"]["status"] == "done" and len(list((tmp_path / "out/parts").iterdir())) == 1
    means = {row["metric"]: row["value"] for row in evaluation["numbers"] if row["model"] is None}
    assert means["length"] == 2 * means["length, halved"] > 0
    # What is attacked from what is data: the report sets one against the other without knowing their names.
    charts = {chart.title: chart for chart in content_of(read_sources([tmp_path / "out"])).charts}
    (point,) = charts["lengths: texts length, halved"].series[0].points
    assert (point.x.value, point.y.value) == (means["length"], means["length, halved"])


def test_one_that_cannot_be_set_up_says_why(evaluate, tmp_path):
    assert evaluate("my_parts:Needy", "my_parts:Lengths") == 1
    parts = json.loads((tmp_path / "out/evaluation.json").read_text())["parts"]
    assert {name: (part["status"], part["why"]) for name, part in parts.items()} == {
        "needy": ("n/a", "it needs more"),
        "lengths": ("done", None),
    }


@pytest.mark.parametrize(
    "part,words",
    [
        ("lengths", "expected some of sts, transfer"),
        ("my_parts:Nothing", "expected a subclass of fastadv.evaluation.suite.parts.Part, my_parts has None"),
        ("my_parts:TEXTS", "expected a subclass"),
        ("my_parts:Unread", "Unread has no read"),
        ("my_parts:Unnamed", "Unnamed has no name that is a file's"),
        ("nowhere:Part", "does not import"),
        ("my_broken_parts:Part", "ZeroDivisionError"),
    ],
)
def test_one_that_is_not_whole_is_refused_in_a_line(evaluate, tmp_path, capsys, part, words):
    assert evaluate("sts", part) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"--parts {part}: " in said and words in said and not (tmp_path / "out").exists()
