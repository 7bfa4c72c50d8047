"""Tables: the csv module's rules, parquet, and what is said of cells, rows and columns that are not right."""

import csv
import gzip
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.sources.find import open_source
from fastadv.data.sources.line_report import LineReport
from fastadv.data.text import iterate_sentences
from fastadv.errors import UserError


def read(path, **options):
    report = LineReport()
    return list(iterate_sentences(path, report=report, **options)), report


def read_bytes(tmp_path, data, name="a.csv", **options):
    (tmp_path / name).write_bytes(data)
    return read(tmp_path / name, **options)


def assert_everything_is_counted(report):
    skipped = ("blank", "too_long", "bad_json", "bad_csv", "ragged", "without_field")
    assert report.num_lines == report.num_sentences + sum(getattr(report, f"num_{kind}") for kind in skipped)


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"text\none\ntwo\n", ["one", "two"]),
        (b"text\r\none\r\ntwo", ["one", "two"]),
        (b"text\rone\rtwo\r", ["one", "two"]),
        (b"\xef\xbb\xbftext,label\none,1\n", ["one"]),
        (b'\xef\xbb\xbf"text",label\none,1\n', ["one"]),
        (b'label,text\n1,"one, two"\n', ["one, two"]),
        (b'text\n"one\ntwo\r\nthree"\nfour\n', ["one\ntwo\r\nthree", "four"]),
        (b'text\n"say ""so"""\n', ['say "so"']),
        (b'text\na "b" c\n', ['a "b" c']),
        (b"text\n  one \n", ["  one "]),
        ("text\né\u2028\x85ü\n".encode(), ["é\u2028\x85ü"]),
        (b"\n\ntext\none\n", ["one"]),
    ],
)
def test_the_csv_modules_rules(tmp_path, data, expected):
    sentences, report = read_bytes(tmp_path, data)
    assert sentences == expected
    assert_everything_is_counted(report)


def test_tabs_separate_the_cells_of_a_tsv(tmp_path):
    data = b'id\ttext\n1\tone, two\n2\t"three\tfour"\n'
    sentences, report = read_bytes(tmp_path, data, name="a.tsv", quoting="double")
    assert sentences == ["one, two", "three\tfour"] and not report.num_quoted
    sentences, report = read_bytes(tmp_path, data, name="a.tsv")
    assert sentences == ["one, two"] and report.num_ragged == 1


def test_a_quote_is_a_letter_in_a_tsv(tmp_path):
    """As GLUE's files have it, where a cell may begin with a quote that no other one closes."""
    data = b'sentence\tlabel\n"so begins\t1\nb\t0\rc\t1\n"whole"\t1\nends" here\t0\n"\t1\n'
    sentences, report = read_bytes(tmp_path, data, name="a.tsv", field="sentence")
    assert sentences == ['"so begins', '"whole"', 'ends" here', '"']
    # A lone carriage return is no more a line's end than in a .txt.
    assert (report.num_lines, report.num_ragged, report.num_spanning) == (5, 1, 0)
    assert (report.num_quoted, report.first["quoted"]) == (1, "a.tsv row 4")
    assert "1 rows with cells in quotes, kept with them (first: a.tsv row 4)" in report.summary()
    swallowed, report = read_bytes(tmp_path, data, name="a.tsv", field="sentence", quoting="double")
    assert swallowed == [] or len(swallowed) < 4
    assert report.num_spanning == 1 and report.num_spanned_lines > 1
    assert (report.num_bad_csv, report.num_ragged) != (0, 0)


def test_rows_over_several_lines_are_counted(tmp_path):
    """A quote that is closed rows later swallows what lies between: such a row is right, but it is said."""
    data = b'text,label\n"one,1\ntwo,2\nthree"\nfour,4\n"five\nsix",5\nseven,7\n'
    sentences, report = read_bytes(tmp_path, data)
    assert sentences == ["four", "five\nsix", "seven"]
    assert (report.num_spanning, report.num_spanned_lines, report.first["spanning"]) == (2, 5, "a.csv row 2")
    assert "2 rows over several lines, 5 lines (first: a.csv row 2)" in report.summary()
    assert_everything_is_counted(report)
    alone, report = read_bytes(tmp_path, data, quoting="none")
    assert alone == ['"one', "two", "four", 'six"', "seven"] and not report.num_spanning


@pytest.mark.parametrize(
    "row", [b'"He said \\"hi\\" to me",1', b'"one" two,1', b'"one"two",1'], ids=["backslashes", "after", "inside"]
)
def test_what_follows_a_closing_quote_is_no_cell(tmp_path, row):
    """The csv module joins the pieces, unless told otherwise: a text that nobody wrote."""
    sentences, report = read_bytes(tmp_path, b"text,label\n" + row + b"\nfine,0\n")
    assert sentences == ["fine"]
    assert (report.num_bad_csv, report.first["bad_csv"]) == (1, "a.csv row 2")


