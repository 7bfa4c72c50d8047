"""Labelled data sets: by columns, by the names the Hub has for them, and SentEval's folders."""

import datasets
import pytest

from fastadv.data.labelled.find import open_labelled, read_labelled
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.sources.known_datasets import KNOWN, known_dataset
from fastadv.data.sources.line_report import LineReport
from fastadv.errors import UserError

NLI = ["entailment", "neutral", "contradiction"]


def save(folder, columns, names=None, label="label", split=None):
    """A saved data set; ``names``: those of a ClassLabel in column ``label``."""
    rows = datasets.Dataset.from_dict(columns)
    if names is not None:
        rows = rows.cast_column(label, datasets.ClassLabel(names=names))
    saved = rows if split is None else datasets.DatasetDict({split: rows})
    saved.save_to_disk(str(folder))
    return folder


def rows_of(source, **options):
    report = LineReport()
    return [(row.texts, row.label) for row in open_labelled(source, **options).rows(report)], report


def test_a_class_label_gives_names_and_their_order(tmp_path):
    folder = save(tmp_path / "mine", {"text": ["a", "b", "c"], "label": [1, 0, 1]}, ["pos", "neg", "none"])
    texts = read_labelled(folder)
    assert texts.label_map.names == ("pos", "neg", "none") and texts.labels == [1, 0, 1]


def test_text_and_numbers_without_a_class_label(tmp_path):
    by_number = save(tmp_path / "numbers", {"body": ["a", "b"], "stars": [5, 1]}, split="held")
    texts = read_labelled(by_number, field="body", label_field="stars", split="held")
    assert texts.label_map.names == ("1", "5") and texts.labels == [1, 0]
    by_name = save(tmp_path / "names", {"text": ["a", "b"], "label": ["x", " y"]})
    assert read_labelled(by_name).label_map.names == ("x", "y")


def test_a_folder_of_parquet_keeps_its_class_names(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    rows = rows.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    (tmp_path / "clone" / "data").mkdir(parents=True)
    rows.to_parquet(str(tmp_path / "clone" / "data" / "train-00000.parquet"))
    assert rows_of(tmp_path / "clone")[0] == [(("a",), "no"), (("b",), "yes")]


@pytest.mark.parametrize(
    "columns, names, options, message",
    [
        ({"text": ["a"], "label": [0.5]}, None, {}, "column 'label' of mine.train. holds float64; expected classes"),
        ({"text": ["a"], "label": [[0]]}, None, {}, "column 'label' of mine.train. holds .*; expected classes"),
        ({"text": ["a", None], "label": [0, 1]}, None, {}, "mine.train. row 1, column text: missing"),
        ({"text": ["a", " "], "label": [0, 1]}, None, {}, "mine.train. row 1, column text: blank"),
        ({"text": ["a", "b"], "label": [0, None]}, None, {}, "mine.train. row 1, column label: missing"),
        ({"text": ["a", "b"], "label": ["x", ""]}, None, {}, "mine.train. row 1, column label: blank"),
        ({"text": ["a", "b"], "label": ["x", "1.5"]}, None, {}, "mine.train. row 1, column label: 1.5 is no class"),
        ({"text": ["a", "b"], "label": [0, -1]}, ["n", "y"], {}, r"mine.train. row 1, column label: no label \(-1\)"),
        ({"text": ["a"], "label": [0]}, ["n", "y"], {"field": "Texts"}, "columns are text, label; nearest is 'text'"),
        ({"text": [], "label": []}, ["n", "y"], {}, "the dataset saved at .*mine cannot be read"),
    ],
)
def test_faults_of_datasets_are_one_line(tmp_path, columns, names, options, message):
    folder = save(tmp_path / "mine", columns, names)
    with pytest.raises(UserError, match=message) as caught:
        read_labelled(folder, **options)
    assert "\n" not in str(caught.value)


def test_known_names_bring_columns_classes_and_splits(tmp_path):
    pairs = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [2, -1, 0]}
    rows, report = rows_of(save(tmp_path / "snli", pairs, NLI, split="validation"), split="dev")
    assert rows == [(("a", "d"), "contradiction"), (("c", "f"), "entailment")]
    assert (
        report.num_unlabelled == 1
        and "1 rows of labels that are left out (first: snli[validation] row 1)" in report.summary()
    )
    # Plain numbers stand for the same classes.
    del pairs["label"]
    numbers = {**pairs, "label": [2, 1, 0]}
    assert [label for _, label in rows_of(save(tmp_path / "glue" / "mnli", numbers))[0]] == NLI[::-1]
    columns = {"sentence": ["a", "b"], "label": [0, 1], "idx": [0, 1]}
    texts = read_labelled(save(tmp_path / "sst2", columns))
    assert texts.label_map.names == ("negative", "positive") and texts.first == ["a", "b"]
    trec = {"text": ["a"], "coarse_label": [3], "fine_label": [12]}
    assert rows_of(save(tmp_path / "trec", trec))[0] == [(("a",), "HUM")]
    assert rows_of(tmp_path / "trec", label_field="fine_label")[0] == [(("a",), "12")]
    yahoo = {"question_title": ["q ", "r"], "question_content": ["", "s"], "best_answer": ["t", None], "topic": [0, 9]}
    rows, _ = rows_of(save(tmp_path / "yahoo_answers_topics", yahoo))
    assert rows == [(("q t",), "Society & Culture"), (("r s",), "Politics & Government")]


