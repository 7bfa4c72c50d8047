"""JSON, CSV and hashes: what is written can be read, and what is not known is null or an empty cell."""

import hashlib
import json
import math

import numpy as np
import pytest

from fastadv.files.csv_file import read_csv, write_csv
from fastadv.files.hashes import digest_of, sha256_of, sha256_of_file
from fastadv.files.json_file import json_text, read_json, write_json

NAN, INF = math.nan, math.inf


def test_json_has_null_for_every_number_that_is_not_finite(tmp_path):
    value = {1: [NAN, -INF, 1 / 3, True, None, "ü\ud800"], "array": np.array([[1.5, np.nan]]), "path": tmp_path}
    value.update(whole=(np.int64(3), {"x"}))
    write_json(tmp_path / "a.json", value)
    numbers = [None, None, 1 / 3, True, None, "ü\ud800"]
    assert read_json(tmp_path / "a.json") == {
        "1": numbers,
        "array": [[1.5, None]],
        "path": str(tmp_path),
        "whole": [3, ["x"]],
    }
    assert (tmp_path / "a.json").read_bytes().endswith(b"}\n") and json_text((np.float32(0.5), INF)) == "[0.5, null]"


def test_a_csv_file_has_empty_cells_for_what_is_not_known(tmp_path):
    write_csv(tmp_path / "a.csv", ["name", "x"], [["a\nb", 1 / 3], ["half \ud800", None], ['"', NAN], [",", -INF]])
    rows = read_csv(tmp_path / "a.csv")
    assert [row["x"] for row in rows] == [repr(1 / 3), "", "", ""]
    assert [row["name"] for row in rows] == ["a\nb", "half \\ud800", '"', ","]
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()


@pytest.mark.parametrize("write", [write_json, lambda path, value: write_csv(path, ["x"], value)])
def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, write):
    path = tmp_path / "a"
    write(path, [[1]])
    before = path.read_bytes()

    class Broken:
        def __iter__(self):
            raise ZeroDivisionError

        __str__ = __iter__

    with pytest.raises(ZeroDivisionError):
        write(path, [Broken()])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_hashes_do_not_depend_on_the_order_of_keys(tmp_path):
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1}) != digest_of({"a": 1, "b": [3]})
    text = json.dumps([1, "ü"]).encode()
    assert sha256_of([1, "ü"]) == hashlib.sha256(text).hexdigest()
    assert digest_of([1, "ü"]) == hashlib.blake2b(text, digest_size=16).hexdigest()
    (tmp_path / "a").write_bytes(text)
    assert sha256_of_file(tmp_path / "a") == sha256_of([1, "ü"])
