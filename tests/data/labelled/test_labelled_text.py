"""The cached file of labelled text: what it holds, when it is reused, pairs, and labels in batches."""

import logging
import pickle
from functools import partial

import numpy as np
import pytest
import torch

from fastadv.config.schema import Config
from fastadv.data import text as text_module
from fastadv.data.batching import BatchOrder, make_loader
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.labelled.text import LabelledText, agree
from fastadv.data.text import TokenizedText, collate, sentence_id
from fastadv.dry_run import describe_plan
from fastadv.engine.training_data import TrainingData
from fastadv.errors import UserError

CLS, SEP = 1, 2


class Letters:
    """What `LabelledText.build` asks of an encoder: an id a letter; of a pair, the second text is cut first."""

    tokenizer_fingerprint, position_offset, num_token_types = "letters", 0, 2

    def __init__(self, max_length=8):
        self.max_length, self.num_calls = max_length, 0

    def tokenize(self, texts):
        self.num_calls += 1
        tokens = [[CLS, *map(ord, text)][: self.max_length - 1] + [SEP] for text in texts]
        return tokens, [[id_ in (CLS, SEP) for id_ in ids] for ids in tokens]

    def tokenize_pairs(self, first, second):
        self.num_calls += 1
        heads = [[CLS, *map(ord, text), SEP] for text in first]
        tails = [[*map(ord, text)] for text in second]
        tokens = [(head + tail)[: self.max_length - 1] + [SEP] for head, tail in zip(heads, tails)]
        types = [[int(i >= len(head)) for i in range(len(ids))] for head, ids in zip(heads, tokens)]
        return tokens, [[id_ in (CLS, SEP) for id_ in ids] for ids in tokens], types


ROWS = [("good", "pos"), ("bad", "neg"), ("very good indeed", "pos"), ("so so", "mixed"), ("bad", "neg")]


def write(path, rows, columns=("text", "label")):
    path.write_text("".join(",".join(row) + "\n" for row in [columns, *rows]))
    return path


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "train.csv", ROWS)


@pytest.fixture
def build(tmp_path, source):
    def build(encoder=None, **changed):
        options = {"source": source, "cache_dir": tmp_path / "cache", "progress": False, **changed}
        return LabelledText.build(encoder=encoder or Letters(), **options)

    return build


@pytest.fixture
def pairs(tmp_path, build):
    path = write(tmp_path / "pairs.csv", [("ab", "c", "1"), ("d", "efghij", "0")], ("first", "second", "same"))
    return build(source=path, field="first", pair_field="second", label_field="same")


def test_rows_are_those_of_tokenised_text_with_classes(build, source, tmp_path):
    labelled, letters = build(), Letters()
    plain = TokenizedText.build(source, letters.tokenize, "letters", 8, cache_dir=tmp_path / "cache", progress=False)
    assert len(labelled) == len(plain) == len(ROWS) and not labelled.is_pair
    for i, (row, expected, (_, label)) in enumerate(zip(labelled, plain, ROWS)):
        assert row.pop("label") == ("mixed", "neg", "pos").index(label) and row["row"] == i
        assert row.keys() == expected.keys()
        assert all(np.array_equal(row[key], expected[key]) for key in row)
    assert labelled.labels.tolist() == [2, 1, 2, 0, 1] and labelled.labels.dtype == np.int64
    assert labelled.lengths.tolist() == plain.lengths.tolist()
    assert labelled.class_counts == {"mixed": 1, "neg": 2, "pos": 2}
    assert labelled.report.num_sentences == labelled.report.num_lines == 5
    for outside in (5, -1):
        with pytest.raises(IndexError):
            labelled[outside]