def test_rounds_of_anli_are_one_split(tmp_path):
    rounds = {}
    for i in (1, 2, 3):
        columns = {"premise": [f"p{i}"], "hypothesis": ["h"], "label": [i - 1]}
        rounds[f"dev_r{i}"] = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict(rounds).save_to_disk(str(tmp_path / "anli"))
    assert [(texts[0], label) for texts, label in rows_of(tmp_path / "anli", split="dev")[0]] == [
        ("p1", "entailment"),
        ("p2", "neutral"),
        ("p3", "contradiction"),
    ]
    assert len(rows_of(tmp_path / "anli", split="dev_r2")[0]) == 1


def test_what_the_user_names_comes_before_what_is_known(tmp_path):
    columns = {"premise": ["a"], "hypothesis": ["b"], "label": [0], "text": ["c"]}
    folder = save(tmp_path / "snli", columns, NLI)
    assert rows_of(folder, field="hypothesis")[0] == [(("b",), "entailment")]
    assert rows_of(folder, field="hypothesis", pair_field="premise")[0] == [(("b", "a"), "entailment")]
    # A column of the default name is the one that is meant.
    assert rows_of(folder)[0] == [(("c",), "entailment")]


def test_names_are_known_with_and_without_owner(tmp_path):
    assert known_dataset("nyu-mll/glue:sst2") is known_dataset("glue:sst2") is KNOWN["glue:sst2"]
    assert known_dataset("fancyzhx/ag_news") is known_dataset("AG-News") is KNOWN["ag_news"]
    assert known_dataset("someone/unknown") is None and known_dataset("glue") is None
    assert all(len(known.names) != 1 for known in KNOWN.values())
    assert all(len(known.texts) <= 2 or known.is_joined for known in KNOWN.values())


def test_scores_are_refused_by_name():
    with pytest.raises(UserError, match="^glue:stsb has scores, not classes"):
        open_labelled("glue:stsb")


def test_a_known_name_offline_is_one_line(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="no file or folder 'no-owner/snli'.*split 'validation'") as caught:
        open_labelled("no-owner/snli", split="dev")
    assert "\n" not in str(caught.value)


CLASS_FILES = {
    "MR": {"rt-polarity.neg": "negative", "rt-polarity.pos": "positive"},
    "CR": {"custrev.neg": "negative", "custrev.pos": "positive"},
    "SUBJ": {"subj.objective": "objective", "subj.subjective": "subjective"},
    "MPQA": {"mpqa.neg": "negative", "mpqa.pos": "positive"},
}


