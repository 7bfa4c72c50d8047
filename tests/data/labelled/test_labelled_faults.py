"""Labelled files: what is read from every format, and the one line that every mistake gives."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastadv.data.labelled.find import new_found_labels, open_labelled, read_labelled
from fastadv.data.labelled.labels import LabelMap, agree_on_labels
from fastadv.data.sources.line_report import LineReport
from fastadv.errors import UserError

ROWS = [("good", "pos"), ("bad, really", "neg"), ("fine", "pos")]


def write(folder, name, rows=ROWS, columns=("text", "label")):
    """Rows as a file of the format that its name says."""
    path, kind = folder / name, name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        pq.write_table(pa.table(dict(zip(columns, map(list, zip(*rows))))), path)
        return path
    if kind == "jsonl":
        text = "".join(json.dumps(dict(zip(columns, row))) + "\n" for row in rows)
    else:
        separator = "," if kind == "csv" else "\t"
        quote = '"' if kind == "csv" else ""
        quoted = ([f"{quote}{cell}{quote}" if isinstance(cell, str) else str(cell) for cell in row] for row in rows)
        lines = [columns, *quoted]
        text = "".join(separator.join(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


FORMATS = ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.csv.gz", "a.tsv.gz", "a.jsonl.gz"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same(tmp_path, name):
    texts = read_labelled(write(tmp_path, name))
    assert texts.first == [text for text, _ in ROWS] and texts.second is None
    assert texts.label_map.names == ("neg", "pos") and texts.labels == [1, 0, 1]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_whole_numbers_are_classes_in_every_format(tmp_path, name):
    texts = read_labelled(write(tmp_path, name, [("x", 10), ("y", 2), ("z", 10)]))
    assert texts.label_map.names == ("2", "10") and texts.labels == [1, 0, 1]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_pairs(tmp_path, name):
    rows = [("a man", "a person", "yes"), ("a dog", "a cat", "no")]
    path = write(tmp_path, name, rows, ("premise", "hypothesis", "gold"))
    texts = read_labelled(path, label_field="gold", field="premise", pair_field="hypothesis")
    assert (texts.first, texts.second) == (["a man", "a dog"], ["a person", "a cat"])
    assert texts.label_map.names == ("no", "yes") and texts.labels == [1, 0]


def test_a_folder_is_read_in_the_order_of_names_and_white_space_around_labels_is_none(tmp_path):
    (tmp_path / "b.csv").write_text("text,label\nthree, pos\n")
    (tmp_path / "a.jsonl").write_text('{"text": "one", "label": "pos "}\n\n{"text": "two", "label": "neg"}\n')
    (tmp_path / "notes.md").write_text("none")
    report = LineReport()
    rows = list(open_labelled(tmp_path).rows(report))
    assert [(row.texts, row.label, row.where) for row in rows] == [
        (("one",), "pos", "a.jsonl:1"),
        (("two",), "neg", "a.jsonl:3"),
        (("three",), "pos", "b.csv row 2"),
    ]
    assert (report.num_lines, report.num_sentences, report.num_blank) == (4, 3, 1)
    assert report.ignored_files == ["notes.md"]


def test_dev_rows_are_read_by_the_classes_of_training(tmp_path):
    path = write(tmp_path, "dev.csv", [("x", "pos"), ("y", "neutral"), ("z", "neg")])
    wide = LabelMap(("pos", "other", "neutral", "neg"))
    assert read_labelled(path, label_map=wide).labels == [0, 2, 3]
    with pytest.raises(UserError) as caught:
        read_labelled(path, label_map=LabelMap(("neg", "pos")))
    assert str(caught.value) == (f"{path} row 3, column label: the label 'neutral' is unknown; known are 'neg', 'pos'")


HEAD = "text,label\n"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", HEAD + "x,1\n ,0\n", "a.csv row 3, column text: blank"),
        ("a.csv", HEAD + "x,1\ny, \n", "a.csv row 3, column label: blank"),
        ("a.csv", HEAD + "x,1\n\ny,\n", "a.csv row 4, column label: blank"),
        ("a.csv", HEAD + "x,nan\n", "a.csv row 2, column label: no label"),
        ("a.csv", HEAD + "x,1\ny,0.75\n", "a.csv row 3, column label: 0.75 is no class; expected a name"),
        ("a.csv", HEAD + "x,1.0\n", "(regression)"),
        ("a.csv", HEAD + "x,1\ny,0,0\n", "a.csv row 3, 3 cells for 2 columns: a row of another number of cells"),
        ("a.csv", HEAD + "x,1\ny\n", "a.csv row 3, 1 cells for 2 columns: a row of another number of cells"),
        ("a.csv", HEAD + 'x,1\n"y,0\n', "a.csv row 3: a row that is not readable as CSV, or whose quote"),
        ("a.csv", "text,Labels\nx,1\n", "has no column 'label'; its columns are text, Labels; nearest is 'Labels'"),
        ("a.csv", "txt,label\nx,1\n", "has no column 'text'; its columns are txt, label; nearest is 'txt'"),
        ("a.csv", "text,label,label\nx,1,1\n", "has more than one column 'label'"),
        ("a.csv", "", "a.csv holds no labelled row"),
        ("a.csv", HEAD, "a.csv holds no labelled row"),
        ("a.tsv", "text\tlabel\nx\t1\n\t0\n", "a.tsv row 3, column text: blank"),
        ("a.txt", "x\n", "a.txt has no columns, so no 'label'; expected .jsonl or a table"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y"}\n', "a.jsonl:2, column label: missing"),
        ("a.jsonl", '{"text": "x", "lable": 1}\n', "fields there: text, lable; nearest is 'lable'"),
        ("a.jsonl", '{"text": "x", "label": null}\n', "a.jsonl:1, column label: missing, or not of its type (text"),
        ("a.jsonl", '{"text": "x", "label": 1.5}\n', "a.jsonl:1, column label: 1.5 is no class"),
        ("a.jsonl", '{"text": "x", "label": NaN}\n', "a.jsonl:1, column label: no label"),
        ("a.jsonl", '{"text": "x", "label": ["a"]}\n', "a.jsonl:1, column label: missing, or not of its type"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', "a.jsonl:1, column text: missing, or not of its type"),
        ("a.jsonl", '{"text": " ", "label": 1}\n', "a.jsonl:1, column text: blank"),
        ("a.jsonl", "{\n", "a.jsonl:1: not JSON"),
        ("a.jsonl", "\n\n", "a.jsonl holds no labelled row"),
        ("a.jsonl.gz", "", "holds no gzip data"),
        ("a.xml", "<x/>", "ends in '.xml'"),
    ],
)  # fmt: skip
def test_every_fault_is_one_line_that_names_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as caught:
        read_labelled(tmp_path / name)
    assert message in str(caught.value) and str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


UNLABELLED_FILES = [
    ("a.csv", "text,label\na,{}\nb,0\nc,1\nd,{}\n"),
    ("a.tsv", "text\tlabel\na\t{}\nb\t0\nc\t1\nd\t{}\n"),
    ("a.jsonl", "".join('{{"text": "%s", "label": "%s"}}\n' % row for row in zip("abcd", ["{}", "0", "1", "{}"]))),
]


@pytest.mark.parametrize("mark", ["-1", "-", "NA", "N/A", "null", "NULL", "<NA>"])
@pytest.mark.parametrize("name, content", UNLABELLED_FILES, ids=lambda value: value[:6])
def test_a_label_that_says_there_is_none_is_no_class_unless_it_is_named(tmp_path, name, content, mark):
    """As `datasets` number a row without a label, as SNLI's own files write it, and pandas, Excel and databases."""
    path = tmp_path / name
    path.write_text(content.format(mark, mark))
    opened = open_labelled(path)
    found = new_found_labels(opened, path)
    for row in opened.rows(LineReport()):
        found.add(row.label, row.file, row.where)
    with pytest.raises(UserError) as caught:
        agree_on_labels([found])
    said = str(caught.value)
    assert f"the label {mark!r} marks rows without a label" in said and "data.skip_labels" in said
    assert f"{path}" in said and "label_names" in said and "\n" not in said
    assert agree_on_labels([found], [mark, "0", "1"]).names == (mark, "0", "1")
    with pytest.raises(UserError, match="is unknown; known are '0', '1'; data.skip_labels .* leaves such rows out"):
        read_labelled(path, label_map=LabelMap(("0", "1")))
    texts = read_labelled(path, skip_labels=[mark])
    assert texts.first == ["b", "c"] and texts.label_map.names == ("0", "1") and texts.labels == [0, 1]


