"""The files of a text attack's report: numbers as the rows have them, hostile texts harmless, n/a where nothing is."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text_report.page import MAX_SHOWN
from fastadv.evaluation.text_report.rates import paired, rates, rates_by_class
from fastadv.evaluation.text_report.report import REPORT_FILES, text_table, write_report
from fastadv.files.csv_file import read_csv
from fastadv.pages.shown_text import marked
from tests.evaluation.attacked_rows import LABELS, drawn_rows, made_row

PROTOCOL = {"recipe": "deepwordbug", "goal": "untargeted", "data": {"source": "a.csv", "split": "test", "hash": "f00"}}


def three_runs():
    control = {"baseline": "base", "robust": "strong", "bias": np.array([0.5, -0.5, 0.0, 0.0])}
    return [
        AttackedModel("base", drawn_rows(90, 1), {"labels": LABELS, "model": "runs/base"}),
        AttackedModel("strong", drawn_rows(90, 2, (0.2, 0.5, 0.2, 0.1))),
        AttackedModel("base, bias of strong", drawn_rows(90, 3), {"control": control}),
    ]


class Reader(HTMLParser):
    """Text and tags of a page; an element that is not closed is noted."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts, self.is_sound = [], [], [], True
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.is_sound &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The folder of a report of three runs, and its results."""
    folder = tmp_path_factory.mktemp("report")
    return folder, write_report(folder, three_runs(), PROTOCOL)


def test_the_four_files_say_what_the_rows_say(report):
    runs, (folder, results) = three_runs(), report
    assert sorted(path.name for path in folder.iterdir()) == sorted(REPORT_FILES)
    read = json.loads((folder / "text-attack.json").read_text())
    assert read == json.loads(json.dumps(results))
    assert read["protocol"] == PROTOCOL and "textattack" in read["versions"]
    for run, model in zip(runs, read["models"], strict=True):
        assert model["rates"] == json.loads(json.dumps(rates(run.rows)))
        assert model["per_class"] == json.loads(json.dumps(rates_by_class(run.rows, LABELS)))
    assert read["models"][2]["control"]["bias"] == [0.5, -0.5, 0.0, 0.0]
    assert read["comparisons"][0]["all"]["any"] == json.loads(json.dumps(paired(runs[0].rows, runs[1].rows)))
    lines = read_csv(folder / "text-attack-table.csv")
    assert [(line["model"], line["class"]) for line in lines[:5]] == [("base", name) for name in ("", *LABELS)]
    whole = rates(runs[0].rows)
    assert float(lines[0]["success_words_2"]) == pytest.approx(whole["success"]["words_2"]["value"], rel=1e-5)
    assert float(lines[0]["queries_high"]) == pytest.approx(whole["queries"]["high"], rel=1e-5)
    assert int(lines[0]["num_failed"]) == whole["num_failed"] and len(lines) == 15


def test_equal_results_make_equal_files(report, tmp_path):
    write_report(tmp_path, three_runs(), PROTOCOL)
    for name in REPORT_FILES:
        assert (tmp_path / name).read_bytes() == (report[0] / name).read_bytes()


@pytest.mark.parametrize("outcome", [None, "skipped", "error"])
def test_where_nothing_was_attacked_all_files_are_there_and_say_so(tmp_path, outcome):
    rows = [] if outcome is None else [made_row(row, outcome, LABELS[row % 4]) for row in range(8)]
    results = write_report(tmp_path, [("a", rows, {}), ("b", rows, {})], PROTOCOL)
    assert all((tmp_path / name).stat().st_size for name in REPORT_FILES)
    table = text_table(results)
    assert "n/a" in table and results["findings"][0]["verdict"] == "n/a"
    assert "No text fooled it." in (tmp_path / "text-attack.html").read_text()


def test_runs_may_be_tuples_or_none_the_protocol_a_fact_and_nan_is_null(tmp_path):
    assert write_report(tmp_path, [], {})["models"] == [] and text_table(write_report(tmp_path, [], {}))
    rows = [made_row(0, "failed", score=float("nan"), score_adversarial=float("nan")), made_row(1, "failed")]
    facts = {"loss": float("nan"), "sizes": np.array([1.0, np.inf]), "protocol": PROTOCOL, "labels": list(LABELS)}
    results = write_report(tmp_path, [("a", rows, facts)])
    (model,) = results["models"]
    assert results["protocol"] == PROTOCOL and "protocol" not in model
    assert model["rates"]["score"]["value"] is None and model["loss"] is None and model["sizes"] == [1.0, None]


def test_the_page_is_sound_and_no_text_becomes_markup(tmp_path):
    evil = "<script>alert(1)</script> & \"quotes\" 'too' \x00\x1b[31m \u202egnol \ud800 <b>bold"
    row = made_row(3, "succeeded", first=evil, first_adversarial=evil.replace("gnol", "<img src=x>"), label="<i>")
    error = made_row(4, "error", note="<script>boom</script>\nsecond line")
    pair = made_row(5, "succeeded", second="one <hr> two", second_adversarial="one <hr> three")
    run = AttackedModel("<b>model</b>", [row, error, pair], {"labels": ["<i>", "$x$", "world", "sports"]})
    other = AttackedModel("$y$ model", [row, pair], {})
    write_report(tmp_path, [run, other], {"recipe": "<u>recipe</u>", "limits": {"queries": None}})
    text = (tmp_path / "text-attack.html").read_text(encoding="utf-8")
    reader = Reader(text)
    assert reader.is_sound and not reader.open
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "i", "b", "u", "hr"}
    assert [attrs["src"][:22] for tag, attrs in reader.tags if tag == "img"] == ["data:image/png;base64,"]
    assert not any(name.startswith("on") for _, attrs in reader.tags for name in attrs)
    assert "http:" not in text and "https:" not in text
    for invisible in ("\x00", "\x1b", "\u202e"):
        assert invisible not in text
    assert "⟨202E⟩" in text and "⟨0000⟩" in text
    assert "<script>boom</script>⟨000A⟩second line" in "".join(reader.texts)


def test_changes_are_marked_where_they_are():
    assert marked("a good film", "a fine film") == "<bdi>a <del>good</del> <ins>fine</ins> film</bdi>"
    assert marked("a good film", "a film") == "<bdi>a <del>good</del> film</bdi>"
    assert marked("a film", "a good film") == "<bdi>a <ins>good</ins> film</bdi>"
    assert marked("a film", "a film") == "<bdi>a film</bdi>" and marked("", "") == "<bdi></bdi>"
    # Of a long text, from before its first change on.
    words = [f"w{i}" for i in range(5000)]
    changed = [*words[:3000], "other", *words[3001:]]
    found = marked(" ".join(words), " ".join(changed))
    assert "<del>w3000</del> <ins>other</ins>" in found and "w2980 " in found and "w2979" not in found
    assert len(found) < 10_000


def test_the_page_shows_the_smallest_changes_first_and_not_too_many(tmp_path):
    rows = [made_row(i, "succeeded", num_words=500, num_words_changed=300 - i) for i in range(MAX_SHOWN + 50)]
    write_report(tmp_path, [("a", rows, {})])
    text = (tmp_path / "text-attack.html").read_text()
    numbers = [part.split("<")[0] for part in text.split("<tr><td>")[1:]]
    shown = [int(number) for number in numbers if number.isdigit()]
    assert shown == list(range(MAX_SHOWN + 49, 49, -1)) and f"The first {MAX_SHOWN} of them." in text


def test_forty_classes_and_seven_models_fit(tmp_path):
    labels = [f"class number {i} of forty" for i in range(40)]
    runs = [AttackedModel(f"model {i}", drawn_rows(200, i, labels=labels), {"labels": labels}) for i in range(7)]
    results = write_report(tmp_path, runs, PROTOCOL)
    assert "success by class" not in text_table(results) and len(results["models"][0]["per_class"]) == 40


def test_the_table_names_every_column_and_model(report):
    lines = text_table(report[1]).split("\n")
    assert lines[0].split()[:2] == ["texts", "accuracy"] and lines[3].startswith("base, bias of strong")
    found = rates(three_runs()[0].rows)["success"]["any"]
    assert f"{100 * found['value']:.1f}% [{100 * found['low']:.1f}, {100 * found['high']:.1f}]" in lines[1]
    assert lines[4].split()[:3] == ["success", "by", "class"]