@pytest.mark.parametrize("task", CLASS_FILES)
def test_senteval_sets_of_a_file_a_class(tmp_path, task):
    expected = []
    for file, label in CLASS_FILES[task].items():
        (tmp_path / file).write_bytes(f"{file} caf".encode() + b"\xe9 \n\n" + "né .\n".encode())
        # Latin-1 where it is no UTF-8; an empty line as SentEval encodes one.
        expected += [((text,), label) for text in (f"{file} café", ".", "né .")]
    assert rows_of(tmp_path)[0] == expected
    assert read_labelled(tmp_path).label_map.names == tuple(CLASS_FILES[task].values())
    with pytest.raises(UserError, match=f"{task}. has no split 'test'; its splits are train"):
        open_labelled(tmp_path, split="test")
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(UserError, match=f"is not there; SentEval's {task}"):
        open_labelled(tmp_path)


def test_senteval_sst2(tmp_path):
    (tmp_path / "binary").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "binary" / f"sentiment-{split}").write_text(f"good {split} \t1\nbad\t0\n")
    for folder in (tmp_path, tmp_path / "binary"):
        for split in ("train", "dev", "test", "validation"):
            said = "dev" if split == "validation" else split
            assert rows_of(folder, split=split)[0] == [((f"good {said}",), "positive"), (("bad",), "negative")]


def test_senteval_trec(tmp_path):
    (tmp_path / "train_5500.label").write_bytes(b"NUM:dist How far is it , caf\xe9 ?\nHUM:ind Who ?\n")
    (tmp_path / "TREC_10.label").write_text("LOC:city Where ?\n")
    assert rows_of(tmp_path)[0] == [(("How far is it , café ?",), "NUM"), (("Who ?",), "HUM")]
    texts = read_labelled(tmp_path, split="test")
    assert texts.label_map.names == ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM") and texts.labels == [4]


def test_senteval_mrpc(tmp_path):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    (tmp_path / "msr_paraphrase_train.txt").write_text(head + '1\t7\t8\tHe said "a .\tShe "b\r\n0\t7\t9\tc\td\r\n')
    (tmp_path / "msr_paraphrase_test.txt").write_text(head + "0\t1\t2\tx\ty\n")
    rows, report = rows_of(tmp_path)
    assert rows == [(('He said "a .', 'She "b'), "equivalent"), (("c", "d"), "not_equivalent")]
    assert report.num_lines == report.num_sentences == 2
    assert read_labelled(tmp_path, split="test").labels == [0]
    # Their columns may be named, in SentEval's order only.
    assert len(rows_of(tmp_path, field="sentence1", pair_field="sentence2")[0]) == 2
    with pytest.raises(UserError, match="has the columns sentence1, sentence2, label, got 'premise', 'label'"):
        open_labelled(tmp_path, field="premise")


@pytest.mark.parametrize(
    "file, line, message",
    [
        ("sentiment-train", "good\n", "sentiment-train:2: 1 tab-separated cells; expected 2"),
        (
            "sentiment-train",
            "good\t2\n",
            "sentiment-train:2, column label: the label '2' is unknown; known are '0', '1'",
        ),
        ("sentiment-train", "\t1\n", "sentiment-train:2, column text: blank"),
        (
            "train_5500.label",
            "NAME:x what\n",
            "train_5500.label:2, column label: the label 'NAME' is unknown; known are",
        ),
        ("train_5500.label", "NUM:x\n", "train_5500.label:2, column text: blank"),
        ("msr_paraphrase_train.txt", "1\t2\t3\tx\t \n", "msr_paraphrase_train.txt:2, column sentence2: blank"),
        ("msr_paraphrase_train.txt", "1\tx\ty\n", "msr_paraphrase_train.txt:2: 3 tab-separated cells; expected 5"),
        ("msr_paraphrase_train.txt", "", "msr_paraphrase_train.txt holds no labelled row"),
    ],
)
def test_faults_of_senteval_are_one_line(tmp_path, file, line, message):
    (tmp_path / file).write_text("\n" + line)
    with pytest.raises(UserError) as caught:
        read_labelled(tmp_path)
    assert message in str(caught.value) and str(tmp_path / file) in str(caught.value)


def test_a_model_of_three_classes_reads_a_set_of_two(tmp_path):
    folder = save(tmp_path / "mine", {"text": ["a", "b"], "label": [1, 0]}, ["pos", "neg"])
    assert read_labelled(folder, label_map=LabelMap(("neg", "neutral", "pos"))).labels == [0, 2]
