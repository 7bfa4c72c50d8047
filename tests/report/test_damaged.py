"""Folders that are damaged, empty, hostile or still being written: one line or n/a, never a traceback, never markup."""

import csv
import json
import re

import pytest

from fastadv.cli.main import main
from fastadv.errors import UserError
from fastadv.pages.drawing import chart_png
from fastadv.report.write import write_report, write_whole_report
from tests.report.made import make_embedding_attack, make_evaluation, make_geometry, make_run, make_text_attack
from tests.report.parsed_page import Page

HOSTILE = (
    "<script>alert(1)</script>",
    "a & b &amp; \"c\" 'd'",
    "🙂 モデル \u202egnp",
    "n" * 200,
    "$x^2$ `|` [l](javascript:x) *_",
    "</style></svg><img src=x onerror=alert(1)>",
)


@pytest.fixture(autouse=True)
def pictures(monkeypatch):
    """PNGs cost half the time here, and are drawn from the same figures; `test_hostile_names…` draws them."""
    monkeypatch.setattr("fastadv.report.write.chart_png", lambda chart, path: path.write_bytes(b""))


@pytest.fixture
def evaluation(tmp_path):
    return make_evaluation(tmp_path / "evaluation", num_rows=20, num_seeds=1)


def small_run(folder, last_step=3):
    """A run with one curve."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("objective: simcse\n", encoding="utf-8")
    lines = [json.dumps({"step": step, "loss": 1.0 / step}) for step in range(1, last_step + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def report(*folders, out):
    """The page, parsed, its text, and the notes; every CSV is read."""
    path, notes = write_whole_report(folders, str(out))
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.ids) == len(set(page.ids)) and "nan" not in " ".join(page.texts).lower().split()
    for table in out.glob("tables/*.csv"):
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert len({len(row) for row in rows}) == 1, table
    # The only tags are those of the page itself.
    assert not {"script", "img", "iframe", "object", "link", "base", "form"} & set(page.tags)
    return page, text, notes


def rewritten(path, change):
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    # NaN as Python writes it, which JSON does not know.
    path.write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (None, "is no folder"),
        ({}, "holds nothing to report on; expected at least one of metrics.jsonl"),
        ({"config.yaml": "objective: simcse"}, "holds nothing to report on"),
        ({"attack.json": "{"}, "holds nothing that can be read: attack.json could not be read"),
        ({"evaluation.json": '{"format": 7}'}, "format 7, expected 1 or 2"),
        ({"evaluation.json": "[]"}, "holds nothing that can be read"),
        ({"geometry.json": "[" * 100_000}, "holds nothing that can be read"),
        ({"text-attack.json": '{"kind": "other"}'}, "kind 'other'"),
        ({"metrics.jsonl": "\x00\xff not a line\n"}, "metrics.jsonl: 1 line could not be read"),
    ],
)
def test_a_folder_that_is_nothing_is_one_line(tmp_path, capsys, files, expected):
    folder = tmp_path / "folder"
    if files is not None:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_text(content, encoding="latin-1")
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert expected in error and "\n" not in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("other", "said"), [("missing", "'.*missing' is no folder"), ("./run", "is given twice")])
def test_one_that_is_nothing_stops_the_others(tmp_path, other, said):
    with pytest.raises(UserError, match=said):
        write_whole_report([small_run(tmp_path / "run"), tmp_path / other], str(tmp_path / "out"))


def test_a_run_that_has_just_begun_and_one_that_is_still_going_on(tmp_path, capsys):
    """Nothing is logged yet; then the last line is half written, and nothing was measured."""
    folder = small_run(tmp_path / "begun")
    (folder / "metrics.jsonl").write_text("")
    page, text, notes = report(folder, out=tmp_path / "out")
    assert "no training step logged" in text and not notes and "svg" not in page.tags
    folder = small_run(tmp_path / "run", 20)
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 210, "lo')
    page, text, notes = report(folder, out=tmp_path / "out")
    assert notes == ["metrics.jsonl: 1 line could not be read"] and notes[0] in text
    assert "20 training steps" in text and page.tags.count("svg") == 1
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "fastadv report: metrics.jsonl: 1 line could not be read" in capsys.readouterr().err


HUGE = "9" * 400
"""a whole number that no float holds"""


def test_a_number_that_no_float_holds_is_left_out(tmp_path, evaluation):
    folder = small_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f'{{"step": 4, "loss": {HUGE}, "lr": 0.5}}\n{{"step": {HUGE}, "loss": 1.0}}\n')
    attack = make_embedding_attack(tmp_path / "attack")
    for path, name in ((attack / "attack.json", '"value": '), (evaluation / "evaluation.json", '"low": ')):
        text = path.read_text()
        assert name in text
        path.write_text(re.sub(rf"{name}[-\d.e]+", f"{name}{HUGE}", text, count=3))
    rewritten(evaluation / "geometry" / "geometry.json", lambda found: found.update(num_sentences=int(HUGE)))
    page, text, notes = report(folder, attack, evaluation, out=tmp_path / "out")
    assert len(notes) == 2 and "run: metrics.jsonl: 1 line could not be read" in notes
    assert any(note.startswith("evaluation: geometry/geometry.json could not be read: ") for note in notes)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: [row.update(radius=None) for row in found["rows"] if row["key"].startswith("retrieval@")],
        lambda found: found.update(warnings=None),
        lambda found: found.update(warnings=5),
        lambda found: found.update(warnings=[3]),
        lambda found: found["rows"][0].update(before=int(HUGE)),
        lambda found: found.update(radii=[int(HUGE)]),
        lambda found: found.update(rows=None),
    ],
)
def test_damaged_results_of_a_run_are_a_note_or_left_out(tmp_path, change):
    folder = make_run(tmp_path / "run", 20)
    rewritten(folder / "results.json", change)
    page, text, notes = report(folder, out=tmp_path / "out")
    is_known = "sentiment probe" in text
    assert notes == ([] if is_known else ["results.json is not what a run leaves"])
    # As the run itself does at its end.
    write_report(folder)


def test_a_run_without_dev_beside_one_with_it(tmp_path):
    with_dev, without = small_run(tmp_path / "with"), small_run(tmp_path / "without")
    times = [{"step": step, "time/forward": 0.5} for step in (1, 2, 3)]
    for folder, rows in ((with_dev, [*times, {"step": 3, "dev/score": 81.5, "time/eval": 9.0}]), (without, times)):
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    page, text, notes = report(with_dev, without, out=tmp_path / "out")
    assert not notes
    with (tmp_path / "out" / "tables" / "figure-training-dev-score.csv").open() as file:
        assert {row["series"] for row in csv.DictReader(file)} == {"with"}
    with (tmp_path / "out" / "tables" / "cost.csv").open() as file:
        costs = {row["run"]: row for row in csv.DictReader(file)}
    assert (
        float(costs["with"]["evaluating and saving, h"]) == 9 / 3600
        and costs["without"]["evaluating and saving, h"] == ""
    )
    assert "n/a" in re.search(r"<tr><th[^>]*>without</th>.*", text)[0]


def test_nulls_and_nans_of_an_evaluation_are_not_available(tmp_path, evaluation):

    def spoil(found):
        for number, row in enumerate(found["numbers"]):
            if row["set"] == "STS-B" and row["metric"] == "spearman":
                row.update(value=(None, float("nan"), float("inf"))[number % 3], low=None, high=None, num=None)
            row["spread"] = float("nan")
        for row in found["differences"]:
            row.update(p_value=None, value=None, low=None, high=float("nan"))

    rewritten(evaluation / "evaluation.json", spoil)
    page, text, notes = report(evaluation, out=tmp_path / "out")
    row = re.search(r"<tr><th[^>]*>STS-B spearman \(x 100\) ↑</th>(.*)</tr>", text)[1]
    assert row.count("n/a") == 2 and not notes
    assert "held-out retrieval@1" in text


@pytest.mark.parametrize("name", ["evaluation.json", "geometry/geometry.json", "text-deepwordbug/text-attack.json"])
def test_one_damaged_file_is_a_note_and_the_rest_is_shown(tmp_path, evaluation, name):
    for file in small_run(tmp_path / "run").iterdir():
        file.rename(evaluation / file.name)
    content = (evaluation / name).read_bytes()
    (evaluation / name).write_bytes(content[: len(content) // 2])
    page, text, notes = report(evaluation, out=tmp_path / "out")
    (note,) = notes
    assert note.startswith(f"{name} could not be read: ") and "Could not be read" in text
    assert "Training" in text


def test_two_folders_of_one_name_stay_two(tmp_path):
    folders = [small_run(tmp_path / parent / "run") for parent in ("first", "second")]
    page, text, _ = report(*folders, out=tmp_path / "out")
    assert "first/run · second/run" in " ".join(page.texts)
    with (tmp_path / "out" / "tables" / "figure-training-loss.csv").open() as file:
        assert {row["series"] for row in csv.DictReader(file)} == {"first/run", "second/run"}


@pytest.mark.filterwarnings("ignore:Glyph .* missing", "ignore:constrained_layout not applied")
def test_hostile_names_are_text_wherever_they_stand(tmp_path, monkeypatch):
    """Of folders, models, systems, sets, settings, metrics and texts."""
    monkeypatch.setattr("fastadv.report.write.chart_png", chart_png)
    folders = [small_run(tmp_path / "runs" / name.replace("/", "∕")) for name in HOSTILE[:3]]
    (folders[0] / "config.yaml").write_text(json.dumps({name: HOSTILE for name in HOSTILE}), encoding="utf-8")
    (folders[1] / "config.yaml").write_text("a: &a [x]\nb: *a\n" + "</pre><script>1</script>: [", encoding="utf-8")
    folders.append(make_embedding_attack(tmp_path / "attack", HOSTILE))
    folders.append(make_geometry(tmp_path / "geometry", HOSTILE))
    folders.append(make_text_attack(tmp_path / "fooler", HOSTILE[:3], HOSTILE[0], num_rows=20))
    evaluation = make_evaluation(tmp_path / "evaluation", HOSTILE[:2], num_rows=20, num_seeds=1)

    def spoil(found):
        found["warnings"] = list(HOSTILE)
        for row in found["numbers"]:
            row["set"], row["why"] = HOSTILE[0], HOSTILE[5]

    rewritten(evaluation / "evaluation.json", spoil)
    page, text, notes = report(*folders, evaluation, out=tmp_path / "out")
    assert set(re.findall(r"<script|<img|onerror=(?!alert\(1\)&gt;)|<b>", text)) == set()
    texts = " ".join(page.texts)
    for name in HOSTILE:
        shown = name.replace("\u202e", "⟨202E⟩")
        assert shown in texts, name
    # What would turn the reading order is made visible.
    assert "\u202e" not in text
    # Nothing may leave the page, whatever a name says.
    assert all(link.startswith("#") for link in page.links)
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "<script>" not in markdown and "](javascript" not in markdown.replace("\\]", "")


def test_a_folder_of_a_hostile_name_alone(tmp_path):
    for number, name in enumerate(HOSTILE):
        report(small_run(tmp_path / name.replace("/", "∕")), out=tmp_path / f"out-{number}")
