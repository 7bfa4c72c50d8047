"""Encodings: what a byte order mark says, files without one, and what is no text; the same for every reader."""

import gzip
import io
import zipfile

import pytest

from fastadv.data.labelled.find import read_labelled
from fastadv.data.sources.find import open_source
from fastadv.data.variants.text_pairs import read_pairs
from fastadv.errors import UserError
from fastadv.evaluation.vectors.scored_pairs import read_scored_pairs
from tests.data.sources.test_tables import read, read_bytes

TEXTS = ["café au lait", "one, two", "字 and 🎬"]
FILES = {
    "a.txt": "".join(f"{text}\n" for text in TEXTS),
    "a.jsonl": "".join(f'{{"text": "{text}", "label": {i}}}\n' for i, text in enumerate(TEXTS)),
    "a.csv": "text,label\n" + "".join(f'"{text}",{i}\n' for i, text in enumerate(TEXTS)),
    "a.tsv": "text\tlabel\n" + "".join(f"{text}\t{i}\n" for i, text in enumerate(TEXTS)),
}
ENCODINGS = {
    "utf-8": "utf-8",
    "utf-8-sig": "utf-8-sig",
    "utf-16": "utf-16",
    "utf-16, big first": "utf-16-be",
    "utf-32": "utf-32",
    "utf-32, big first": "utf-32-be",
}


def encoded(text, encoding):
    """With a byte order mark but for UTF-8."""
    mark = "\ufeff" if encoding.endswith("-be") else ""
    return (mark + text).encode(encoding)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("name", [*FILES, "a.csv.gz"])
def test_every_reader_follows_the_mark_whatever_the_line_ends(tmp_path, name, encoding, ending):
    data = encoded(FILES[name.removesuffix(".gz")].replace("\n", ending), encoding)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    sentences, report = read(path)
    assert sentences == TEXTS and not report.num_undecodable
    assert report.num_lines == len(TEXTS)
    if name != "a.txt":
        texts = read_labelled(path)
        assert texts.first == TEXTS and texts.labels == [0, 1, 2]
    bound = open_source(path).identity()[1]
    assert bound is None or bound >= len(TEXTS)


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_scored_pairs_and_pairs_of_an_attack_too(tmp_path, encoding):
    (tmp_path / "a.tsv").write_bytes(encoded('sentence1\tsentence2\tscore\n"é\tb\t4\n', encoding))
    pairs = read_scored_pairs(tmp_path / "a.tsv")
    assert (pairs.first, pairs.second, pairs.scores) == (['"é'], ["b"], [4.0])
    (tmp_path / "p.csv").write_bytes(encoded('"first","first_adversarial"\n"é","b"\n', encoding))
    assert read_pairs(tmp_path / "p.csv") == {("é",): ("b",)}


def zipped():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("words.txt", bytes(range(256)) * 40 + "".join(map(str, range(3000))).encode())
    return content.getvalue()


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl"])
@pytest.mark.parametrize(
    "data",
    ["text\nhello world\n".encode("utf-16-le"), "text\nhello\n".encode("utf-16-be"), b"\0" * 5000, zipped()],
    ids=["utf-16 without a mark", "big first", "zeros", "zip"],
)
def test_what_is_no_text_is_one_line(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match="holds no text.*byte order mark") as caught:
        open_source(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


def test_a_cut_utf16_file_is_damaged(tmp_path):
    with pytest.raises(UserError, match="a.txt is damaged: UTF-16 by its byte order mark, truncated data"):
        read_bytes(tmp_path, "hello\nthere".encode("utf-16")[:-1], name="a.txt")


def test_a_few_control_characters_are_text(tmp_path):
    assert read_bytes(tmp_path, b"a\0b\n\x1b[1mc\x07\n", name="a.txt")[0] == ["a\0b", "\x1b[1mc\x07"]


def test_a_carriage_return_at_the_end_of_what_is_looked_at_is_half_of_an_ending(tmp_path):
    long = b"x" * ((1 << 16) - 1)
    assert read_bytes(tmp_path, long + b"\r\ntwo\rthree\r\n", name="a.txt")[0] == [long.decode(), "two\rthree"]


def test_latin_1_is_said_loudly(tmp_path, caplog):
    (tmp_path / "a.txt").write_bytes("café\nnaïve\nplain\n".encode("latin-1"))
    list(open_and_read(tmp_path / "a.txt"))
    assert "2 with malformed UTF-8, replaced" in caplog.text
    assert f"{tmp_path / 'a.txt'}: 2 of 3 lines are not UTF-8" in caplog.text


def open_and_read(path):
    import logging

    from fastadv.data.text import iterate_sentences

    logging.getLogger("fastadv.data").setLevel(logging.INFO)
    return iterate_sentences(path)


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.jsonl", '[\n{"text": "one"},\n{"text": "two"}\n]\n', "3 of 4 lines were skipped for their faults"),
        ("a.csv", "text\none, two\nthree\nfour, five\n", "2 of 3 lines were skipped for their faults"),
        ("snli.txt", "gold\tsentence1\nneutral\tone\n", "2 of 2 lines hold tabs; the name of a table ends in .tsv"),
        ("a.txt", '{"text": "one"}\n{"text": "two"}\n', "2 of 2 lines look like JSON"),
        (
            "a.tsv",
            'text\n"one"\n"two"\n',
            "2 of 2 lines have cells in quotes, which data.quoting = double (--quoting double) takes off",
        ),
    ],
)
def test_many_faults_are_a_warning(tmp_path, caplog, name, content, said):
    (tmp_path / name).write_text(content)
    list(open_and_read(tmp_path / name))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert said in caplog.text
