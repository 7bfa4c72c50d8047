"""The cached Arrow file: what it holds, when it is reused, and that it is never torn."""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fastadv.data import text as text_module
from fastadv.data.text import TokenizedText, collate, sentence_id
from fastadv.data.tokenize_texts import _counting
from fastadv.errors import UserError

CLS, SEP = 1, 2
ROOT = Path(__file__).resolve().parents[2]


def tokenize(texts, max_length=8):
    """One id a letter, between two special tokens."""
    tokens = [[CLS, *(ord(c) for c in text if c.isalpha())][: max_length - 1] + [SEP] for text in texts]
    return tokens, [[True] + [False] * (len(ids) - 2) + [True] for ids in tokens]


class Counted:
    """A tokenizer that remembers the sizes of its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, texts):
        self.calls.append(len(texts))
        return tokenize(texts)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("abc\n\nde\n!!!\nabcdefghij\nabcdefxyz\nabc\n", encoding="utf-8")
    return path


@pytest.fixture
def build(tmp_path, source):
    def build(encoder_tokenize=tokenize, **changed):
        options = dict(
            source=source,
            tokenizer_fingerprint="letters",
            max_length=8,
            cache_dir=tmp_path / "cache",
            progress=False,
        )
        return TokenizedText.build(encoder_tokenize=encoder_tokenize, **{**options, **changed})

    return build


def rows_of(dataset):
    return [
        (row["input_ids"].tolist(), row["is_special"].tolist(), row["sentence_id"], row["length"]) for row in dataset
    ]


def test_rows_hold_the_tokens_and_the_sentence_without_any_is_dropped(build):
    dataset = build()
    texts = ["abc", "de", "abcdefghij", "abcdefxyz", "abc"]
    tokens, special = tokenize(texts)
    ids = [sentence_id(row) for row in tokens]
    assert rows_of(dataset) == [(t, s, i, len(t)) for t, s, i in zip(tokens, special, ids)]
    assert dataset.lengths.tolist() == [5, 4, 8, 8, 5] and dataset.lengths.dtype == np.int32
    assert dataset.sentence_ids.tolist() == ids and dataset.sentence_ids.dtype == np.int64
    assert dataset[0]["input_ids"].dtype == np.int32 and dataset[0]["is_special"].dtype == np.bool_
    # Equal after truncation is equal; anything else is not.
    assert ids[0] == ids[4] and ids[2] == ids[3] and len(set(ids)) == 3
    assert (dataset.report.num_without_tokens, dataset.report.num_blank) == (1, 1)
    for outside in (5, -1):
        with pytest.raises(IndexError):
            dataset[outside]


def test_sentence_ids_are_the_same_on_every_machine():
    # blake2b, 8 bytes, of little-endian int32; read as signed and little-endian.
    assert (
        sentence_id([101, 2023, 102]) == sentence_id(np.array([101, 2023, 102], dtype=np.int64)) == -57319305968091643
    )
    assert sentence_id([1]) != sentence_id([1, 0]) != sentence_id([0, 1])


def test_a_second_build_reuses_the_file_and_says_so(build, caplog):
    first = build()

    def refuse(texts):
        raise AssertionError("tokenised again")

    with caplog.at_level(logging.INFO, logger="fastadv.data"):
        second = build(refuse)
    assert second.path == first.path and rows_of(second) == rows_of(first)
    assert second.report == first.report
    assert "reusing" in caplog.text and "1 without tokens, dropped" in caplog.text


def test_every_input_is_part_of_the_key(build, source, tmp_path, monkeypatch):
    paths = {build().path}
    variants = [
        {"tokenizer_fingerprint": "other"},
        {"max_length": 9},
        {"field": "sentence"},
        {"split": "test"},
        {"max_sentences": 2},
    ]
    paths |= {build(**variant).path for variant in variants}
    changed = tmp_path / "changed.txt"
    changed.write_bytes(source.read_bytes() + b"more\n")
    paths.add(build(source=changed).path)
    monkeypatch.setattr(text_module, "FORMAT_VERSION", text_module.FORMAT_VERSION + 1)
    paths.add(build().path)
    assert len(paths) == 8
    copy = tmp_path / "copy.txt"
    copy.write_bytes(source.read_bytes())
    assert build(source=copy).path == build().path


def test_edited_text_is_tokenised_again(build, source):
    first = build()
    source.write_text("quite new\n")
    second = build()
    assert len(second) == 1 and len(first) == 5


@pytest.mark.parametrize("num_bytes_kept", [0, 5, 100, -200, -1])
def test_a_torn_file_is_replaced(build, caplog, num_bytes_kept):
    whole = build()
    expected = rows_of(whole)
    data = whole.path.read_bytes()
    whole.path.unlink()
    whole.path.write_bytes(data[:num_bytes_kept])
    with caplog.at_level(logging.WARNING, logger="fastadv.data"):
        assert rows_of(build()) == expected
    assert "damaged" in caplog.text
    assert whole.path.read_bytes() == data


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_build_leaves_nothing(build, tmp_path, error, monkeypatch):
    monkeypatch.setattr(text_module, "_SENTENCES_A_CALL", 2)
    calls = []

    def stop(texts):
        calls.append(texts)
        if len(calls) == 2:
            raise error("stopped")
        return tokenize(texts)

    with pytest.raises(error):
        build(stop)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_killed_build_leaves_no_cache_and_the_next_one_works(build, source, tmp_path):
    program = (
        "import os, signal, sys\n"
        "from fastadv.data.text import TokenizedText\n"
        "def tokenize(texts): os.kill(os.getpid(), signal.SIGKILL)\n"
        "TokenizedText.build(sys.argv[1], tokenize, 'letters', 8, cache_dir=sys.argv[2])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    command = [sys.executable, "-c", program, source, tmp_path / "cache"]
    killed = subprocess.run(command, env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = list((tmp_path / "cache").iterdir())
    assert [path.suffix for path in left] == [".partial"]
    assert len(build()) == 5
    # What the killed one left is removed once it is surely nobody's.
    os.utime(left[0], (0, 0))
    build(max_sentences=1)
    assert not left[0].exists()


def test_two_builds_at_once_both_see_a_whole_file(build, tmp_path):
    inner = []

    def tokenize_while_another_builds(texts):
        if not inner:
            inner.append(build())
        return tokenize(texts)

    outer = build(tokenize_while_another_builds)
    assert outer.path == inner[0].path
    # The file that was replaced stays mapped where it was open.
    assert rows_of(outer) == rows_of(inner[0])
    assert list((tmp_path / "cache").iterdir()) == [outer.path]


def test_many_batches_of_calls_and_records(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "_ROWS_A_BATCH", 7)
    monkeypatch.setattr(text_module, "_SENTENCES_A_CALL", 5)
    words = [("abcdefgh" * 3)[i % 8 :][: 1 + i % 6] + chr(97 + i % 26) for i in range(100)]
    path = tmp_path / "many.txt"
    path.write_text("\n".join(words))
    counted = Counted()
    dataset = TokenizedText.build(path, counted, "letters", 8, cache_dir=tmp_path, progress=False)
    assert counted.calls == [5] * 20
    assert [row["input_ids"].tolist() for row in dataset] == tokenize(words)[0]
    assert [dataset[i]["input_ids"].tolist() for i in (99, 0, 50)] == [tokenize(words)[0][i] for i in (99, 0, 50)]
    assert dataset.lengths.tolist() == [len(row) for row in tokenize(words)[0]]


def test_long_texts_make_short_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "_CHARACTERS_A_CALL", 100)
    path = tmp_path / "long.txt"
    path.write_text("\n".join(["a" * 60] * 6))
    counted = Counted()
    TokenizedText.build(path, counted, "letters", 8, cache_dir=tmp_path, progress=False)
    assert counted.calls == [2, 2, 2]


def test_max_sentences_takes_the_first_with_tokens(build):
    dataset = build(max_sentences=3)
    assert dataset.lengths.tolist() == [5, 4, 8]
    assert (dataset.report.num_sentences, dataset.report.num_without_tokens) == (4, 1)
    assert len(build(max_sentences=99)) == 5


def test_text_without_any_token_is_a_mistake_and_not_cached(build, source, tmp_path):
    source.write_text("!!!\n...\n")
    with pytest.raises(UserError, match="train.txt gives no sentence: .*2 without tokens"):
        build()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_folder_that_cannot_be_is_named(build, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to .*file/cache .data.cache_dir"):
        build(cache_dir=tmp_path / "file" / "cache")


def test_a_tokenizer_that_does_not_truncate_is_an_error(build):
    with pytest.raises(ValueError, match="more than max_length 4"):
        build(max_length=4)


def test_pickles_as_its_path(build):
    dataset = build()
    data = pickle.dumps(dataset)
    assert len(data) < 1000
    assert rows_of(pickle.loads(data)) == rows_of(dataset)


def test_collate_packs_rows(build):
    dataset = build()
    batch = partial(collate, position_offset=2)([dataset[1], dataset[0]])
    assert batch.input_ids.tolist() == [CLS, 100, 101, SEP, CLS, 97, 98, 99, SEP]
    assert batch.is_special.tolist() == [True, False, False, True, True, False, False, False, True]
    assert batch.position_ids.tolist() == [2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert batch.sentence_ids.tolist() == [dataset[1]["sentence_id"], dataset[0]["sentence_id"]]
    assert batch.sentence_ids.dtype == torch.int64


def test_texts_that_differ_in_white_space_or_unicode_form_are_one_sentence(tmp_path):
    """Tokens of bytes differ by every space: rows keep their own, and share their id."""

    num_counted = []

    def bytes_of(texts):
        _counting.get().num_texts += len(texts)
        num_counted.append(len(texts))
        tokens = [[256, *text.encode(), 257] for text in texts]
        return tokens, [[True, *[False] * (len(of) - 2), True] for of in tokens]

    texts = ["a caf\u00e9 here", "a cafe\u0301 here", "a  caf\u00e9 here ", "\ta caf\u00e9\u00a0here", "a cafe here"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    dataset = TokenizedText.build(tmp_path / "texts.jsonl", bytes_of, "bytes", 64, cache_dir=tmp_path / "cache")
    # Tokenised twice, told of once.
    assert num_counted == [5, 3] and dataset.report.num_texts == 5
    tokens = [dataset[row]["input_ids"].tolist() for row in range(len(texts))]
    assert tokens == [[256, *text.encode(), 257] for text in texts]
    assert dataset.sentence_ids.tolist() == [sentence_id(tokens[0])] * 4 + [sentence_id(tokens[4])]
