"""What a report leaves beside its page: whole, listed, cleared by the next one and by a run that begins anew."""

import json
import re
from pathlib import Path

import pytest

from fastadv.engine.checkpoints.run_folder import begin_run
from fastadv.errors import UserError
from fastadv.report.write import describe_report, place_of, write_report, write_whole_report
from fastadv.report.written_files import LIST, clear_written, read_list
from tests.report.made import make_embedding_attack, make_evaluation, make_run, make_text_attack


@pytest.fixture(autouse=True)
def pictures(monkeypatch):
    """Their bytes do not matter here, and are most of the time."""
    monkeypatch.setattr("fastadv.report.write.chart_png", lambda chart, path: path.write_bytes(b""))


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
    written = {"report.md", "figures/training-loss.png", "figures/training-lr.png", "tables/cost.csv"}
    written |= {"tables/figure-training-loss.csv", "tables/figure-training-lr.csv"}
    assert files_of(folder) - before == {"report.html", LIST, *written}
    assert set(read_list(folder)) == written
    text = (folder / "report.md").read_text()
    assert "![loss](figures/training-loss.png)" in text and "| run | 3 |" in text
    # The next report removes what it no longer writes, and nothing else.
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
        assert {"report.html", "report.md", LIST} < left
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
    assert place_of(["runs/a"]) == Path("runs/a/report.html")
    assert place_of(["runs/a", "runs/b"]) == Path("report/report.html")
    assert place_of(["runs/a"], str(tmp_path / "x.html")) == tmp_path / "x.html"
    assert place_of(["runs/a"], str(tmp_path)) == tmp_path / "report.html"


def test_two_pages_of_one_folder_keep_their_files_apart(tmp_path):
    folder = write_run(tmp_path / "run")
    for name in ("a", "b [x]"):
        write_whole_report([folder], str(tmp_path / "cmp" / f"{name}.html"))
    first = {"a.html", "a.md", "a-files.json", "a-figures/training-loss.png", "a-tables/cost.csv"}
    assert first < files_of(tmp_path / "cmp")
    assert {name.replace("a", "b [x]", 1) for name in first} < files_of(tmp_path / "cmp")
    assert "(b%20%5Bx%5D-figures/training-loss.png)" in (tmp_path / "cmp" / "b [x].md").read_text()
    # The next report of either removes what it no longer draws, of its own alone.
    write_run(folder, ("loss",))
    write_whole_report([folder], str(tmp_path / "cmp" / "a.html"))
    left = files_of(tmp_path / "cmp")
    assert "a-figures/training-lr.png" not in left and "b [x]-figures/training-lr.png" in left


@pytest.mark.parametrize("name", ["report.md", "figures/training-loss.png", "tables/cost.csv", "report.html", LIST])
def test_a_file_that_no_report_has_written_stops_it_before_anything_is_written(tmp_path, name):
    folder, out = write_run(tmp_path / "run"), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("<title>mine</title>")
    for do in (write_whole_report, describe_report):
        with pytest.raises(UserError, match=f"{re.escape(name)}' is there and .*--out"):
            do([folder], str(out))
    assert files_of(out) == {name} and (out / name).read_text() == "<title>mine</title>"
    # Out of its way the report is written, and then replaced.
    (out / name).unlink()
    for _ in range(2):
        write_whole_report([folder], str(out))


def test_an_attacks_own_page_is_no_report(tmp_path):
    folder = make_text_attack(tmp_path / "attack")
    text = (folder / "text-attack.html").read_text()
    with pytest.raises(UserError, match="is no report's page"):
        write_whole_report([folder], str(folder / "text-attack.html"))
    assert (folder / "text-attack.html").read_text() == text


def test_the_table_of_an_evaluation_stays(tmp_path):
    folder = make_evaluation(tmp_path / "evaluation", num_rows=20, num_seeds=1)
    kept = {name: (folder / name).read_bytes() for name in files_of(folder)}
    for _ in range(2):
        write_whole_report([folder])
    assert "summary.md" in kept and {name: (folder / name).read_bytes() for name in kept} == kept


@pytest.mark.parametrize("has_attack", [False, True])
def test_a_runs_picture_does_not_replace_an_attacks(tmp_path, has_attack):
    folder = make_run(tmp_path / "run")
    if has_attack:
        make_embedding_attack(tmp_path / "attack")
        (tmp_path / "attack" / "attack.json").rename(folder / "attack.json")
        (folder / "attack.png").write_bytes(b"of the attack")
    for write in (lambda: write_report(folder), lambda: write_whole_report([folder])):
        write()
        assert ((folder / "attack.png").read_bytes() == b"of the attack") is has_attack
        # What the page says of the files of the run is true.
        assert ("the attack curves as a picture" in (folder / "report.html").read_text()) is not has_attack
    begin_run(folder, "objective: uscal\n", False)
    assert (folder / "attack.png").exists() is has_attack
