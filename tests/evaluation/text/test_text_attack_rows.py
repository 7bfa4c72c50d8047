"""Rows of attacks on text: what is written is what is read, whatever the texts hold and wherever the writer died."""

import csv
import math
from dataclasses import replace

import pytest

from fastadv.errors import UserError
from fastadv.evaluation.text.rows import OUTCOMES, RowWriter, TextAttackRow, columns, read_rows, write_rows

HOSTILE = (
    "",
    " ",
    'a "quoted" word, and a comma',
    "two\nlines",
    "carriage\rreturn\r\n",
    "nul \x00 bell \x07 escape \x1b",
    "line \u2028 separator \x0b \x0c \x1c \x85",
    "🙂 е\u0301 \u202e",
    "lone \ud800 surrogate",
    '"',
    '"\n"',
    "n" * 200_000,
)


def a_row(row=0, first="a film", second=None, outcome="failed", **more):
    given = {
        "label": "pos",
        "first_adversarial": first,
        "second_adversarial": second,
        "predicted": "pos",
        "predicted_adversarial": "pos",
        "score": 0.1 + 0.2,
        "score_adversarial": 1e-30,
        "num_queries": 12,
        "num_words": 2,
        "num_words_changed": 0,
        "seconds": 0.25,
        "note": "",
    }
    return TextAttackRow(row=row, first=first, second=second, outcome=outcome, **{**given, **more})


def test_hostile_texts_come_back_bit_for_bit(tmp_path):
    rows = [a_row(number, text) for number, text in enumerate(HOSTILE)]
    write_rows(tmp_path / "rows.csv", rows)
    assert read_rows(tmp_path / "rows.csv") == rows


def test_pairs_keep_an_empty_second_text_apart_from_none(tmp_path):
    pairs = [a_row(0, "a", "b"), a_row(1, "a", "", second_adversarial="", outcome="succeeded")]
    write_rows(tmp_path / "pairs.csv", pairs)
    write_rows(tmp_path / "texts.csv", [a_row(0, "a")])
    assert read_rows(tmp_path / "pairs.csv") == pairs
    assert read_rows(tmp_path / "texts.csv")[0].second is None


def test_any_csv_reader_reads_the_columns(tmp_path):
    write_rows(tmp_path / "rows.csv", [a_row(3, "two\nlines", "b")])
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        (found,) = csv.DictReader(file)
    assert list(found) == columns(is_pair=True)
    assert (found["row"], found["first"], found["outcome"]) == ("3", "two\nlines", "failed")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    """As a spreadsheet leaves one."""
    write_rows(tmp_path / "rows.csv", [a_row(0, "é")])
    content = (tmp_path / "rows.csv").read_bytes()
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbf" + content)
    assert read_rows(tmp_path / "rows.csv") == [a_row(0, "é")]


def test_a_score_that_is_no_number_survives(tmp_path):
    write_rows(tmp_path / "rows.csv", [a_row(outcome="error", score=math.nan, score_adversarial=math.nan)])
    assert math.isnan(read_rows(tmp_path / "rows.csv")[0].score)


@pytest.mark.parametrize("is_pair", [False, True])
def test_a_file_cut_anywhere_goes_on_from_its_whole_rows(tmp_path, is_pair):
    rows = [a_row(n, text, 'two\n"b"' if is_pair else None) for n, text in enumerate(HOSTILE[:-1])]
    path = tmp_path / "rows.csv"
    write_rows(path, rows)
    content = path.read_bytes()
    for length in range(0, len(content), 11):
        path.write_bytes(content[:length])
        with RowWriter(path, is_pair) as writer:
            kept = list(writer.rows)
            assert kept == rows[: len(kept)]
            for row in rows[len(kept) :]:
                writer.write(row)
        assert path.read_bytes() == content
    # Cut in the middle of row k: k rows are kept.
    path.write_bytes(content[:-1])
    assert read_rows(path) == rows[:-1]


def test_every_row_is_in_the_file_before_the_next(tmp_path):
    with RowWriter(tmp_path / "rows.csv", is_pair=False) as writer:
        for number, text in enumerate(HOSTILE):
            writer.write(a_row(number, text))
            assert read_rows(tmp_path / "rows.csv") == writer.rows


def test_no_rows_are_a_file_too(tmp_path):
    write_rows(tmp_path / "rows.csv", [])
    assert read_rows(tmp_path / "rows.csv") == []


def test_an_outcome_is_one_of_four():
    for outcome in OUTCOMES:
        assert a_row(outcome=outcome).is_attacked == (outcome in ("succeeded", "failed"))
    with pytest.raises(ValueError, match="outcome 'fooled': expected one of succeeded, failed, skipped, error"):
        a_row(outcome="fooled")


def test_mistakes_end_in_one_line(tmp_path):
    path = tmp_path / "rows.csv"
    with pytest.raises(UserError, match="No such file.*expected the rows of an attack"):
        read_rows(path)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UserError, match="has the columns a, b; expected row, first"):
        read_rows(path)
    write_rows(path, [a_row(0), a_row(1)])
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace("\n1,", "\nx,"), encoding="utf-8")
    with pytest.raises(UserError, match="line 3: .*expected a row of an attack"):
        read_rows(path)
    path.write_text(content.replace('"failed"', '"fooled"'), encoding="utf-8")
    with pytest.raises(UserError, match="line 2: outcome 'fooled'"):
        read_rows(path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match="no UTF-8"):
        read_rows(path)
    with pytest.raises(UserError, match="columns"):
        write_rows(path, [a_row(0)])
        RowWriter(path, is_pair=True)


def test_rows_of_texts_and_of_pairs_do_not_mix(tmp_path):
    write_rows(tmp_path / "rows.csv", [replace(a_row(0), first="x")])
    with pytest.raises(UserError, match="expected row, first, second"):
        RowWriter(tmp_path / "rows.csv", is_pair=True)
