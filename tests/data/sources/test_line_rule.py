"""The line rule, byte for byte."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.sources.line_report import LineReport
from fastadv.data.text import iterate_sentences
from fastadv.errors import UserError
from tests.data.sources.test_tables import read_bytes


def read(tmp_path, data, name="a.txt", **options):
    return read_bytes(tmp_path, data, name, **options)


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\ntwo", ["one", "two"]),
        (b"\xef\xbb\xbf\none", ["one"]),
        (b"one\n\xef\xbb\xbftwo", ["one", "\ufefftwo"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfone", ["\ufeffone"]),
        (b"one\rtwo\nthree\n", ["one\rtwo", "three"]),
        (b"one\rtwo\r\rthree", ["one", "two", "three"]),
        (b"one\r", ["one"]),
        (b"one\r\r\ntwo", ["one\r", "two"]),
        (b"one\x0btwo\x0cthree\x1cfour", ["one\x0btwo\x0cthree\x1cfour"]),
        ("one\u2028two\u2029three\x85four".encode(), ["one\u2028two\u2029three\x85four"]),
        (b"  one \t\n\ttwo", ["  one \t", "\ttwo"]),
        (b"one\n\n \t\n\r\n\x0b\x0c\ntwo", ["one", "two"]),
        ("\u2028\u3000\x85\none".encode(), ["one"]),
        (b"caf\xc3\xa9", ["caf\u00e9"]),
        (b"a\x00b", ["a\x00b"]),
    ],
)
def test_line_ends_and_byte_order_marks(tmp_path, data, expected):
    sentences, report = read(tmp_path, data)
    assert sentences == expected
    assert report.num_lines == report.num_sentences + report.num_blank


def test_blank_lines_are_counted_with_the_place_of_the_first(tmp_path):
    _, report = read(tmp_path, b"one\n\n \t \ntwo\n\r\n")
    assert (report.num_lines, report.num_blank, report.first["blank"]) == (5, 3, "a.txt:2")
    assert "3 blank (first: a.txt:2)" in report.summary()


@pytest.mark.parametrize(
    "data, text, replacements",
    [
        (b"a\xffb", "a\ufffdb", 1),
        (b"\xe2\x82", "\ufffd", 1),
        (b"\xc0\x80", "\ufffd\ufffd", 2),
        (b"\xed\xa0\x80", "\ufffd" * 3, 3),
        (b"a\xef\xbf\xbdb", "a\ufffdb", 0),
        (b"a\xef\xbf\xbd\xffb", "a\ufffd\ufffdb", 1),
    ],
)
def test_malformed_bytes_are_replaced_and_counted(tmp_path, data, text, replacements):
    sentences, report = read(tmp_path, b"fine\n" + data + b"\n")
    assert sentences == ["fine", text]
    assert report.num_replacements == replacements
    assert report.num_undecodable == (replacements > 0)
    assert report.first.get("undecodable") == ("a.txt:2" if replacements else None)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("size, is_kept", [(7, True), (8, True), (9, False), (10, False), (11, False), (40, False)])
def test_the_limit_counts_the_line_without_its_ending_or_mark(tmp_path, ending, mark, size, is_kept):
    data = mark + b"x" * size + ending + (b"next\n" if ending else b"")
    if not is_kept and not ending:
        with pytest.raises(UserError, match="1 too long, skipped .first: a.txt:1"):
            read(tmp_path, data, max_bytes_per_line=8)
        return
    sentences, report = read(tmp_path, data, max_bytes_per_line=8)
    assert sentences == ["x" * size] * is_kept + ["next"] * bool(ending)
    assert report.num_too_long == (not is_kept)


def test_an_endless_line_is_never_held_in_memory(tmp_path):
    path = tmp_path / "big.txt"
    with open(path, "wb") as file:
        for _ in range(20):
            file.write(b"x" * 1_000_000)
        file.write(b"\nshort\n")
    report = LineReport()
    tracemalloc.start()
    sentences = list(iterate_sentences(path, report=report))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sentences == ["short"]
    assert report.num_too_long == 1
    # The default limit is 1 MiB; a read and its slice make two of it.
    assert peak < 4 << 20


def reference_sentences(data):
    """The rule once more, on the whole file at once."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    ended = [line.removesuffix(b"\r") for line in lines[:-1]]
    texts = [line.decode("utf-8", "replace") for line in [*ended, lines[-1]]]
    return [text for text in texts if text.strip()]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            [
                b"a",
                b" ",
                b"\n",
                b"\r",
                b"\r\n",
                b"\xef\xbb\xbf",
                b"\xff",
                b"\xc3",
                "\u2028\x85é".encode(),
                b"\x0b",
            ]
        ),
        max_size=30,
    )
)
def test_any_bytes_follow_the_rule(tmp_path_factory, pieces):
    data = b"".join(pieces) + b"\nend"
    sentences, report = read(tmp_path_factory.getbasetemp(), data, name="any.txt")
    assert sentences == reference_sentences(data)
    assert report.num_lines == report.num_sentences + report.num_blank == data.count(b"\n") + 1