@pytest.mark.parametrize("name, quoting", [("a.csv", "none"), ("a.tsv", "auto")])
def test_unquoted_rows_have_the_same_faults(tmp_path, name, quoting):
    rows = [b"id,text", b"1,one", b"2, ", b"3", b"4,four,4", b"", b"5,caf\xc3\xa9 \xff", b"7," + b"x" * 99, b"8,two\r"]
    data = b"\n".join(rows).replace(b",", b"\t" if name == "a.tsv" else b",") + b"\n"
    sentences, report = read_bytes(tmp_path, data, name=name, max_bytes_per_line=50, quoting=quoting)
    assert sentences == ["one", "café \ufffd", "two"]
    assert {kind: place.removeprefix(name) for kind, place in report.first.items()} == {
        "blank": " row 3, column text",
        "ragged": " row 4, 1 cells for 2 columns",
        "undecodable": " row 7",
        "too_long": " row 8",
    }
    assert_everything_is_counted(report)


def test_names_in_quotes_lead_to_quoting(tmp_path):
    (tmp_path / "a.tsv").write_text('"text"\t"label"\n"one"\t1\n')
    with pytest.raises(UserError, match="no column 'text'.*names in quotes are read with data.quoting = double"):
        open_source(tmp_path / "a.tsv")
    assert read(tmp_path / "a.tsv", quoting="double")[0] == ["one"]


def test_quoting_is_part_of_what_the_text_is(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"one"\t1\n')
    plain, auto, quoted = (open_source(tmp_path / "a.tsv", quoting=quoting) for quoting in ("none", "auto", "double"))
    assert plain.identity() == auto.identity() != quoted.identity()


@pytest.mark.parametrize("text", ["NA", "null", "None", "nan", "N/A", "#N/A", "-", "1", "1.0", "true", "\\N"])
def test_no_text_stands_for_a_missing_one(tmp_path, text):
    for name in ("a.csv", "a.tsv"):
        assert read_bytes(tmp_path, f"text\n{text}\n".encode(), name=name)[0] == [text]


cells = st.text(st.sampled_from('ab ,"\n\r\té\u2028'), min_size=1, max_size=6).filter(lambda text: text.strip())


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=6), st.sampled_from(["csv", "tsv"]))
def test_what_the_csv_module_writes_comes_back(tmp_path_factory, rows, kind):
    path = tmp_path_factory.getbasetemp() / f"written.{kind}"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, csv.excel if kind == "csv" else csv.excel_tab).writerows([("other", "text"), *rows])
    sentences, report = read(path, quoting="double")
    assert sentences == [text for _, text in rows]
    assert report.num_lines == len(rows)


def test_each_fault_is_counted_with_file_row_and_column_of_the_first(tmp_path):
    rows = [
        b"id,text",
        b"1,one",
        b"2, ",
        b"3",
        b"4,four,4",
        b"",
        b"5,caf\xc3\xa9 \xff",
        b"6,\xe2\x82",
        b"7," + b"x" * 99,
    ]
    sentences, report = read_bytes(tmp_path, b"\n".join(rows) + b'\n8,"open\n9,nine\n', max_bytes_per_line=50)
    assert sentences == ["one", "café \ufffd", "\ufffd"]
    assert report.num_lines == 9
    assert (report.num_blank, report.first["blank"]) == (2, "a.csv row 3, column text")
    assert (report.num_ragged, report.first["ragged"]) == (2, "a.csv row 4, 1 cells for 2 columns")
    assert (report.num_undecodable, report.num_replacements) == (2, 2)
    assert report.first["undecodable"] == "a.csv row 7"
    assert (report.num_too_long, report.first["too_long"]) == (1, "a.csv row 9")
    assert (report.num_bad_csv, report.first["bad_csv"]) == (1, "a.csv row 10")
    assert_everything_is_counted(report)
    summary = report.summary()
    for part in ("2 rows of another number of cells, skipped (first: a.csv row 4", "1 malformed rows, skipped"):
        assert part in summary


@pytest.mark.parametrize("size, is_kept", [(8, True), (9, False), (10, False), (40, False)])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_the_limit_counts_a_row_without_its_ending(tmp_path, size, is_kept, ending):
    sentences, report = read_bytes(tmp_path, ending.join([b"text", b"x" * size, b"next", b""]), max_bytes_per_line=8)
    assert sentences == ["x" * size] * is_kept + ["next"]
    assert (report.num_lines, report.num_too_long) == (2, not is_kept)


