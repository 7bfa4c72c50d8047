"""What the page says of costs, configurations, queries and geometry, against numbers worked out by hand."""

import csv
import json
import re

import pytest
from matplotlib.font_manager import FontEntry

from fastadv.pages import drawing
from fastadv.pages.chart import Chart
from fastadv.pages.shown_text import marked
from fastadv.pages.table import Table
from fastadv.report.content import _with_own_keys, content_of
from fastadv.report.sections.config_section import as_text, flattened
from fastadv.report.sections.section import Section
from fastadv.report.sources import read_sources
from tests.evaluation.attacked_rows import made_row
from tests.report.made import make_geometry, make_text_attack, write_text_rows


def content(*folders):
    return content_of(read_sources(folders))


def table(found, key):
    (one,) = (one for one in found.tables if one.key == key)
    return one


def chart(found, key):
    (one,) = (one for one in found.charts if one.key == key)
    return one


def write_run(folder, rows=({"step": 1, "loss": 1.0},), config="objective: simcse\n"):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_costs_are_medians_shares_and_hours(tmp_path):
    times = {"data": 0.1, "forward": 0.2, "search": 0.4, "adversarial": 0.1, "backward": 0.1, "optimizer": 0.1}
    rows = []
    for step, factor in ((10, 1.0), (20, 2.0), (40, 3.0)):
        row = {"step": step, **{f"time/{name}": factor * value for name, value in times.items()}}
        rows.append({**row, "tokens_per_s": 100.0 * factor, "memory_gib": 2.0 - factor / 4, "mfu": 0.25})
    rows[1] |= {"time/eval": 0.5, "time/save": 0.1}
    columns = {column.name for column in table(content(write_run(tmp_path / "a", rows)), "cost").columns}
    cost = table(content(write_run(tmp_path / "one", rows), write_run(tmp_path / "two")), "cost")
    first, second = (dict(zip((column.name for column in cost.columns), row)) for row in cost.rows)
    expected = {"s a step": 2.0, "search, %": 40.0, "adversarial pass, %": 10.0, "adversarial part, %": 50.0}
    # 10 steps of 1 s, 10 of 2 s, 20 of 3 s; the second line's 0.6 s a step for ten steps apart.
    expected |= {"training, h": 90 / 3600, "evaluating and saving, h": 6 / 3600, "tokens/s": 200.0}
    expected |= {"memory, GiB": 1.75, "MFU, %": 25.0, "steps": 40}
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert second["steps"] == 1 and second["s a step"] is None and set(first) == columns
    assert "sentences/s" not in first


def test_configurations_are_set_side_by_side_where_they_differ(tmp_path):
    configs = (
        "objective: simcse\nencoder: {model: m, pooling: mean}\ntrain: {seed: 0, steps: [1, 2]}\nlr: 1.0e-5\n",
        "objective: uscal\nencoder: {model: m, pooling: mean}\ntrain: {seed: 0, steps: [1, 3]}\n"
        "lr: 0.00001\nextra: null\n",
        "objective: uscal\nencoder: {model: m, pooling: cls}\ntrain: {seed: 0, steps: [1, 2]}\nlr: 1.0e-5\n",
    )
    found = content(*(write_run(tmp_path / f"run{i}", config=config) for i, config in enumerate(configs)))
    rows = {row[0]: row[1:] for row in table(found, "config-differences").rows}
    assert rows == {
        "objective": ["simcse", "uscal", "uscal"],
        "encoder.pooling": ["mean", "mean", "cls"],
        "train.steps": ["[1, 2]", "[1, 3]", "[1, 2]"],
        "extra": ["not there", "", "not there"],
    }
    (section,) = (section for section in found.sections if section.title == "Configuration")
    assert "3 other values are equal in all runs" in section.parts[0].text
    # Every file is there whole.
    assert all(
        f"run{i}: all of config.yaml" in "".join(getattr(p, "text", "") for p in section.parts) for i in range(3)
    )