def test_skipped_labels_are_counted(tmp_path):
    path = write(tmp_path, "a.csv", [("a", "neutral"), ("b", "pos"), ("c", "neg"), ("d", "neutral")])
    report, opened = LineReport(), open_labelled(path, skip_labels=["neutral"])
    assert [row.label for row in opened.rows(report)] == ["pos", "neg"]
    assert (report.num_lines, report.num_sentences, report.num_unlabelled) == (4, 2, 2)
    assert report.summary() == ("2 sentences of 4 lines; 2 rows of labels that are left out (first: a.csv row 2)")
    assert opened.identity() != open_labelled(path).identity()
    with pytest.raises(UserError, match="a.csv holds no labelled row: 0 sentences of 4 lines; 4 rows of labels"):
        read_labelled(path, skip_labels=["neutral", "pos", "neg"])


def class_labels(path, labels, names):
    """A parquet file as `datasets` writes it, with the names of the classes in its metadata."""
    columns = {"text": [f"text {i}" for i in range(len(labels))], "label": labels}
    rows = datasets.Dataset.from_dict(columns).cast_column("label", datasets.ClassLabel(names=names))
    path.parent.mkdir(exist_ok=True)
    rows.to_parquet(str(path))
    return path


def test_a_bare_parquet_has_the_class_names_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    path = class_labels(tmp_path / "folder" / "a.parquet", [1, 0, 1], ["pos", "neg"])
    alone, of_folder = read_labelled(path), read_labelled(tmp_path / "folder")
    assert alone == of_folder
    assert alone.label_map.names == ("pos", "neg") and alone.labels == [1, 0, 1]