def test_json_lines(tmp_path):
    lines = [
        b'\xef\xbb\xbf{"text": "one", "id": 1}\r\n',
        b'{"text": "two\\nlines"}\n',
        b"\n",
        b'{"text": "  "}\n',
        b'{"text": 3}\n',
        b'{"other": "x"}\n',
        b'["text"]\n',
        b'{"text": "torn\n',
        b'{"text": "bad \xff byte"}\n',
        b'{"text": "half \\ud800 pair"}\n',
        b'{"text": "whole \\ud83d\\ude00 pair"}\n',
        b'{"text": "' + b"x" * 200 + b'"}\n',
        b"[" * 100 + b"\n",
        '{"text": "inner\u2028line"}'.encode(),
    ]
    sentences, report = read(tmp_path, b"".join(lines), name="a.jsonl", max_bytes_per_line=100)
    assert sentences == [
        "one",
        "two\nlines",
        "bad \ufffd byte",
        "half \ufffd pair",
        "whole \U0001f600 pair",
        "inner\u2028line",
    ]
    assert report.num_lines == 14
    assert (report.num_blank, report.first["blank"]) == (2, "a.jsonl:3")
    assert (report.num_without_field, report.first["without_field"]) == (3, "a.jsonl:5")
    assert (report.num_bad_json, report.first["bad_json"]) == (2, "a.jsonl:8")
    assert (report.num_undecodable, report.num_replacements) == (2, 2)
    assert (report.num_too_long, report.first["too_long"]) == (1, "a.jsonl:12")
    assert report.num_lines == (
        report.num_sentences + report.num_blank + report.num_too_long + report.num_bad_json + report.num_without_field
    )
    assert "\n" not in report.summary()


def test_a_json_line_nested_beyond_the_parser_is_bad_json(tmp_path):
    sentences, report = read(tmp_path, b"[" * 200_000 + b'\n{"text": "one"}\n', name="deep.jsonl")
    assert sentences == ["one"]
    assert report.num_bad_json == 1


def test_a_field_no_line_has_is_named_with_the_file_and_the_fields_there(tmp_path):
    data = b'{"sentence": "one", "label": 0}\n{"sentence": "two", "score": 1}\n'
    with pytest.raises(UserError) as caught:
        read(tmp_path, data, name="a.jsonl", field="text")
    message = str(caught.value)
    for part in ("'text'", str(tmp_path / "a.jsonl"), "a.jsonl:1", "sentence, label, score"):
        assert part in message
    assert "\n" not in message


def test_the_named_field_is_read(tmp_path):
    sentences, _ = read(tmp_path, b'{"text": "no", "sentence": "yes"}', name="a.jsonl", field="sentence")
    assert sentences == ["yes"]