def test_equal_configurations_say_so(tmp_path):
    found = content(write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    assert all(one.key != "config-differences" for one in found.tables)
    (section,) = (section for section in found.sections if section.title == "Configuration")
    assert "No value differs" in section.parts[1].text


def test_long_values_are_compared_whole_and_cut_for_display(tmp_path):
    names = [f"text-{i}" for i in range(200)]
    configs = [f"data: [{', '.join([*names, end])}]\nsame: [{', '.join(names)}]\n" for end in ("first", "second")]
    found = content(*(write_run(tmp_path / f"run{i}", config=config) for i, config in enumerate(configs)))
    ((name, *cells),) = table(found, "config-differences").rows
    assert name == "data" and all(len(cell) <= 302 and cell.startswith("…") for cell in cells)
    assert cells[0].endswith("'first']") and cells[1].endswith("'second']")


@pytest.mark.parametrize(
    "config",
    [
        "\n".join(
            ["a0: &a0 [x, x, x, x, x, x, x, x]"]
            + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 20)]
        ),
        "objective: &a [*a, *a]\nencoder: {model: &m {x: *m, y: *m}}\n",
        "a: &a {b: *a}\n",
        f"a: 0x{'f' * 5000}\nobjective: 0x{'f' * 5000}\n",
        "a: !!pairs [b: 1, c: 2]\ne: []\n",
    ],
)
def test_a_config_that_repeats_itself_endlessly_is_read_to_an_end(tmp_path, config):
    folders = [write_run(tmp_path / name, config=f"{config}\nlast: {name}\n") for name in ("first", "second")]
    found = content(*folders)
    # Names within names of themselves take all that are shown.
    assert "{" in config or "last" in {row[0] for row in table(found, "config-differences").rows}
    for folder in folders:
        content(folder)


def test_text_of_a_config_is_as_python_has_it():
    for value in ([], {}, [1, "a", None, [2.5, {"b": [True]}]], "text", {"a": {"b": "c'"}}, -3, 0.1):
        assert as_text(value, 1000) == str(value) and as_text(value, 2) == str(value)[:2]
    assert flattened({"a": {"b": [1, 2]}, "c": None, "d": {}}) == {"a.b": "[1, 2]", "c": "", "d": "{}"}


def test_tables_and_charts_of_one_key_are_numbered_past_those_that_have_the_number():
    tables = [Table(key, "", [], []) for key in ("x", "x", "x-no2", "x", "x-no2")]
    (section,) = _with_own_keys([Section("", [*tables, Chart("x", "", "", "", ())])])
    keys = [part.key for part in section.parts]
    assert len(set(keys[:5])) == 5 and keys[:2] == ["x", "x-no2"] and keys[5] == "x"


def test_texts_are_cut_at_words_and_no_change_comes_of_it():
    words = [f"word{i}" for i in range(2000)]
    before, changed = " ".join(words), [*words]
    changed[3] = "something-much-longer"
    after = " ".join(changed)
    shown = marked(before, after, 4000)
    assert shown.count("<del>") == shown.count("<ins>") == 1 and "<del>word3</del>" in shown and "…</bdi>" in shown
    for most in range(40, 80):
        shown = marked(before, after, most)
        assert re.findall("<(?:del|ins)>(.*?)</", shown) in (["word3", "something-much-longer"], [])
    assert marked("a b", "a c", 4000) == marked("a b", "a c") == "<bdi>a <del>b</del> <ins>c</ins></bdi>"
    # One word that is longer than all that is looked at.
    assert "<del>" not in marked("n" * 50 + "x", "n" * 50 + "y", 40)


def test_letters_that_matplotlibs_own_font_lacks_are_drawn_in_one_that_is_installed(monkeypatch):
    fonts = [FontEntry(name=name) for name in ("DejaVu Sans", "Noto Sans CJK SC")]
    monkeypatch.setattr("fastadv.pages.drawing.fontManager.ttflist", fonts)
    assert drawing._families.__wrapped__() == ["sans-serif", "Noto Sans CJK SC"]


def write_attack(folder, recipe, outcomes):
    """An attack of rows with these outcomes and queries, a model each."""
    rows_of = {}
    for name, of_model in outcomes.items():
        rows = [
            made_row(i, outcome, num_words_changed=1, num_queries=queries)
            for i, (outcome, queries) in enumerate(of_model)
        ]
        rows_of[name] = rows
    return write_text_rows(folder, rows_of, recipe)


def test_queries_stand_against_the_accuracy_that_an_attack_takes(tmp_path):
    """RobustSentEmbed's figure 2; a text that was wrong before costs no query and loses nothing."""
    first = {
        "weak": [("succeeded", 10), ("succeeded", 30), ("failed", 50), ("skipped", 1)],
        "strong": [("succeeded", 40), ("failed", 100), ("failed", 160), ("failed", 100)],
    }
    second = {"weak": [("succeeded", 5)] * 3 + [("skipped", 1)], "strong": [("succeeded", 7)] * 2 + [("failed", 7)] * 2}
    folders = [write_attack(tmp_path / "a", "textfooler", first), write_attack(tmp_path / "b", "deepwordbug", second)]
    figure = chart(content(*folders), "queries-accuracy-drop")
    points = {one.name: {p.label: (p.x.value, p.y.value) for p in one.points} for one in figure.series}
    assert points == {
        "weak": {"textfooler": (50.0, pytest.approx(30.0)), "deepwordbug": (75.0, pytest.approx(5.0))},
        "strong": {"textfooler": (25.0, pytest.approx(100.0)), "deepwordbug": (50.0, pytest.approx(7.0))},
    }
    assert figure.joins_labels and not figure.is_line
    assert all(p.y.low <= p.y.value <= p.y.high for one in figure.series for p in one.points)


