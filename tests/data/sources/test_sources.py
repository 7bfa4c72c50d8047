"""What a source may name, and what is said when it names nothing."""

import os

import pytest

from fastadv.data.sources.find import has_splits, open_source
from fastadv.data.sources.line_report import LineReport
from fastadv.data.text import iterate_sentences
from fastadv.errors import UserError


@pytest.fixture
def saved_dataset(tmp_path):
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["one", None, " ", "two\nlines", "x" * 50], "label": [0, 1, 0, 1, 0]})
    folder = tmp_path / "saved"
    rows.save_to_disk(str(folder))
    return folder


def test_a_folder_is_read_by_name_and_lists_what_it_ignores(tmp_path):
    (tmp_path / "b.txt").write_text("three\n")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}')
    (tmp_path / "C.TXT").write_text("zero\n\n")
    (tmp_path / "notes.md").write_text("not read")
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    report = LineReport()
    assert list(iterate_sentences(tmp_path, report=report)) == ["zero", "one", "two", "three"]
    assert report.ignored_files == ["folder.txt", "notes.md", "pipe.txt"]
    assert "3 other files ignored (folder.txt, notes.md, pipe.txt)" in report.summary()
    assert report.first["blank"] == "C.TXT:2"


def test_a_folder_whose_names_say_splits_is_read_by_split(tmp_path):
    names = ("train-1.txt", "train-2.jsonl", "dev.tsv", "my_test.csv", "other.txt", "test train.txt", "._train.txt")
    for name in names:
        (tmp_path / name).write_text('{"text": "two"}' if name.endswith("l") else f"text\n{name}\n")
    read = {}
    for split in ("train", "dev", "validation", "test", "test+dev"):
        report = LineReport()
        read[split] = list(iterate_sentences(tmp_path, split=split, report=report))
        assert len(report.ignored_files) == len(names) - (2 if split in ("train", "test+dev") else 1)
    both = ["dev.tsv", "my_test.csv"]
    assert read == {
        "train": ["text", "train-1.txt", "two"],
        "dev": both[:1],
        "validation": both[:1],
        "test": both[1:],
        "test+dev": both,
    }
    with pytest.raises(UserError, match=r"no file of split 'all'; .* validation: dev.tsv; test: my_test.csv; train: "):
        open_source(tmp_path, split="all")
    assert has_splits(str(tmp_path)) and not has_splits(str(tmp_path / "dev.tsv"))
    for name in names[2:4]:
        (tmp_path / name).unlink()
    # One split alone says nothing.
    assert not has_splits(str(tmp_path)) and len(list(iterate_sentences(tmp_path, split="all"))) == 7


