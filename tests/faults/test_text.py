"""Hostile files as ``data.train``: the right sentences, or one line, within little memory."""

import gzip
import json
import os
import re

import pytest

# A line here has 100 MB, and a packed file 256 MiB.
ALLOCATED_MIB = 60
LIMIT_MIB = 1000
"""of all memory, torch's own too, beside what a run shares with its parent"""


@pytest.fixture
def train_on(server, write_config, tmp_path):
    """``train_on(path)``: how a run of two steps on it ended."""

    def run(path, *arguments, plants=(), **changes):
        settings = {"data.train": str(path), "train.max_steps": 2, "data.cache_dir": str(tmp_path / "cache")}
        name = f"run-{len(list(tmp_path.glob('run-*.yaml')))}"
        config = write_config(name, **{**settings, "dev.data": "none", "train.eval_every": None, **changes})
        limits = {"AS": LIMIT_MIB << 20}
        ended = server.run(["--config", config, *arguments], plants=plants, limits=limits, counts_memory=True)
        assert "Traceback" not in ended.err, ended.err
        assert 0 < ended.allocated_mib < ALLOCATED_MIB, ended.allocated_mib
        return ended

    return run


def assert_refused(ended, *named):
    assert ended.status == 2 and len(ended.said) == 1, ended
    for part in named:
        assert part in ended.said[0], ended.err


def assert_trained(ended, num_sentences, *counted):
    """``counted``: what the run says of the lines it read."""
    assert ended.status == 0 and not ended.said, ended
    (line,) = [line for line in ended.out.splitlines() if line.startswith("tokenised ")]
    assert f": {num_sentences:,} sentences of " in line, line
    for part in counted:
        assert part in line, line


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


FOUR = "a film\na movie\nvery good\nvery bad\n"


def test_an_empty_folder(train_on, tmp_path):
    (tmp_path / "texts").mkdir()
    assert_refused(train_on(tmp_path / "texts"), "holds no .txt or .jsonl file")


def test_a_folder_named_as_a_file(train_on, tmp_path):
    (tmp_path / "texts.txt").mkdir()
    assert_refused(train_on(tmp_path / "texts.txt"), "texts.txt")


def test_a_folder_with_a_fifo_in_it(train_on, tmp_path):
    (tmp_path / "texts").mkdir()
    os.mkfifo(tmp_path / "texts" / "b.txt")
    write(tmp_path / "texts" / "a.txt", FOUR)
    assert_trained(train_on(tmp_path / "texts"), 4, "1 other files ignored (b.txt)")


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".parquet", ".txt.gz"])
def test_a_fifo(train_on, tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    assert_refused(train_on(tmp_path / f"pipe{suffix}"), "is no regular file")


def test_a_link_to_an_endless_device(train_on, tmp_path):
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    assert_refused(train_on(tmp_path / "zero.txt"), "is no regular file")
    assert_refused(train_on("/dev/zero"), "is no regular file")


def test_links_that_lead_nowhere(train_on, tmp_path):
    (tmp_path / "one.txt").symlink_to("two.txt")
    (tmp_path / "two.txt").symlink_to("one.txt")
    assert_refused(train_on(tmp_path / "one.txt"), "one.txt")
    (tmp_path / "texts").symlink_to("texts")
    assert_refused(train_on(tmp_path / "texts"), "texts")


@pytest.mark.parametrize("name", ["a" * 300 + ".txt", "a" * 300])
def test_names_too_long(train_on, tmp_path, name):
    assert_refused(train_on(tmp_path / name), "aaa")
    assert_refused(train_on(name), "aaa")


def test_a_name_that_is_no_utf8(train_on, tmp_path):
    """A model card could not name it."""
    path = write(tmp_path / "caf\udce9.txt", FOUR)
    assert_refused(train_on("anything.txt", "--data.train", path), "data.train", "UTF-8")


def test_hostile_dev_data(train_on, tmp_path):
    texts = write(tmp_path / "texts.txt", FOUR)
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "blank.csv", "\n\n")
    write(tmp_path / "noise.csv", os.urandom(1 << 16))
    for name in ("pipe.csv", "loop.csv", "zero.csv", "empty", "blank.csv", "noise.csv", "a" * 300):
        assert_refused(train_on(texts, **{"dev.data": str(tmp_path / name)}), name[:20])


