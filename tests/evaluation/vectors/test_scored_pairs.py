"""A user's scored pairs: every format gives the same pairs, and every fault stops the reading with its place."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastadv.errors import UserError
from fastadv.evaluation.vectors.scored_pairs import COLUMNS, read_scored_pairs

# Commas, quotes, tabs and line ends in cells; U+2028, which ends no line; scores whose shortest digits are needed.
PAIRS = [
    ('a, "b"\u2028c', "d\ne", 0.1 + 0.2),
    ("tab\there", " blanks around ", 5.0),
    ("é", "plain", -1e-300),
]


def as_table(separator):
    out = io.StringIO()
    rows = [(s, "x", b, a) for a, b, s in PAIRS]
    csv.writer(out, delimiter=separator).writerows([("score", "note", "sentence2", "sentence1"), *rows])
    return ("\ufeff" + out.getvalue() + "\r\n").encode()


def as_json_lines(scores=lambda score: score):
    objects = [{**dict(zip(COLUMNS, (a, b, scores(s)))), "note": None} for a, b, s in PAIRS]
    return "".join(json.dumps(one) + "\n\n" for one in objects).encode()


def as_parquet(path, score_type):
    columns = dict(zip(COLUMNS, map(list, zip(*PAIRS))))
    columns["score"] = pa.array([str(s) if score_type == pa.string() else s for s in columns["score"]], score_type)
    pq.write_table(pa.table({"note": [None] * len(PAIRS), **columns}), path)


CONTENTS = {"a.csv": as_table(","), "a.tsv": as_table("\t"), "a.jsonl": as_json_lines()}


def assert_pairs(path, quoting="auto"):
    pairs = read_scored_pairs(path, quoting)
    assert list(zip(pairs.first, pairs.second, pairs.scores)) == PAIRS


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("suffix", ["", ".gz", ".GZ"])
def test_every_text_format_gives_the_same_pairs(tmp_path, name, suffix):
    path = tmp_path / (name + suffix)
    path.write_bytes(gzip.compress(CONTENTS[name]) if suffix else CONTENTS[name])
    # The module that wrote it puts cells with line ends into quotes.
    assert_pairs(path, "double" if name == "a.tsv" else "auto")


def test_a_tsv_as_glue_writes_sts_b(tmp_path):
    head = "index\tgenre\tsentence1\tsentence2\tscore\n"
    (tmp_path / "dev.tsv").write_text(head + '0\tnews\t"So it goes\tHe said "no".\t2.5\n1\tnews\ta\tb\t0.000\n')
    pairs = read_scored_pairs(tmp_path / "dev.tsv")
    assert (pairs.first, pairs.second, pairs.scores) == (['"So it goes', "a"], ['He said "no".', "b"], [2.5, 0.0])


def test_scores_may_be_text_in_json_and_text_or_numbers_in_parquet(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(as_json_lines(str))
    assert_pairs(tmp_path / "a.jsonl")
    for score_type in (pa.float64(), pa.string()):
        as_parquet(tmp_path / "A.PARQUET", score_type)
        assert_pairs(tmp_path / "A.PARQUET")
    for score_type in (pa.int8(), pa.float32(), pa.decimal128(21, 2)):
        scores = pa.array([1, 4]).cast(score_type)
        pq.write_table(
            pa.table({"sentence1": ["x", "y"], "sentence2": ["z", "w"], "score": scores}), tmp_path / "b.parquet"
        )
        assert read_scored_pairs(tmp_path / "b.parquet").scores == [1.0, 4.0]


HEAD = "sentence1,sentence2,score\n"
TAB_HEAD = HEAD.replace(",", "\t")


def line(**values):
    return json.dumps({"sentence1": "x", "sentence2": "y", "score": 1, **values}) + "\n"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", "x", "expected the name of a .csv, .tsv or .jsonl file, plain or .gz, or of a .parquet file"),
        ("a.txt.gz", "x", "expected the name of"),
        ("a.parquet.gz", "x", "expected the name of"),
        ("a.csv", "one,sentence2,score\nx,y,1\n", "has no column 'sentence1'; its columns are one, sentence2, score"),
        ("a.csv", "score," + HEAD + "1,x,y,1\n", "has more than one column 'score'"),
        ("a.csv", HEAD + "x,y,1\nx,y\n", "a.csv row 3, 2 cells for 3 columns: a row of another number of cells"),
        ("a.csv", HEAD + "x,,1\n", "a.csv row 2, column sentence2: blank"),
        ("a.csv", HEAD + "\nx, ,1\n", "a.csv row 3, column sentence2: blank"),
        ("a.csv", HEAD + '"x,y,1\n', "a.csv row 2: a row that is not readable as CSV, or whose quote is never closed"),
        ("a.csv", HEAD + "x,y,4\ufffd\n", "row 2, column score: the score must be a finite number, got '4\ufffd'"),
        ("a.csv", HEAD, "holds no scored pair"),
        ("a.tsv", TAB_HEAD + "x\ty\t\n", "a.tsv row 2, column score: blank"),
        ("a.tsv", TAB_HEAD + "x\ty\tfour\n", "row 2, column score: the score must be a finite number, got 'four'"),
        ("a.tsv", TAB_HEAD + "x\ty\t-inf\n", "got '-inf'"),
        ("a.jsonl", '{"sentence1": "x", "sentence2": "y"}\n', "a.jsonl:1, column score: missing"),
        ("a.jsonl", line(score=True), "a.jsonl:1, column score: missing, or not of its type"),
        ("a.jsonl", line(score=None), "a.jsonl:1, column score: missing"),
        ("a.jsonl", line(score=float("nan")), "a.jsonl:1, column score: the score must be a finite number, got 'nan'"),
        ("a.jsonl", line(score=10**400), "a.jsonl:1, column score: the score must be a finite number"),
        ("a.jsonl", "\n" + line(sentence1=3), "a.jsonl:2, column sentence1: missing, or not of its type"),
        ("a.jsonl", line(sentence2=" "), "a.jsonl:1, column sentence2: blank"),
        ("a.jsonl", line(sentence2="\ud800"), "a.jsonl:1: text that is not UTF-8"),
        ("a.jsonl", line(sentence2="y" * (1 << 20)), "a.jsonl:1: a row of more than 1,048,576 bytes"),
        ("a.jsonl", "[1]\n", "a.jsonl:1, column sentence1: missing"),
        ("a.jsonl", "{\n", "a.jsonl:1: not JSON"),
        ("a.jsonl", "", "holds no scored pair"),
        ("a.jsonl.gz", "", "holds no gzip data"),
        ("a.parquet", "PAR1", "cannot be read as Parquet"),
    ],
)  # fmt: skip
def test_every_fault_is_one_line_that_names_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_scored_pairs(tmp_path / name)
    assert message in str(caught.value) and str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_bytes_that_are_not_utf8(tmp_path, name):
    content = HEAD.encode() + b"x,caf\xe9,1\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(UserError, match=f"{name} row 2: text that is not UTF-8"):
        read_scored_pairs(tmp_path / name)


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"score": [1.0, None]}, "a.parquet row 1, column score: missing"),
        ({"score": [1.0, float("inf")]}, "a.parquet row 1, column score: the score must be a finite number, got 'inf'"),
        ({"score": [True, False]}, "the column 'score' of .* holds bool; expected text or numbers"),
        ({"sentence2": [1, 2]}, "the column 'sentence2' of .* holds int64; expected text$"),
        ({"sentence2": ["y", ""]}, "a.parquet row 1, column sentence2: blank"),
    ],
)
def test_faults_of_parquet(tmp_path, columns, message):
    table = {"sentence1": ["x", "x"], "sentence2": ["y", "y"], "score": [1, 2], **columns}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        read_scored_pairs(tmp_path / "a.parquet")


def test_a_file_that_is_not_there(tmp_path):
    for name in (*CONTENTS, "a.parquet"):
        with pytest.raises(UserError, match="cannot be read: .*No such file"):
            read_scored_pairs(tmp_path / name)