def test_texts_show_the_words_that_changed(tmp_path):
    found = content(make_text_attack(tmp_path / "attack", num_rows=30))
    texts = table(found, "text-changes")
    assert len(texts.rows) == 12 and {row[1] for row in texts.rows} == {"fine-tuning", "scal"}
    assert all("<del>number</del>" in row[-1] and "<ins>figure</ins>" in row[-1] for row in texts.html_body)
    assert all("number" in row[-2] and "figure" in row[-1] for row in texts.rows)
    rates = table(found, "text-attacks")
    results = json.loads((tmp_path / "attack" / "text-attack.json").read_text())
    columns = [column.name for column in rates.columns]
    for row, model in zip(rates.rows, results["models"]):
        cells = dict(zip(columns, row))
        assert cells["success, %"].value == pytest.approx(100 * model["rates"]["success"]["any"]["value"])
        assert cells["after, %"].value == pytest.approx(100 * model["rates"]["robust_accuracy"]["value"])
        assert cells["queries"].value == model["rates"]["queries"]["value"]


def test_alignment_and_uniformity_are_a_point_a_model(tmp_path):
    """RobustSentEmbed's figure 3: uniformity to the right, alignment upwards, as geometry.json has them."""
    folder = make_geometry(tmp_path / "geometry")
    written = {row["model"]: row["quantities"] for row in json.loads((folder / "geometry.json").read_text())["models"]}
    found = content(folder)
    figure = chart(found, "alignment-uniformity")
    assert figure.x_label.startswith("uniformity") and figure.y_label.startswith("alignment")
    assert "lower left" in figure.caption and "2,551 sentences of STS-B test" in figure.caption
    named = {"demo:minilm": "demo:minilm", "runs/a/model": "runs/a/model", "runs/b/model": "runs/b/model"}
    for one in figure.series:
        quantities, (point,) = written[named[one.name]], one.points
        assert list(point.x) == [quantities["uniformity"][part] for part in ("value", "low", "high")]
        assert list(point.y) == [quantities["alignment"][part] for part in ("value", "low", "high")]
    figure.write_csv(tmp_path / "points.csv")
    with (tmp_path / "points.csv").open(newline="", encoding="utf-8") as file:
        assert [row["series"] for row in csv.DictReader(file)] == [one.name for one in figure.series]


def test_a_model_without_alignment_is_in_the_table_alone(tmp_path):
    folder = make_geometry(tmp_path / "geometry")
    found = json.loads((folder / "geometry.json").read_text())
    found["models"][1]["quantities"].pop("alignment")
    found["models"][2]["quantities"]["alignment"] = {"value": None, "low": None, "high": None}
    (folder / "geometry.json").write_text(json.dumps(found))
    shown = content(folder)
    assert [one.name for one in chart(shown, "alignment-uniformity").series] == ["demo:minilm"]
    assert len(table(shown, "geometry").rows) == 3


def test_runs_that_differ_by_seed_alone_have_a_mean_and_a_spread(tmp_path):
    def run(name, seed, loss, score, lr=0.1):
        config = f"objective: simcse\noptimizer: {{lr: {lr}}}\ntrain: {{seed: {seed}, output_dir: {name}}}\n"
        rows = [{"step": step, "loss": 9.0} for step in range(1, 20)]
        rows += [{"step": 20, "loss": loss - 1}, {"step": 21, "loss": loss + 1}, {"step": 20, "dev/score": score}]
        return write_run(tmp_path / name, rows, config)

    runs = [run("a", 0, 1.0, 70.0), run("b", 1, 2.0, 72.0), run("c", 2, 6.0, 77.0)]
    found = table(content(*runs, run("other", 0, 3.0, 60.0, lr=0.2)), "seeds")
    columns = [column.name for column in found.columns]
    rows = {row[1]: dict(zip(columns, row)) for row in found.rows}
    assert len(rows) == len(found.rows) == 2
    score = rows["best dev score"]
    assert (score["configuration"], score["seeds"], score["lowest"], score["highest"]) == ("a, b, c", 3, 70.0, 77.0)
    # Squares of -3, -1 and 4 over 2.
    assert score["mean"] == 73.0 and score["standard deviation"] == pytest.approx(13**0.5)
    assert rows["loss, median of the last tenth of the lines"]["mean"] == 3.0
    assert all(one.key != "seeds" for one in content(runs[0], tmp_path / "other").tables)
