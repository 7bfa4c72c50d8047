"""From the data section of a config to batches: sources with weights, and columns."""

import gzip
from collections import Counter

import pytest

from fastadv.config.schema import Config
from fastadv.data.records import sentence_id
from fastadv.dry_run import describe_plan
from fastadv.engine.training_data import TrainingData
from fastadv.errors import UserError
from tests.data.labelled.test_labelled_text import Letters


def id_of(text):
    return sentence_id(Letters().tokenize([text])[0][0])


@pytest.fixture
def make(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"query,same\none,eins\ntwo,zwei\n"))
    (tmp_path / "b.jsonl").write_text('{"query": "three", "same": "drei"}\n{"query": "four", "same": "vier"}\n')

    def make(train=None, **changes):
        config = Config()
        weighted = [
            {"path": str(tmp_path / "a.csv.gz"), "weight": 2},
            {"path": str(tmp_path / "b.jsonl"), "weight": 0.5},
        ]
        config.data.train, config.data.field = weighted if train is None else train, "query"
        config.data.cache_dir, config.train.batch_size = str(tmp_path / "cache"), 2
        for key, value in changes.items():
            setattr(config.data, key, value)
        return config

    return make


def test_an_epoch_has_each_source_by_its_weight(make):
    data = TrainingData(make(), Letters(), progress=False)
    assert len(data.text) == 4 and data.total_steps == data.order.batches_per_epoch == 3
    drawn = set()
    for epoch in range(20):
        ids = [i for batch in data.batches(epoch, 0) for i in batch.sentence_ids.tolist()]
        counts = Counter(ids)
        assert len(ids) == 5 and counts[id_of("one")] == counts[id_of("two")] == 2
        drawn |= set(ids)
        rest = [i for batch in data.batches(epoch, 1) for i in batch.sentence_ids.tolist()]
        assert rest == ids[2:]
    assert drawn == {id_of(text) for text in ("one", "two", "three", "four")}


def test_batches_carry_the_positives_of_their_sentences(make):
    german = {id_of("one"): "eins", id_of("two"): "zwei", id_of("three"): "drei", id_of("four"): "vier"}
    data = TrainingData(make(positive_field="same"), Letters(), progress=False)
    for batch in [data.first_batch(), *data.batches(3, 0)]:
        expected = [id_of(german[i]) for i in batch.sentence_ids.tolist()]
        assert batch.positive.sentence_ids.tolist() == expected
        assert batch.hard_negative is None


def test_weights_do_not_tokenise_again(make, tmp_path):
    first = TrainingData(make(), Letters(), progress=False)
    num_files = len(list((tmp_path / "cache").iterdir()))
    config = make()
    config.data.train[0]["weight"] = 1
    second = TrainingData(config, Letters(), progress=False)
    assert second.fingerprint == first.fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == num_files == 2


def test_a_single_source_in_a_list_is_that_source(make, tmp_path):
    path = str(tmp_path / "b.jsonl")
    alone, listed = (TrainingData(make(train), Letters(), progress=False) for train in (path, [{"path": path}]))
    assert alone.fingerprint == listed.fingerprint
    assert [b.input_ids.tolist() for b in alone.batches(1, 0)] == [b.input_ids.tolist() for b in listed.batches(1, 0)]


def test_the_plan_names_every_source_and_checks_its_columns(make):
    config = make(positive_field="same")
    assert "a.csv.gz (weight 2)" in describe_plan(config) and "b.jsonl (weight 0.5)" in describe_plan(config)
    with pytest.raises(UserError, match="a.csv.gz has no column 'other'; its columns are query, same"):
        describe_plan(make(positive_field="other"))