def test_lines_do_not_run_on_from_file_to_file(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbftwo")
    assert list(iterate_sentences(tmp_path)) == ["one", "two"]


def make_empty_file(folder):
    (folder / "x.txt").touch()
    return folder / "x.txt"


def make_blank_file(folder):
    (folder / "x.txt").write_bytes(b"\xef\xbb\xbf \n\n")
    return folder / "x.txt"


def make_pipe(folder):
    os.mkfifo(folder / "pipe.txt")
    return folder / "pipe.txt"


def make_folder_of_others(folder):
    (folder / "x.md").write_text("text\none\n")
    return folder


def make_other_suffix(folder):
    (folder / "x.xml").write_text("text\none\n")
    return folder / "x.xml"


def make_dangling_link(folder):
    (folder / "x.txt").symlink_to(folder / "nowhere.txt")
    return folder / "x.txt"


@pytest.mark.parametrize(
    "make, said",
    [
        (make_empty_file, "no sentence"),
        (make_blank_file, "2 blank"),
        (make_pipe, "no regular file"),
        (make_folder_of_others, "no .txt or .jsonl file"),
        (make_other_suffix, "'.xml'"),
        (make_dangling_link, "does not exist"),
        (lambda folder: folder / "missing.txt", "does not exist"),
        (lambda folder: folder / "missing" / "deeper", "does not exist"),
        (lambda folder: folder, "no .txt or .jsonl file"),
        (lambda folder: "missing.txt", "does not exist"),
        (lambda folder: "../missing", "does not exist"),
        (lambda folder: "demo:imdb", "demo:imdb-train, demo:imdb-dev, demo:imdb-test"),
        (lambda folder: "demo:rotten_tomatoes", "demo:imdb-train"),
        (lambda folder: "", "is empty"),
    ],
)
def test_every_mistake_is_one_line_naming_the_source(tmp_path, make, said):
    source = make(tmp_path)
    with pytest.raises(UserError) as caught:
        list(iterate_sentences(source))
    message = str(caught.value)
    assert str(source) in message and said in message and "\n" not in message


def test_a_missing_source_fails_at_the_call(tmp_path):
    with pytest.raises(UserError):
        iterate_sentences(tmp_path / "missing.txt")


def test_a_dataset_that_is_not_there_is_one_line(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="'no-such-owner/no-such-dataset'") as caught:
        iterate_sentences("no-such-owner/no-such-dataset")
    assert "\n" not in str(caught.value)


def test_a_saved_dataset(saved_dataset):
    report = LineReport()
    sentences = list(iterate_sentences(saved_dataset, report=report, max_bytes_per_line=20))
    assert sentences == ["one", "two\nlines"]
    assert (report.num_lines, report.num_blank, report.num_without_field, report.num_too_long) == (5, 1, 1, 1)
    assert report.first["without_field"] == "saved[train] row 1"


def test_a_saved_dataset_keeps_its_selection(tmp_path):
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"]}).select([3, 1])
    datasets.DatasetDict({"held": rows}).save_to_disk(str(tmp_path / "dict"))
    assert list(iterate_sentences(tmp_path / "dict", split="held")) == ["d", "b"]
    with pytest.raises(UserError, match="no split 'train'; its splits are held"):
        iterate_sentences(tmp_path / "dict")


def test_a_column_that_is_not_there_is_named(saved_dataset):
    with pytest.raises(UserError, match="no column 'sentence'; its columns are text, label"):
        iterate_sentences(saved_dataset, field="sentence")


def test_a_folder_of_parquet_files(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "clone"
    (folder / "data").mkdir(parents=True)
    datasets.Dataset.from_dict({"text": ["one", "two"]}).to_parquet(str(folder / "data" / "train-00000.parquet"))
    assert list(iterate_sentences(folder)) == ["one", "two"]
    with pytest.raises(UserError, match="clone is there, but the dataset of that name .* cannot be loaded: .*train"):
        iterate_sentences(folder, split="test")


def test_identity_follows_content_and_kind_not_names(tmp_path):
    def identity(name, data):
        (tmp_path / name).write_bytes(data)
        return open_source(tmp_path / name).identity()[0]

    first = identity("a.txt", b"one\ntwo\n")
    assert identity("b.txt", b"one\ntwo\n") == first
    assert identity("a.jsonl", b"one\ntwo\n") != first
    assert identity("c.txt", b"one\ntwo") != first
    folders = []
    for name, files in (("x", ["one", "\ntwo"]), ("y", ["one\n", "two"]), ("z", ["\ntwo", "one"])):
        (tmp_path / name).mkdir()
        for i, data in enumerate(files):
            (tmp_path / name / f"{i}.txt").write_text(data)
        folders.append(open_source(tmp_path / name).identity()[0])
    assert len(set(folders)) == 3


def test_identity_of_a_dataset_follows_its_column(tmp_path):
    import datasets

    identities = []
    for i, (texts, labels) in enumerate([(["ab", "c"], [0, 0]), (["ab", "c"], [1, 1]), (["a", "bc"], [0, 0])]):
        datasets.Dataset.from_dict({"text": texts, "label": labels}).save_to_disk(str(tmp_path / str(i)))
        identities.append(open_source(tmp_path / str(i)).identity()[0])
    assert identities[0] == identities[1] != identities[2]