def test_files_beside_each_other_agree_by_names(tmp_path):
    class_labels(tmp_path / "a.parquet", [0, 1], ["pos", "neg"])
    (tmp_path / "b.csv").write_text("text,label\nx,neg\ny,pos\n")
    opened = open_labelled(tmp_path)
    assert opened.given is None and [row.label for row in opened.rows(LineReport())] == ["pos", "neg", "neg", "pos"]
    class_labels(tmp_path / "two" / "a.parquet", [0, 1], ["pos", "neg"])
    class_labels(tmp_path / "two" / "b.parquet", [1, 0], ["neg", "pos"])
    (tmp_path / "two" / "c.csv").write_text("text,label\nx,neg\n")
    assert [row.label for row in open_labelled(tmp_path / "two").rows(LineReport())] == [
        "pos",
        "neg",
        "pos",
        "neg",
        "neg",
    ]


def test_numbers_that_no_class_name_stands_for_are_one_line(tmp_path):
    path = class_labels(tmp_path / "a.parquet", [1, -1], ["pos", "neg"])
    with pytest.raises(UserError, match=r"a.parquet row 1, column label: no label \(-1\); data.skip_labels"):
        read_labelled(path)
    texts = read_labelled(path, skip_labels=["-1"])
    assert texts.first == ["text 0"] and texts.label_map.names == ("pos", "neg") and texts.labels == [1]


