"""Classes of a model by the names that data have for them: by name, by case, by number, or refused in one line."""

import pytest
from transformers import BertConfig

from fastadv.data.labelled.find import read_labelled
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.labelled.matching import matched
from fastadv.errors import UserError

NLI = ("entailment", "neutral", "contradiction")


@pytest.mark.parametrize(
    "model, data, is_ordered, names, how",
    [
        (NLI, NLI[::-1], True, NLI, None),
        (NLI, NLI[:2], False, NLI, None),
        (("NEGATIVE", "POSITIVE"), ("negative", "positive"), False, ("negative", "positive"), "case"),
        (("Positive", "Negative"), ("negative", "positive"), False, ("positive", "negative"), "case"),
        (("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), NLI, True, NLI[::-1], "case"),
        (("LABEL_0", "LABEL_1"), ("negative", "positive"), True, ("negative", "positive"), "number"),
        (("LABEL_0", "LABEL_1", "LABEL_2"), NLI, True, NLI, "number"),
        (("LABEL_0", "LABEL_1"), ("0", "1"), False, ("0", "1"), "number"),
        (("LABEL_1", "LABEL_0"), ("0", "1"), False, ("1", "0"), "number"),
        (("LABEL_0", "LABEL_1", "LABEL_2"), ("0", "2"), False, ("0", "LABEL_1", "2"), "number"),
        (("0", "1"), ("neg", "pos"), True, ("neg", "pos"), "number"),
        (("neg", "pos"), ("0", "1"), False, ("0", "1"), "number"),
    ],
)
def test_what_is_matched(model, data, is_ordered, names, how):
    found, said = matched(LabelMap(model), LabelMap(data), data, is_ordered)
    assert found.names == names
    assert said is None if how is None else said.startswith(f"classes matched by {how}: ")
    assert all(f"{old} = {new}" in said for old, new in zip(model, names) if old != new)


@pytest.mark.parametrize(
    "model, data, is_ordered",
    [
        # In the order of their letters alone: nobody said that it is the model's.
        (("LABEL_0", "LABEL_1"), ("negative", "positive"), False),
        (("LABEL_0", "LABEL_1", "LABEL_2"), ("negative", "positive"), True),
        (("LABEL_0", "LABEL_1"), NLI, True),
        # From 1, as the published files of Yelp and AG News count.
        (("LABEL_0", "LABEL_1"), ("1", "2"), False),
        (("a", "A"), ("A", "B"), False),
        (("a", "b"), ("x", "y"), True),
        (("POS", "NEG"), ("positive", "negative"), False),
        (("LABEL_0", "LABEL_1"), ("-1", "1"), False),
    ],
)
def test_a_guess_is_refused(model, data, is_ordered):
    with pytest.raises(UserError, match="is no class of the model; its classes are .*--label_names") as caught:
        matched(LabelMap(model), LabelMap(data), data, is_ordered)
    assert "\n" not in str(caught.value)


def test_only_labels_that_occur_must_be_known():
    model, data = LabelMap(("NEG", "POS")), LabelMap(("neg", "neutral", "pos"))
    assert matched(model, data, ("neg", "pos"), True)[0].names == ("neg", "pos")
    with pytest.raises(UserError, match="'neg'.*its classes are 'NEG', 'POS'"):
        matched(model, data, ("neg", "neutral"), True)


def test_labelled_texts_say_whether_they_have_an_order(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("text,label\na,neg\nb,pos\n")
    (tmp_path / "b.csv").write_text("text,label\na,0\nb,1\n")
    names, numbers = read_labelled(tmp_path / "a.csv"), read_labelled(tmp_path / "b.csv")
    theirs = LabelMap(("LABEL_0", "LABEL_1"))
    assert numbers.classes_of(theirs).names == ("0", "1")
    with pytest.raises(UserError, match="the label 'neg' of the data is no class"):
        names.classes_of(theirs)
    with caplog.at_level("INFO", logger="fastadv.data"):
        numbers.classes_of(theirs, "their/model")
    assert "their/model: classes matched by number: LABEL_0 = 0, LABEL_1 = 1" in caplog.text


@pytest.mark.parametrize(
    "id2label, message",
    [
        ({1: "a", 2: "b"}, r"numbers its classes 1, 2 \(id2label\): expected 0 to 1; --label_names"),
        ({0: "a", 1: "b", 2: "a"}, "has two classes called 'a': 'a', 'b', 'a'; expected names that differ"),
        ({0: "a"}, r"has 1 class \(num_labels\): expected a classifier, with two or more"),
    ],
)
def test_classes_that_are_not_right_are_one_line(id2label, message):
    with pytest.raises(UserError, match=message) as caught:
        LabelMap.from_config(BertConfig(id2label=id2label))
    assert "\n" not in str(caught.value)


def test_given_names_stand_in_for_those_of_the_model():
    config = BertConfig(id2label={1: "a", 2: "b"})
    assert LabelMap.from_config(config, ("x", "y")).names == ("x", "y")
    assert LabelMap.from_config(BertConfig(id2label={0: "a", 1: "a"}), ("x", "y")).names == ("x", "y")
    with pytest.raises(UserError, match="3 names of classes, 'x', 'y', 'z': the model has 2"):
        LabelMap.from_config(config, ("x", "y", "z"))
    with pytest.raises(UserError, match="two classes called 'x'"):
        LabelMap.from_config(config, ("x", "x"))
    # Numbers for names, as some write them.
    assert LabelMap.from_config(BertConfig(id2label={0: 0, 1: 1})).names == ("0", "1")
