"""Success by epoch: the rates of the reports, in order, whatever order the folders were named in."""

import json

import pytest

from fastadv.cli.main import main
from fastadv.errors import UserError
from fastadv.evaluation.papers.attack_by_epoch import epoch_table, parse_run, points_of
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text_report.rates import rates
from fastadv.evaluation.text_report.report import summary
from fastadv.files.csv_file import read_csv
from tests.evaluation.attacked_rows import LABELS, drawn_rows, made_row


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Folders by recipe and epoch; 0 is the baseline's, 9 one on which nothing was attacked."""
    root = tmp_path_factory.mktemp("reports")

    def write(name, rows, protocol):
        (root / name).mkdir()
        report = summary([AttackedModel("model", rows, {"labels": LABELS})], protocol)
        (root / name / "text-attack.json").write_text(json.dumps(report))

    for recipe in ("synonym", "antonym"):
        for epoch in (0, 1, 2, 10):
            rows = drawn_rows(40, epoch)
            write(f"{recipe}-{epoch}", rows, {"settings": {"recipe": recipe}})
    write("synonym-9", [made_row(0, "skipped")], {"recipe": "synonym"})
    return root


def test_the_command_writes_what_the_reports_say(reports, tmp_path, capsys):
    runs = [f"--run={epoch}={reports}/{recipe}-{epoch}" for recipe in ("synonym", "antonym") for epoch in (10, 2, 1)]
    arguments = ["evaluate", "attack-by-epoch", *runs, f"--run=9={reports}/synonym-9", "--cap", "words_2"]
    arguments += [f"--baseline={reports}/synonym-0", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--dry_run"]) == 0 and not (tmp_path / "out").exists()
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "synonym, epoch 9: n/a, nothing was attacked" in out and "synonym, baseline: " in out
    lines = read_csv(tmp_path / "out" / "attack-by-epoch.csv")
    named = [("synonym", epoch) for epoch in ("1", "2", "9", "10")] + [("antonym", epoch) for epoch in ("1", "2", "10")]
    assert [(line["series"], line["epoch"]) for line in lines] == [*named, ("synonym", "")]
    expected = rates(drawn_rows(40, 2))["success"]["words_2"]
    assert float(lines[1]["success"]) == pytest.approx(expected["value"], rel=1e-5)
    assert float(lines[1]["high"]) == pytest.approx(expected["high"], rel=1e-5)
    assert (int(lines[1]["succeeded"]), int(lines[1]["attacked"])) == (expected["count"], expected["total"])
    assert lines[2]["success"] == "" and lines[2]["attacked"] == "0"
    assert (tmp_path / "out" / "attack-by-epoch.png").stat().st_size > 1000


def test_a_series_may_have_a_name_of_its_own(reports):
    points = points_of(
        [f"batch 8:2={reports}/synonym-2", f"batch 64:1={reports}/synonym-1", f"batch 8:1={reports}/synonym-10"],
        [f"batch 8={reports}/antonym-0"],
    )
    found = [(point.series, point.epoch, point.folder.rpartition("/")[2]) for point in points]
    assert found == [
        ("batch 8", 1.0, "synonym-10"),
        ("batch 8", 2.0, "synonym-2"),
        ("batch 64", 1.0, "synonym-1"),
        ("batch 8", None, "antonym-0"),
    ]
    assert epoch_table(points).split("\n")[0].startswith("batch 8, epoch 1: ")
    assert parse_run("1.5=runs/a=b") == (None, 1.5, "runs/a=b") and parse_run("a:b:3=x") == ("a:b", 3.0, "x")
    assert parse_run("3=runs/a:4=b") == (None, 3.0, "runs/a:4=b") and parse_run("lr=3e-5:2=x") == ("lr=3e-5", 2.0, "x")


@pytest.mark.parametrize("given", ["runs/a", "a=b", "=b", "-1=b", "nan=b", "inf=b", "x:=b", "1="])
def test_what_is_no_run(given):
    with pytest.raises(UserError, match=r"expected \[SERIES:\]EPOCH=FOLDER"):
        parse_run(given)


def test_a_baseline_may_lie_in_a_folder_with_the_sign(reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3e-5,bs=8").symlink_to(f"{reports}/synonym-0")
    points = points_of([f"1={reports}/synonym-1"], ["lr=3e-5,bs=8", f"own={reports}/synonym-0", "own=lr=3e-5,bs=8"])
    assert [point.series for point in points] == ["synonym", "synonym", "own", "own"]
    assert points[1].success == points[2].success == points[3].success


def test_what_is_refused(reports, tmp_path):
    run = f"1={reports}/synonym-1"
    with pytest.raises(UserError, match="epoch 1 of 'synonym' is given twice"):
        points_of([run, f"1={reports}/synonym-2"])
    with pytest.raises(UserError, match="expected the folder of a text attack"):
        points_of([f"1={tmp_path}/nowhere"])
    (tmp_path / "text-attack.json").write_text('{"models": []}')
    with pytest.raises(UserError, match="is no report of a text attack"):
        points_of([f"1={tmp_path}"])
    with pytest.raises(UserError, match="at least one --run"):
        points_of([])