def test_a_socket_and_an_unreadable_kind(train_on, tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.txt"))
        assert_refused(train_on(tmp_path / "s.txt"), "is no regular file")


def test_a_file_of_the_kernel_that_cannot_be_read(train_on, tmp_path):
    (tmp_path / "memory.txt").symlink_to("/proc/self/mem")
    assert_refused(train_on(tmp_path / "memory.txt"), "memory.txt")


@pytest.mark.parametrize("suffix", [".txt", ".csv"])
def test_gzip_by_another_name(train_on, tmp_path, suffix):
    path = write(tmp_path / f"texts{suffix}", gzip.compress(FOUR.encode()))
    assert_refused(train_on(path), "holds gzip data")


def test_gzip_that_is_cut_or_endless(train_on, tmp_path):
    packed = gzip.compress(b"".join(b"a film %d\n" % i for i in range(10_000)))
    assert_refused(train_on(write(tmp_path / "cut.txt.gz", packed[: len(packed) // 2])), "is damaged")
    # A quarter of a gigabyte on one line in a megabyte.
    with gzip.open(tmp_path / "bomb.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(256):
            file.write(b"x" * (1 << 20))
    assert_refused(train_on(tmp_path / "bomb.txt.gz"), "gives no sentence", "1 too long")


@pytest.mark.parametrize("end", ["", "\n" + FOUR])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
def test_a_hundred_megabytes_on_a_line(train_on, tmp_path, suffix, end):
    path = tmp_path / f"long{suffix}"
    if suffix == ".jsonl":
        end = "\n" + "".join(json.dumps({"text": line}) + "\n" for line in end.split()) if end else ""
    with open(path, "wb") as file:
        file.write(b"text\n" if suffix == ".csv" else b"")
        for _ in range(100):
            file.write(b"word " * 200_000)
        file.write(end.encode())
    ended = train_on(path)
    if end:
        assert_trained(ended, len(end.split("\n")) - 2, "1 too long, skipped")
    else:
        assert_refused(ended, "gives no sentence", "1 too long, skipped")


def test_bytes_that_are_no_utf8(train_on, tmp_path):
    path = write(tmp_path / "latin.txt", b"un caf\xe9 noir\n\xff\xfe bad\nvery good\n\x80\x80\n")
    counted = "3 with malformed UTF-8, replaced (first: latin.txt:1)", "1 without tokens, dropped"
    assert_trained(train_on(path), 3, *counted)


def test_utf16(train_on, tmp_path):
    assert_trained(train_on(write(tmp_path / "wide.txt", FOUR.encode("utf-16"))), 4)
    assert_refused(train_on(write(tmp_path / "bare.txt", FOUR.encode("utf-16-le"))), "bare.txt holds no text")


def test_random_bytes(train_on, tmp_path):
    assert_refused(train_on(write(tmp_path / "noise.txt", os.urandom(1 << 18))), "noise.txt holds no text")


@pytest.mark.parametrize("content", ["", "\n", "\n" * 1000, " \t\n\u3000\n", "\ufeff", "\ufeff\n"])
def test_no_sentence(train_on, tmp_path, content):
    assert_refused(train_on(write(tmp_path / "blank.txt", content)), "gives no sentence")


def test_one_sentence(train_on, tmp_path):
    assert_refused(train_on(write(tmp_path / "one.txt", "a film\n")), "one.txt holds 1 sentence after truncation")
    # Cut to three tokens these are one and the same.
    cut = write(tmp_path / "cut.txt", "film one\nfilm two\n")
    ended = train_on(cut, **{"encoder.max_length": 3})
    assert_refused(ended, "cut.txt holds 2 sentences, all equal after truncation to 3 tokens")


def test_a_sentence_a_hundred_thousand_times(train_on, tmp_path):
    """Equal sentences are no negatives of each other: there is nothing to learn, unless there is another one."""
    path = write(tmp_path / "same.txt", "a film\n" * 100_000)
    assert_refused(train_on(path), "same.txt holds 100,000 sentences, all equal")
    path.write_text("a film\n" * 10_000 + "never\n")
    assert_trained(train_on(path), 10_001)


def test_line_ends_and_a_mark(train_on, tmp_path):
    assert_trained(train_on(write(tmp_path / "dos.txt", "\ufeff" + FOUR.replace("\n", "\r\n"))), 4)
    # A carriage return ends a line where no line feed does.
    assert_trained(train_on(write(tmp_path / "mac.txt", FOUR.replace("\n", "\r"))), 4)
    both = "a film\rand a movie\nvery good\nvery bad\n"
    assert_trained(train_on(write(tmp_path / "both.txt", both)), 3)


def test_bytes_of_zero(train_on, tmp_path):
    assert_trained(train_on(write(tmp_path / "zeros.txt", "a\0film\nvery\0\0good\n\0\nnever\n")), 3, "1 without tokens")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_file_that_vanishes(train_on, tmp_path, count):
    """Before it is opened to be looked at, to be hashed, and to be read."""
    path = write(tmp_path / "gone.txt", FOUR)
    ended = train_on(path, plants=[("vanish_before_open", {"path": str(path), "count": count})])
    assert_refused(ended, "gone.txt cannot be read: No such file or directory")


def test_json_nested_without_end(train_on, tmp_path):
    lines = ["[" * 500_000, '{"text":' * 100_000, '{"text": 1e999999}', '{"text": "' + "\\ud800" * 3 + '"}', "null"]
    good = [json.dumps({"text": line}) for line in FOUR.splitlines()]
    path = write(tmp_path / "deep.jsonl", "\n".join([*lines, *good]) + "\n")
    ended = train_on(path)
    assert ended.status == 0 and re.search(r"[34] not JSON|2 not JSON", ended.out), ended


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b""])
def test_what_only_claims_to_be_a_table(train_on, tmp_path, content):
    assert_refused(train_on(write(tmp_path / "table.parquet", content)), "table.parquet")


def test_a_table_of_nul_quotes_and_no_end(train_on, tmp_path):
    assert_refused(train_on(write(tmp_path / "a.csv", 'text\n"never closed\n' + "a,b\n" * 10)), "gives no sentence")
    assert_trained(train_on(write(tmp_path / "b.csv", "text\na\0film\nvery good\nnever\n")), 3)