def test_cells_beyond_the_csv_modules_own_limit_are_read(tmp_path):
    assert read_bytes(tmp_path, b"text\n" + b"x" * 200_000)[0] == ["x" * 200_000]


def test_a_quote_never_closed_is_never_held_in_memory(tmp_path):
    path = tmp_path / "a.csv"
    with open(path, "wb") as file:
        file.write(b'text\n"open\n')
        # Lines that the csv module takes for the inside of the cell.
        for _ in range(10):
            file.write((b"x" * 1023 + b"\n") * (1 << 10))
    report = LineReport()
    tracemalloc.start()
    sentences = set(iterate_sentences(path, report=report))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sentences == {"x" * 1023}
    assert (report.num_too_long, report.first["too_long"]) == (1, "a.csv row 2")
    # The file has 10 MiB; a row may have 1 MiB, which the csv module holds at 4 bytes a character.
    assert peak < 7 << 20


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_a_column_that_is_not_there_is_named_with_those_there_before_anything_is_read(tmp_path, name):
    path = tmp_path / name
    separator = {"csv": ",", "tsv": "\t"}.get(name[2:])
    if separator is None:
        pq.write_table(pa.table({"id": [1], "sentence": ["one"]}), path)
    else:
        path.write_text(f"id{separator}sentence\n1{separator}one\n")
    with pytest.raises(UserError) as caught:
        open_source(path)
    assert str(caught.value) == f"{path} has no column 'text'; its columns are id, sentence"
    assert read(path, field="sentence")[0] == ["one"]


@pytest.mark.parametrize(
    "data, said",
    [
        (b"text,text\none,two\n", "more than one column 'text'"),
        (b'"text\none\n', "does not begin with a row of column names"),
        (b"", "no sentence"),
        (b"text\n", "no sentence"),
        (b"text\n \n\n", "2 blank"),
    ],
)
def test_tables_that_give_nothing_are_one_line(tmp_path, data, said):
    with pytest.raises(UserError, match=said) as caught:
        read_bytes(tmp_path, data)
    assert str(tmp_path / "a.csv") in str(caught.value) and "\n" not in str(caught.value)


def test_parquet_rows_are_counted_from_0(tmp_path):
    path = tmp_path / "a.parquet"
    texts = ["one", None, " ", "two\nlines", "x" * 50]
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode(), "label": range(5)}), path, row_group_size=2)
    sentences, report = read(path, max_bytes_per_line=20)
    assert sentences == ["one", "two\nlines"]
    assert report.first == {
        "without_field": "a.parquet row 1, column text",
        "blank": "a.parquet row 2, column text",
        "too_long": "a.parquet row 4",
    }
    assert_everything_is_counted(report)
    assert open_source(path).identity()[1] == 5


@pytest.mark.parametrize(
    "field, said", [("label", "holds int64; expected text"), ("text", "cannot be read as Parquet")]
)
def test_parquet_mistakes_are_one_line(tmp_path, field, said):
    path = tmp_path / "a.parquet"
    if field == "text":
        path.write_bytes(b"text\none\n")
    else:
        pq.write_table(pa.table({"label": [1]}), path)
    with pytest.raises(UserError, match=said) as caught:
        open_source(path, field=field)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_mixes_all_formats_in_the_order_of_names(tmp_path):
    (tmp_path / "1.txt").write_text("one\n")
    (tmp_path / "2.csv").write_text("id,text\n1,two\n")
    (tmp_path / "3.TSV.GZ").write_bytes(gzip.compress(b"text\tid\nthree\t1\n"))
    pq.write_table(pa.table({"text": ["four"]}), tmp_path / "4.parquet")
    (tmp_path / "5.jsonl.gz").write_bytes(gzip.compress(b'{"text": "five"}\n'))
    (tmp_path / "6.parquet.gz").write_bytes(gzip.compress(b"no format of ours"))
    sentences, report = read(tmp_path)
    assert sentences == ["one", "two", "three", "four", "five"]
    assert report.ignored_files == ["6.parquet.gz"]
    with pytest.raises(UserError, match="2.csv has no column 'body'; its columns are id, text"):
        read(tmp_path, field="body")


def test_only_a_file_without_compression_tells_how_many_lines_it_has_at_most(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    assert open_source(tmp_path).identity()[1] == 2
    (tmp_path / "b.csv").write_bytes(b"text\rone\r\ntwo\n")
    assert open_source(tmp_path).identity()[1] == 6
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"one\n"))
    assert open_source(tmp_path).identity()[1] is None
