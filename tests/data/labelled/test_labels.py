"""Classes by name and number: the order of names, saving with a model, and sources that must agree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv.data.labelled.labels import (
    MAX_CLASSES,
    FoundLabels,
    LabelMap,
    agree_on_labels,
    describe_classes,
    why_no_class,
)
from fastadv.errors import UserError

names = st.text(min_size=1, max_size=6).map(str.strip).filter(lambda name: name and why_no_class(name) is None)
name_sets = st.sets(names, min_size=1, max_size=12)
laws = settings(derandomize=True, deadline=None, max_examples=60)


def found(source="", given=None, **files):
    """The labels of a source: file -> its rows' labels, in order."""
    labels = FoundLabels("label", given, source=source)
    for file, rows in files.items():
        for row, name in enumerate(rows):
            labels.add(name, f"{file}.csv", f"{file}.csv row {row + 2}")
    return labels


@laws
@given(name_sets, st.randoms(use_true_random=False))
def test_the_map_is_the_sets_whatever_the_order_of_rows(distinct, random):
    shuffled = [*distinct, *distinct]
    random.shuffle(shuffled)
    label_map = LabelMap.in_order(shuffled)
    assert label_map == LabelMap.in_order(distinct)
    assert set(label_map.names) == distinct and len(label_map) == len(distinct)
    assert sorted(label_map.id2label) == list(range(len(distinct)))
    assert all(label_map.label2id[label_map.id2label[i]] == i for i in label_map.id2label)
    assert all(label_map.id2label[label_map.label2id[name]] == name for name in distinct)


@laws
@given(st.sets(st.integers(-50, 10**20), min_size=1, max_size=12))
def test_whole_numbers_are_in_the_order_of_numbers(numbers):
    assert LabelMap.in_order(map(str, numbers)).names == tuple(map(str, sorted(numbers)))


def test_other_names_are_in_the_order_of_code_points():
    assert LabelMap.in_order(["b", "a", "B", "é"]).names == ("B", "a", "b", "é")
    # One that is no number, or spelt as none is, makes text of all.
    assert LabelMap.in_order(["10", "9", "x"]).names == ("10", "9", "x")
    assert LabelMap.in_order(["10", "09"]).names == ("09", "10")
    assert LabelMap.in_order(["10", "9"]).names == ("9", "10")


def test_the_map_goes_through_a_models_configuration(tmp_path):
    from transformers import BertConfig

    label_map = LabelMap(("negative", "neutral", "positive", "ünklar"))
    config = BertConfig()
    label_map.apply_to(config)
    config.save_pretrained(tmp_path)
    read = BertConfig.from_pretrained(tmp_path)
    assert read.num_labels == 4 and read.id2label == label_map.id2label and read.label2id == label_map.label2id
    assert LabelMap.from_config(read) == label_map


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_a_model_without_one_class_a_text_is_refused(problem):
    from transformers import BertConfig

    with pytest.raises(UserError, match=f"made for {problem} .* expected single_label_classification"):
        LabelMap.from_config(BertConfig(num_labels=3, problem_type=problem), ["a", "b", "c"])


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_classes_need_names_each_its_own(names):
    with pytest.raises(ValueError, match="classes need names"):
        LabelMap(names)


@pytest.mark.parametrize(
    "names, is_class",
    [
        (["0.5", "1.0", "1.", ".5", "-3.25", "1e-3", "2E5", "+inf", "", "nan", "NaN"], False),
        (["0", "-1", "12", "1.2.3", "a.5", "5 stars", "e", "None", "inf", "1 e 3"], True),
    ],
)
def test_what_is_a_class(names, is_class):
    assert [name for name in names if (why_no_class(name) is None) != is_class] == []


def test_labels_are_numbered_as_they_are_found():
    labels = FoundLabels("label")
    assert [labels.add(name, "a", "a row 0") for name in "babcb"] == [0, 1, 0, 2, 0]
    assert labels.counts == {"b": 3, "a": 1, "c": 1}
    assert labels.label_map.ids_of(labels) == [1, 0, 2]
    read = FoundLabels.from_json(labels.to_json(), "")
    assert read.counts == labels.counts and read.files == labels.files and read.label_map == labels.label_map