@pytest.mark.parametrize("written", [b"{}", b"no JSON", b'{"info": {"features": {"label": {"names": "ab"}}}}', b"[]"])
def test_metadata_of_anothers_making_says_nothing(tmp_path, written):
    table = pa.table({"text": ["a", "b"], "label": [0, 1]}).replace_schema_metadata({b"huggingface": written})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_labelled(tmp_path / "a.parquet").label_map.names == ("0", "1")


def test_labels_in_quotes_are_no_names(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"a"\t"pos"\n"b"\t"neg"\n')
    with pytest.raises(
        UserError, match='a.tsv row 2, column label: the label "pos" lies in quotes, which data.quoting'
    ):
        read_labelled(tmp_path / "a.tsv")
    texts = read_labelled(tmp_path / "a.tsv", quoting="double")
    assert texts.first == ["a", "b"] and texts.label_map.names == ("neg", "pos")


def test_bytes_that_are_no_utf8_are_not_replaced(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,label\nx,1\ncaf\xe9,0\n")
    with pytest.raises(UserError, match="a.csv row 3: text that is not UTF-8"):
        read_labelled(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"label": ["a", None]}, "a.parquet row 1, column label: missing"),
        ({"label": [1.0, 2.0]}, "a.parquet row 0, column label: 1.0 is no class"),
        ({"label": [True, False]}, "the column 'label' of .* holds bool; expected text or numbers"),
        ({"text": ["x", " "]}, "a.parquet row 1, column text: blank"),
        ({"text": [1, 2]}, "the column 'text' of .* holds int64; expected text$"),
    ],
)
def test_faults_of_parquet(tmp_path, columns, message):
    pq.write_table(pa.table({"text": ["x", "y"], "label": [0, 1], **columns}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        read_labelled(tmp_path / "a.parquet")


def test_an_empty_file_among_others_is_named(tmp_path):
    write(tmp_path, "a.csv")
    (tmp_path / "b.csv").write_text("text,label\n")
    with pytest.raises(UserError, match="b.csv holds no labelled row"):
        read_labelled(tmp_path)


def test_the_same_column_twice_is_seen_by_the_config():
    from fastadv.launch.load import load_config

    for overrides, said in (
        (["--data.label_field=text"], 'data.label_field = "text": expected a column other than that of data.field'),
        (["--data.pair_field=b"], 'data.pair_field = "b": expected null where data.label_field is null'),
        (["--data.label_names=[a, b]"], "expected null where data.label_field is null"),
        (["--data.skip_labels=[-1]"], "expected null where data.label_field is null"),
        (["--data.label_field=label", "--data.skip_labels=[]"], "a list of one or more different labels"),
        (["--data.label_field=label", "--data.label_names=[1, '1']"], "a list of two or more different names"),
        (["--data.label_field=label", "--data.label_names=[a]"], "a list of two or more different names of classes"),
        (["--data.label_field=label", "--data.label_names=[a, a]"], "a list of two or more different names of classes"),
        (["--data.label_field=label", "--data.positive_field=p"], "expected null where data.label_field is"),
        (
            ["--data.label_field=label", "--data.pair_field=label"],
            "expected a column other than that of data.pair_field",
        ),
    ):
        with pytest.raises(UserError) as caught:
            load_config(overrides=overrides)
        assert said in str(caught.value) and "\n" not in str(caught.value)
    given = ["--data.label_field=y", "--data.pair_field=b", "--data.label_names=[no, yes]"]
    config = load_config(overrides=["--objective=fine_tuning", *given])
    assert (config.data.label_field, config.data.pair_field) == ("y", "b") and len(config.data.label_names) == 2
    given = ["--data.label_field=y", "--data.label_names=[-1, 1]", "--data.skip_labels=[-]"]
    config = load_config(overrides=["--objective=fine_tuning", *given])
    assert config.data.names_of_classes == ["-1", "1"] and config.data.reading["skip_labels"] == ("-",)
