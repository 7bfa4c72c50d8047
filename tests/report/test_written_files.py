"""What a report leaves beside its page: whole, listed, cleared by the next one and by a run that begins anew."""

import json
from pathlib import Path

import pytest

from fastadv.engine.run_folder import begin_run
from fastadv.report.write import place_of, write_whole_report
from fastadv.report.written_files import LIST, clear_written, read_list


def write_run(folder, metrics=("loss", "lr")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("objective: simcse\n")
    lines = [json.dumps({"step": step, **dict.fromkeys(metrics, 1.0 / step)}) for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_one_run_has_its_report_in_its_folder(tmp_path):
    folder = write_run(tmp_path / "run")
    before = files_of(folder)
    path, _ = write_whole_report([folder])
    assert path == folder / "report.html"
    written = {"summary.md", "figures/training-loss.png", "figures/training-lr.png", "tables/cost.csv"}
    written |= {"tables/figure-training-loss.csv", "tables/figure-training-lr.csv"}
    assert files_of(folder) - before == {"report.html", LIST, *written}
    assert set(read_list(folder)) == written
    summary = (folder / "summary.md").read_text()
    assert "![loss](figures/training-loss.png)" in summary and "| run | 3 |" in summary


def test_the_next_report_removes_what_it_no_longer_writes_and_nothing_else(tmp_path):
    folder = write_run(tmp_path / "run")
    write_whole_report([folder])
    (folder / "figures" / "mine.png").write_bytes(b"mine")
    write_run(folder, ("loss",))
    write_whole_report([folder])
    assert not (folder / "figures" / "training-lr.png").exists()
    assert not (folder / "tables" / "figure-training-lr.csv").exists()
    assert (folder / "figures" / "mine.png").read_bytes() == b"mine"
    assert "training-lr" not in (folder / LIST).read_text()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_run_that_begins_anew_has_no_report_of_the_one_before(tmp_path, is_resumed):
    folder = write_run(tmp_path / "run")
    write_whole_report([folder])
    (folder / "tables" / "mine.csv").write_text("a\n")
    begin_run(folder, "objective: uscal\n", is_resumed)
    left = files_of(folder)
    if is_resumed:
        assert {"report.html", "summary.md", LIST} < left
    else:
        assert left == {"config.yaml", "metrics.jsonl", "tables/mine.csv"} and not (folder / "figures").exists()


def test_a_list_from_elsewhere_removes_nothing_outside(tmp_path):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    for place in (folder, outside, folder / "figures"):
        place.mkdir()
    (folder / "tables").symlink_to(outside)
    kept = [tmp_path / "a.png", outside / "a.csv", folder / "config.yaml"]
    for path in kept:
        path.write_text("kept")
    (folder / "figures" / "folder.png").mkdir()
    names = ["../a.png", "figures/../../a.png", str(tmp_path / "a.png"), "tables/a.csv", "config.yaml", 3, None]
    names += ["figures/folder.png", "figures/gone.png"]
    (folder / LIST).write_text(json.dumps(names))
    clear_written(folder)
    assert all(path.read_text() == "kept" for path in kept) and (folder / "figures" / "folder.png").is_dir()
    assert not (folder / LIST).exists()


@pytest.mark.parametrize("content", ["", "{", "{}", "null", "[" * 10_000])
def test_a_damaged_list_is_none(tmp_path, content):
    (tmp_path / LIST).write_text(content)
    assert read_list(tmp_path) == []
    clear_written(tmp_path)


def test_a_page_has_the_place_that_is_named(tmp_path):
    assert place_of(["runs/a"]) == (Path("runs/a/report.html"), Path("runs/a"))
    assert place_of(["runs/a", "runs/b"]) == (Path("report/report.html"), Path("report"))
    assert place_of(["runs/a"], str(tmp_path / "x.html")) == (tmp_path / "x.html", tmp_path)
    assert place_of(["runs/a"], str(tmp_path)) == (tmp_path / "report.html", tmp_path)