def test_a_data_sets_own_order_stands():
    labels = found(given=["pos", "neg", "none"], a=["neg", "pos"])
    assert labels.label_map.names == ("pos", "neg", "none")
    assert labels.counts == {"pos": 1, "neg": 1, "none": 0}
    assert agree_on_labels([labels]).names == ("pos", "neg", "none")
    # Tables beside it take its order.
    assert agree_on_labels([found(x=["neg", "pos", "none"]), labels]).names == ("pos", "neg", "none")


def test_more_labels_than_classes_are_another_column():
    labels = FoundLabels("id")
    for i in range(MAX_CLASSES):
        labels.add(str(i), "a.csv", f"a.csv row {i}")
    labels.add("0", "a.csv", "a.csv row 5000")
    with pytest.raises(UserError, match="a.csv row 6000, column id: more than 1,000 different labels"):
        labels.add("one more", "a.csv", "a.csv row 6000")


def test_unknown_labels_are_named_with_their_place_and_the_known():
    with pytest.raises(UserError) as caught:
        LabelMap(("neg", "pos")).ids_of(found(a=["pos", "neg", "neutral", "neutral"]))
    assert str(caught.value) == "a.csv row 4, column label: the label 'neutral' is unknown; known are 'neg', 'pos'"


def test_a_data_sets_name_without_rows_need_not_be_known():
    assert LabelMap(("neg", "pos")).ids_of(found(given=["pos", "none", "neg"], a=["neg", "pos"])) == [1, -1, 0]


def test_one_file_has_all_labels():
    whole, part = found("w", w=["a", "b", "c"]), found("p", p=["c", "a"])
    assert agree_on_labels([part, whole]).names == agree_on_labels([whole, part]).names == ("a", "b", "c")
    for first, second in ((["a", "b", "c"], ["a", "d"]), (["1", "0"], ["pos", "neg"]), (["a"], ["b"])):
        with pytest.raises(
            UserError, match="row . *, column label: the label .* not among those of .*data.label_names"
        ):
            agree_on_labels([found(x=first, y=second)])
    with pytest.raises(UserError) as caught:
        agree_on_labels([found(x=["a", "b", "c"], y=["a", "d"])])
    assert str(caught.value) == (
        "y.csv row 3, column label: the label 'd' is not among those of x.csv ('a', 'b', 'c'); expected files with the "
        "same labels, or all names in data.label_names"
    )


def test_given_names_settle_everything():
    labels = found(x=["b", "B"], y=["a"])
    assert agree_on_labels([labels], ["b", "a", "B"]).ids_of(labels) == [0, 2, 1]
    with pytest.raises(UserError, match="'a' is unknown; known are 'b', 'B'"):
        agree_on_labels([labels], ["b", "B"])


def test_labels_that_differ_in_case_alone():
    with pytest.raises(UserError) as caught:
        agree_on_labels([found(x=["neg", "pos", "Neg"])])
    message = str(caught.value)
    assert "'Neg' (x.csv row 4)" in message and "'neg' (x.csv row 2)" in message and "case alone" in message


@pytest.mark.parametrize("given", [None, ["a", "b"]])
def test_rows_of_one_class_cannot_be_trained_on(given):
    with pytest.raises(UserError) as caught:
        agree_on_labels([found(given=given, x=["a", "a"])])
    said = "all 2 rows have the label 'a' (first: x.csv row 2, column label); expected two classes"
    assert str(caught.value) == said


def test_counts_are_said_on_a_line_and_doubts_beside():
    summary, warnings = describe_classes({"a": 1000, "b": 60})
    assert summary == "2 classes, 1,060 rows: a 1,000, b 60" and warnings == []
    assert describe_classes({"a": 1200, "b": 60})[1] == []
    assert "more than 20 to 1" in describe_classes({"a": 1201, "b": 60})[1][0]
    assert describe_classes({"a": 10, "b": 10})[1] == []
    few, skewed = describe_classes({"a": 1000, "b": 9, "c": 0})[1]
    assert few == "classes of fewer than 10 rows: 'b' (9), 'c' (0)"
    assert skewed == "the largest class, 'a', has 1,000 rows and the smallest, 'c', 0: more than 20 to 1"
    summary, warnings = describe_classes({f"class{i}": 2 for i in range(500)})
    assert len(summary) < 400 and len(warnings[0]) < 400 and "and 480 more" in warnings[0]