def test_a_second_build_reuses_the_file_with_its_labels(build, caplog):
    first, again = build(), Letters()
    with caplog.at_level(logging.INFO, logger="fastadv.data"):
        second = build(again)
    assert again.num_calls == 0 and "reusing" in caplog.text
    assert second.path == first.path and second.label_map == first.label_map
    assert second.labels.tolist() == first.labels.tolist() and second.report == first.report
    first.path.write_bytes(first.path.read_bytes()[:-100])
    assert build(again).labels.tolist() == [2, 1, 2, 0, 1] and again.num_calls == 1 and "damaged" in caplog.text


def test_every_input_is_part_of_the_key(build, source, tmp_path):
    paths = {build().path, build(Letters(9)).path, build(max_sentences=2).path, build(split="dev").path}
    other = Letters()
    other.tokenizer_fingerprint = "other"
    paths.add(build(other).path)
    relabelled = write(tmp_path / "other.csv", [*ROWS[:-1], ("bad", "pos")])
    paths.add(build(source=relabelled).path)
    three = write(tmp_path / "three.csv", [("a", "b", "c", "d")], ("text", "label", "label2", "text2"))
    columns = ({}, {"label_field": "label2"}, {"field": "text2"}, {"pair_field": "text2"})
    paths |= {build(source=three, **chosen).path for chosen in columns}
    assert len(paths) == 10
    copy = tmp_path / "copy.csv"
    copy.write_bytes(source.read_bytes())
    assert build(source=copy).path == build().path


def test_names_of_classes_and_token_types_are_part_of_the_key(build, tmp_path):
    import datasets

    texts = []
    for names in (["no", "yes"], ["yes", "no"]):
        rows = datasets.Dataset.from_dict({"text": ["a", "b"], "second": ["c", "d"], "label": [0, 1]})
        folder = tmp_path / "-".join(names) / "mine"
        rows.cast_column("label", datasets.ClassLabel(names=names)).save_to_disk(str(folder))
        texts.append(build(source=folder))
    assert [text.label_map.names for text in texts] == [("no", "yes"), ("yes", "no")]
    one_type = Letters()
    one_type.num_token_types = 1
    assert build(one_type, source=folder).path == texts[1].path
    assert build(one_type, source=folder, pair_field="second").path != build(source=folder, pair_field="second").path


def test_an_unlabelled_file_is_never_taken_for_a_labelled_one(build, source, tmp_path):
    plain = TokenizedText.build(source, Letters().tokenize, "letters", 8, cache_dir=tmp_path, progress=False)
    with pytest.raises(ValueError, match="no labelled text"):
        LabelledText(plain.path)
    with pytest.raises(ValueError, match="no tokenised text"):
        TokenizedText(build().path)


def test_faults_leave_no_file(build, source, tmp_path):
    for text, message in (
        ("text,label\ngood,pos\n,neg\n", "train.csv row 3, column text: blank"),
        ("text,label\ngood,pos\n\x01\x02,neg\n", "train.csv row 3, column text: the tokenizer finds no word in it"),
        ("text,label\n", "train.csv holds no labelled row"),
    ):
        source.write_text(text)
        with pytest.raises(UserError, match=message):
            build()
        assert list((tmp_path / "cache").iterdir()) == []


def test_the_first_rows_are_reported_as_such(build, monkeypatch):
    monkeypatch.setattr(text_module, "_SENTENCES_A_CALL", 2)
    text = build(max_sentences=3)
    assert len(text) == text.report.num_sentences == 3 and text.label_map.names == ("neg", "pos")


def test_many_batches_of_calls_and_records(build, tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "_ROWS_A_BATCH", 7)
    monkeypatch.setattr(text_module, "_SENTENCES_A_CALL", 5)
    rows = [("abcdefgh"[: 1 + i % 8], "xyz"[1 + i % 2 :][:1], str(i % 5)) for i in range(60)]
    path = write(tmp_path / "many.csv", rows, ("text", "second", "label"))
    singles, pairs = build(source=path), build(source=path, pair_field="second")
    assert singles.labels.tolist() == pairs.labels.tolist() == [i % 5 for i in range(60)]
    for which in (59, 0, 30):
        tokens, _, types = Letters().tokenize_pairs([rows[which][0]], [rows[which][1]])
        row = pairs[which]
        assert (row["input_ids"].tolist(), row["token_type_ids"].tolist()) == (tokens[0], types[0])
        assert row["label"] == singles[which]["label"] == which % 5


