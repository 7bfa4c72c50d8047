"""Records of a sentence with its positive and its hard negative: from every format into one batch."""

import pickle
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastadv.data.sources.find import open_source
from fastadv.data.text import TokenizedText, collate, sentence_id
from fastadv.errors import UserError
from tests.data.test_tokenized_text import tokenize

COLUMNS = ("query", "same", "other")
TRIPLETS = [("ab", "abc", "x"), ("cd", "c", "yz"), ("ef", "efg", "xyz")]


def write_csv(path):
    path.write_text(
        "\n".join(",".join(row) for row in [("id", *COLUMNS), *((str(i), *t) for i, t in enumerate(TRIPLETS))])
    )


def write_jsonl(path):
    import json

    path.write_text("\n".join(json.dumps(dict(zip(COLUMNS, row))) for row in TRIPLETS))


def write_parquet(path):
    pq.write_table(pa.table(dict(zip(COLUMNS, zip(*TRIPLETS)))), path)


def write_dataset(path):
    import datasets

    datasets.Dataset.from_dict(dict(zip(COLUMNS, map(list, zip(*TRIPLETS))))).save_to_disk(str(path))


WRITERS = {"a.csv": write_csv, "a.jsonl": write_jsonl, "a.parquet": write_parquet, "saved": write_dataset}


@pytest.fixture
def build(tmp_path):
    def build(source, num_fields=3, **changed):
        names = dict(zip(("field", "positive_field", "negative_field"), COLUMNS[:num_fields]))
        options = dict(max_length=8, cache_dir=tmp_path / "cache", progress=False, **names)
        return TokenizedText.build(source, tokenize, "letters", **{**options, **changed})

    return build


def split(batch):
    bounds = batch.cu_seqlens.tolist()
    return [batch.input_ids[start:end].tolist() for start, end in zip(bounds, bounds[1:])]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("num_fields", [1, 2, 3])
def test_every_format_gives_the_columns_named(tmp_path, build, name, num_fields):
    WRITERS[name](tmp_path / name)
    text = pickle.loads(pickle.dumps(build(tmp_path / name, num_fields)))
    assert len(text[0]) == 4 * num_fields + 1 and len(text) == 3 and text[2]["row"] == 2
    batch = partial(collate, position_offset=2)([text[2], text[0]])
    rows = [TRIPLETS[2], TRIPLETS[0]]
    for which, packed in enumerate((batch, batch.positive, batch.hard_negative)):
        if which >= num_fields:
            assert packed is None
            continue
        tokens, special = tokenize([row[which] for row in rows])
        assert split(packed) == tokens
        assert packed.is_special.tolist() == sum(special, [])
        assert packed.sentence_ids.tolist() == [sentence_id(ids) for ids in tokens]
        assert packed.position_ids.min() == 2
    assert text.lengths.tolist() == [4, 4, 4]


def test_the_columns_are_part_of_the_key(tmp_path, build):
    write_csv(tmp_path / "a.csv")
    builds = [build(tmp_path / "a.csv", n) for n in (1, 2, 3)]
    builds.append(build(tmp_path / "a.csv", 2, positive_field="other"))
    assert len({text.path for text in builds}) == 4
    assert build(tmp_path / "a.csv").path == builds[2].path


def test_a_record_at_fault_is_skipped_whole_and_its_column_named(tmp_path, build):
    (tmp_path / "a.csv").write_text("query,same,other\nab,cd,ef\nab,,ef\nab,cd, \nab,cd\nab,cd,!!!\ngh,ij,kl\n")
    text = build(tmp_path / "a.csv")
    assert len(text) == 2
    report = text.report
    assert (report.num_blank, report.first["blank"]) == (2, "a.csv row 3, column same")
    assert (report.num_ragged, report.num_without_tokens) == (1, 1)
    (tmp_path / "a.jsonl").write_text(
        '{"query": "ab", "same": "cd", "other": "ef"}\n{"query": "ab", "same": null, "other": "x"}\n{"query": "ab"}\n'
    )
    report = build(tmp_path / "a.jsonl").report
    assert (report.num_without_field, report.first["without_field"]) == (2, "a.jsonl:2, column same")
    assert report.fields_seen == ["query", "same", "other"]


@pytest.mark.parametrize(
    "source, fields, said",
    [
        ("a.csv", ("query", "same", "wrong"), "a.csv has no column 'wrong'; its columns are id, query, same, other"),
        ("a.txt", ("query", "same", None), "a.txt has no columns, so no 'same'"),
        ("demo:imdb-train", ("query", "same", "other"), "sentences alone, so no 'same' and no 'other'"),
        ("a.csv", ("query", None, "other"), "data.negative_field = 'other': expected null"),
    ],
)
def test_mistakes_are_said_before_anything_is_read(tmp_path, monkeypatch, source, fields, said):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "a.csv")
    (tmp_path / "a.txt").write_text("one\n")
    field, positive_field, negative_field = fields
    with pytest.raises(UserError, match=said):
        open_source(source, field, "train", positive_field, negative_field)


def test_a_field_no_line_has_is_named_with_all_that_were_asked_for(tmp_path, build):
    (tmp_path / "a.jsonl").write_text('{"query": "ab", "good": "cd"}\n')
    with pytest.raises(
        UserError, match="has a string 'query' and 'same' .first: a.jsonl:1, column same.; .*query, good"
    ):
        build(tmp_path / "a.jsonl", 2)
