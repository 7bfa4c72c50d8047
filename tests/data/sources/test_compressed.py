"""Gzip files: told by their names, which must agree with their first bytes."""

import gzip

import pytest

from fastadv.data.sources.find import open_source
from fastadv.data.sources.line_report import LineReport
from fastadv.data.text import iterate_sentences
from fastadv.errors import UserError

CONTENTS = {
    "a.txt": b"\xef\xbb\xbfone\r\n\ntwo \xff\n",
    "a.jsonl": b'\xef\xbb\xbf{"text": "one"}\n\n{"text": "two \xff"}\n',
    "a.csv": b'\xef\xbb\xbfid,text\r\n1,one\r\n\r\n2,"two \xff"\r\n',
    "a.tsv": b"id\ttext\n1\tone\n\n2\ttwo \xff\n",
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("suffix", [".gz", ".GZ"])
def test_a_compressed_file_gives_what_the_plain_one_gives(tmp_path, name, suffix):
    plain, packed = tmp_path / name, tmp_path / f"{name}{suffix}"
    plain.write_bytes(CONTENTS[name])
    # Two members, as `cat a.gz b.gz` makes them.
    packed.write_bytes(gzip.compress(CONTENTS[name][:9]) + gzip.compress(CONTENTS[name][9:]))
    reports = LineReport(), LineReport()
    sentences = [list(iterate_sentences(path, report=report)) for path, report in zip((plain, packed), reports)]
    assert sentences[0] == sentences[1] == ["one", "two \ufffd"]
    assert reports[0].summary().replace(name, f"{name}{suffix}") == reports[1].summary()
    assert open_source(plain).identity()[0] != open_source(packed).identity()[0]


@pytest.mark.parametrize("name", CONTENTS)
def test_names_and_content_that_disagree_are_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(CONTENTS[name]))
    with pytest.raises(UserError) as caught:
        open_source(path)
    assert str(caught.value) == f"{path} holds gzip data; expected plain content, or the name {name}.gz"
    path = tmp_path / f"{name}.gz"
    path.write_bytes(CONTENTS[name])
    with pytest.raises(UserError) as caught:
        open_source(path)
    assert str(caught.value) == f"{path} holds no gzip data; expected gzip, or the name {name}"


@pytest.mark.parametrize("damage", [lambda data: data[:-12], lambda data: data[:-8] + b"\0" * 8])
def test_a_damaged_file_is_one_line(tmp_path, damage):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(damage(gzip.compress(b"\n".join(b"%d" % i for i in range(1000)))))
    with pytest.raises(UserError, match="a.txt.gz is damaged: ") as caught:
        list(iterate_sentences(path))
    assert "\n" not in str(caught.value)


def test_other_compressed_files_are_refused_by_name(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(UserError, match="ends in '.gz'"):
        open_source(tmp_path / "a.gz")