def test_pairs_have_token_types_and_an_id_of_both_texts(pairs):
    assert pairs.is_pair and pairs.labels.tolist() == [1, 0]
    row = pairs[0]
    assert (
        row["input_ids"].tolist() == [CLS, 97, 98, SEP, 99, SEP] and row["token_type_ids"].tolist() == [0] * 4 + [1] * 2
    )
    assert row["sentence_id"] == sentence_id(row["input_ids"])
    batch = partial(collate, position_offset=2)([pairs[1], pairs[0]])
    assert batch.token_type_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert batch.labels.tolist() == [0, 1] and batch.labels.dtype == torch.int64
    assert batch.position_ids[:3].tolist() == [2, 3, 4]
    assert [part.labels.tolist() for part in batch.split(2)] == [[0], [1]]


def test_pickles_as_its_path_and_classes(build):
    text = build().with_labels(LabelMap(("pos", "neg", "mixed", "other")))
    data = pickle.dumps(text)
    copy = pickle.loads(data)
    assert len(data) < 1500 and copy.label_map == text.label_map and copy.source == text.source
    assert [row["label"] for row in copy] == [0, 1, 0, 2, 1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_change_no_label(build):
    text = build()
    order = BatchOrder(text.lengths, batch_size=2, seed=3)

    def load(num_workers):
        return list(make_loader(text, order, 1, 0, num_workers, partial(collate, position_offset=0)))

    expected = [text.labels[indices].tolist() for indices in order.iterate(1)]
    assert [batch.labels.tolist() for batch in load(0)] == [batch.labels.tolist() for batch in load(1)] == expected


def test_dev_rows_take_the_classes_of_training(build, tmp_path):
    train = build()
    dev = build(source=write(tmp_path / "dev.csv", [("x", "pos"), ("y", "mixed")]))
    assert dev.labels.tolist() == [1, 0]
    assert dev.with_labels(train.label_map).labels.tolist() == [2, 0]
    assert dev.with_labels(train.label_map).fingerprint != dev.fingerprint
    with pytest.raises(UserError) as caught:
        train.with_labels(dev.label_map)
    said = f"{train.source} row 3, column label: the label 'neg' is unknown; known are 'mixed', 'pos'"
    assert str(caught.value) == said
    # Mapped from the cache, where it came under another name, a row is that of the file asked for.
    copy = tmp_path / "copy.csv"
    copy.write_bytes((tmp_path / "train.csv").read_bytes())
    assert build(source=copy).found_labels.place_of("mixed") == f"{copy} row 5"


def test_rows_of_a_folder_are_found_in_its_files(build, tmp_path):
    places = []
    for names in (("a.csv", "b.csv"), ("a.csv", "c.csv")):
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        write(folder / names[0], [("x", "pos"), ("y", "neg")])
        write(folder / names[1], [("z", "pos"), ("w", "mixed")])
        text = build(source=folder)
        places.append(text.found_labels.place_of("mixed"))
        with pytest.raises(UserError, match=f"{names[1]} row 3, column label: the label 'mixed' is not among those of"):
            agree([text])
    assert places == [str(tmp_path / "a.csv-b.csv" / "b.csv row 3"), str(tmp_path / "a.csv-c.csv" / "c.csv row 3")]


def test_sources_of_one_model_agree(build, pairs, tmp_path):
    part = build(source=write(tmp_path / "part.csv", [("x", "pos"), ("y", "neg")]))
    agreed = agree([part, build()])
    assert [text.label_map.names for text in agreed] == [("mixed", "neg", "pos")] * 2
    assert [text.labels.tolist() for text in agreed] == [[2, 1], [2, 1, 2, 0, 1]]
    assert agree([part], ["pos", "other", "neg"])[0].labels.tolist() == [0, 2]
    with pytest.raises(UserError, match="part.csv has texts and .*pairs.csv pairs of texts; expected the same of both"):
        agree([part, pairs])
    with pytest.raises(UserError, match="all 2 rows have the label 'a'"):
        agree([build(source=write(tmp_path / "one.csv", [("x", "a"), ("y", "a")]))])


@pytest.fixture
def config(source, tmp_path):
    config = Config()
    config.data.train, config.data.label_field = str(source), "label"
    config.data.cache_dir, config.train.batch_size = str(tmp_path / "cache"), 2
    return config


def test_training_batches_have_labels(config, source, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="fastadv.engine.training_data"):
        data = TrainingData(config, Letters(), progress=False)
    assert data.label_map.names == ("mixed", "neg", "pos")
    assert "3 classes, 5 rows: mixed 1, neg 2, pos 2" in caplog.text and "fewer than 10 rows" in caplog.text
    label_of = {sentence_id(Letters().tokenize([text])[0][0]): label for text, label in ROWS}
    for batch in [data.first_batch(), *data.batches(1, 0)]:
        assert [data.label_map.names[i] for i in batch.labels] == [label_of[i] for i in batch.sentence_ids.tolist()]
    assert "classes in label" in describe_plan(config)
    part = write(tmp_path / "part.csv", [("x", "pos"), ("y", "neg")])
    config.data.train = [{"path": str(part), "weight": 3}, {"path": str(source)}]
    both = TrainingData(config, Letters(), progress=False)
    assert both.label_map == data.label_map and both.fingerprint != data.fingerprint
    config.data.label_names = ["pos", "neg", "mixed"]
    renamed = TrainingData(config, Letters(), progress=False)
    assert renamed.label_map.names == ("pos", "neg", "mixed") and renamed.fingerprint != both.fingerprint


def test_training_without_labels_is_as_it_was(config):
    config.data.label_field = None
    data = TrainingData(config, Letters(), progress=False)
    assert data.label_map is None and type(data.text) is TokenizedText and data.first_batch().labels is None


@pytest.mark.parametrize("max_length", [5, 8, 13, 64])
def test_pairs_are_cut_token_by_token_at_the_longer(tiny_encoder, max_length):
    encoder = tiny_encoder(max_length=max_length)
    words = "the film was not very good but this scene and that actor were great".split()
    texts = [(" ".join(words[:i]), " ".join(words[-j:])) for i in (1, 2, 5, 13) for j in (1, 3, 6, 13)]
    room = max_length - 3
    for (first, second), ids, special, types in zip(texts, *encoder.tokenize_pairs(*zip(*texts))):
        whole = [encoder.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (first, second)]
        kept = [[i for i, flag, kind in zip(ids, special, types) if not flag and kind == which] for which in (0, 1)]
        cls, sep = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
        assert ids == [cls, *kept[0], sep, *kept[1], sep] and len(ids) <= max_length
        assert all(text[: len(part)] == part for text, part in zip(whole, kept))
        (a, b), (long_a, long_b) = map(len, kept), map(len, whole)
        # Nothing is cut needlessly, and a text that is cut is not the shorter by more than one token.
        assert a + b == min(room, long_a + long_b)
        assert a == long_a or a + 1 >= b
        assert b == long_b or b + 1 >= a


def test_a_model_of_one_token_type_is_given_no_other(tiny_encoder):
    encoder = tiny_encoder()
    assert encoder.num_token_types == 2
    encoder.hf.config.type_vocab_size = 1
    ids, special, types = encoder.tokenize_pairs(["the film"], ["was good"])
    assert types == [[0] * 7] and sum(special[0]) == 3 and len(ids[0]) == 7


def test_pairs_need_room(tiny_encoder):
    with pytest.raises(UserError, match="encoder.max_length = 4: expected at least 5 for pairs of texts"):
        tiny_encoder(max_length=4).tokenize_pairs(["a"], ["b"])
