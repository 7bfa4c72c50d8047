"""The pages of the papers are what their script makes of the data files, and the data files hold together."""

import re

import pytest

from bench.pages.reproduce_page import (
    DOCS,
    LEFT_OUT,
    ROOT,
    config_of,
    costs_of,
    pages,
    rar_parameters,
    read,
    runs_table,
    table_of,
)

PRINTED, HOW, OURS = read("papers.yaml"), read("reproductions.yaml"), read("measured.yaml")
NUMBER = re.compile(r"-?\d+(\.\d+)?(±\d+\.\d+|/\d+\.\d+)?")
CONFIGS = sorted((ROOT / "configs" / "papers").glob("*.yaml"))


def test_the_pages_are_those_of_the_data_files():
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run python -m bench.pages.reproduce_page --write"


@pytest.mark.parametrize("paper", PRINTED)
def test_each_row_has_a_number_a_column(paper):
    for table in PRINTED[paper]["tables"].values():
        assert table["title"] and table["measures"]
        for name, values in table["rows"].items():
            assert len(values.split()) == len(table["columns"]), name
            assert all(value == "-" or NUMBER.fullmatch(value) for value in values.split()), name


@pytest.mark.parametrize("paper", PRINTED)
def test_each_table_has_commands(paper):
    assert PRINTED[paper]["tables"].keys() <= HOW[paper]["tables"].keys()
    for key, table in HOW[paper]["tables"].items():
        assert re.fullmatch(r"(table|figure)_\d+", key) and table["commands"]
        assert ("title" in table) != (key in PRINTED[paper]["tables"])
    folders = [config_of(run["command"]).train.output_dir for run in HOW[paper]["runs"]]
    assert len(folders) == len(set(folders)), "two runs in one folder"


def test_what_was_measured_belongs_to_a_table_and_says_where():
    for paper, tables in OURS.items():
        for key, rows in tables.items():
            table = PRINTED[paper]["tables"][key]
            for found in rows:
                assert found["values"].keys() <= set(table["columns"]) and found["where"]
                assert all(re.fullmatch(r"-?\d+(\.\d+)?", value) for value in found["values"].values())
                assert found["row"] in table["rows"] or found["what"]


def test_every_config_of_a_paper_is_used():
    text = (DOCS / "reproductions.yaml").read_text(encoding="utf-8")
    assert CONFIGS and [path.name for path in CONFIGS if f"configs/papers/{path.name}" not in text] == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_can_be_planned_without_weights(path):
    config = config_of(f"fastadv train --config {path.relative_to(ROOT)}")
    costs = costs_of(config)
    assert costs.parameters.trained == costs.parameters.total > 11e6
    assert config.train.output_dir == f"runs/papers/{path.stem.replace('_', '-')}"


def test_the_parameters_of_carl_and_rar_are_the_printed_ones():
    printed = PRINTED["carl_rar"]["tables"]["table_7"]["rows"]
    assert {found["row"]: found["values"]["count"] for found in rar_parameters()["table_7"]} == printed


def test_a_table_says_what_was_not_run():
    printed = {"columns": ["a", "b"], "rows": {"ours": "1 2.0±0.1", "other": "3 -", "x-flow": "5 6"}}
    measured = [
        {"row": "ours", "values": {"b": "1.50"}, "where": "page"},
        {"row": "small", "values": {"a": "7"}, "where": "page", "what": "another model"},
    ]
    assert "-flow" in LEFT_OUT
    assert table_of(printed, measured).splitlines()[2:] == [
        "| ours | 1 | 2.0 ± 0.1 | - 1.50, page |",
        "| other | 3 | - | not run here |",
        "| x-flow | 5 | 6 | left out |",
        "| *small* | 7 | - | page: another model |",
    ]


def test_hours_follow_from_steps_and_the_card():
    run = {"name": "r", "command": "fastadv train --config configs/simcse.yaml", "sentences": "1000000"}
    twice = runs_table(
        [run, {**run, "sentences": "2000000"}, {**run, "command": run["command"] + " --engine.precision bf16"}]
    )
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in twice.splitlines()[2:]]
    assert rows[0][1] == "15,625" and rows[1][1] == "31,250"
    assert float(rows[1][4]) == pytest.approx(2 * float(rows[0][4]), abs=0.011)
    # V100 has no bfloat16; an A100 does 312 TFLOP/s of it, and 19.5 in float32.
    assert rows[2][3] == "no units" and float(rows[2][4]) == pytest.approx(float(rows[0][4]) * 19.5 / 312, abs=0.01)
