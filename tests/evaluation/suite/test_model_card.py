"""Scores in a model's card: written twice they are there once, what others wrote stays, a bad card stays as it was."""

import copy
import os

import pytest
import yaml
from huggingface_hub import ModelCard

from fastadv.encoder import Encoder
from fastadv.errors import UserError
from fastadv.evaluation.suite.model_card import BEGIN, END, check_cards, write_cards, write_scores_into_card
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.schema import ABSOLUTE, FEATURES, OF_RMS, SIMILARITY, Quantity, System
from tests.report.made import evaluation_record

OTHERS = """---
license: mit
tags:
- mine
model-index:
- name: somebody's
  results:
  - task:
      type: text-classification
    dataset:
      name: IMDB
      type: imdb
    metrics:
    - type: accuracy
      value: 0.9
---
# A model

Words of its owner: ümlaut, | a bar.
"""


ATTACKED = Quantity("embeddings", "a|b.csv", "accuracy", 0.5, "%", radius_unit=ABSOLUTE)


@pytest.fixture
def model(tmp_path, tiny_bert_dir):
    Encoder.from_pretrained(str(tiny_bert_dir), pooling="mean").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def evaluation_of(model, value=71.25, attacked=ATTACKED):
    sts = Quantity("sts", "STS-B", "spearman", task=SIMILARITY)
    measured = [
        Measured(sts, str(model), value, 70.0, 72.5, 100),
        Measured(sts._replace(set="STS12"), str(model), None, why="no file"),
        Measured(attacked, str(model), 12.5, 10.0, 15.0, 40),
    ]
    found = evaluation_record([System("one", (str(model),))], measured, {"sts": "done", "embeddings": "done"})
    for part in found["parts"].values():
        part["protocol"]["data"] = {"path": "senteval", "sha256": "0" * 64, "num_rows": 100}
    found["models"][0]["fingerprint"] = "0123456789abcdef0123"
    return {**found, "versions": {"fastadv": "0.1.0", "absent": None}}


def test_scores_are_in_the_table_and_in_the_metadata(model):
    before = (model / "README.md").read_text(encoding="utf-8")
    (path,) = write_cards(evaluation_of(model)).written
    card = ModelCard.load(path)
    text = path.read_text(encoding="utf-8")
    assert "| sts, STS-B: spearman, x 100 | 71.25 | [70, 72.5] | 100 |" in text
    assert "| embeddings, a\\|b.csv: accuracy, ε 0.5 (absolute), % | 12.5 | [10, 15] | 40 |" in text
    assert "Not measured: sts, STS12." in text and "fastadv 0.1.0" in text and "absent" not in text
    results = {result.metric_type: result for result in card.data.eval_results}
    assert results["spearman"].metric_value == 71.25 and results["spearman"].dataset_name == "STS-B (sts)"
    assert results["accuracy"].metric_args["epsilon"] == 0.5
    assert results["accuracy"].metric_args["radius"] == "ε 0.5 (absolute)"
    assert "one: encoder, mean pooling, cut to 64 tokens, fingerprint 0123456789abcdef." in text
    assert results["spearman"].metric_args["interval_95"] == [70.0, 72.5]
    assert card.data.model_name == "model" and card.data.library_name == "sentence-transformers"
    # All that the card said is there still.
    assert before.split("---", 2)[2].strip() in text


def test_written_again_they_are_there_once(model):
    path = write_scores_into_card(model, evaluation_of(model))
    once = path.read_bytes()
    assert write_scores_into_card(str(model), evaluation_of(model)).read_bytes() == once
    attacked = ATTACKED._replace(metric="retrieval@1", task=FEATURES, radius_unit=OF_RMS)
    write_scores_into_card(model, evaluation_of(model, 80.5, attacked))
    text = path.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1 and "80.5" in text and "71.25" not in text
    tasks = {result.metric_type: result.task_type for result in ModelCard.load(path).data.eval_results}
    assert tasks == {"retrieval-1": "feature-extraction", "spearman": "semantic-similarity"}
    assert "retrieval@1, ε 0.5·RMS(X), %" in text


@pytest.mark.parametrize("after", ["", "\nMore words after the scores.\n"])
def test_what_others_wrote_stays(model, after):
    path = model / "README.md"
    path.write_text(f"{OTHERS}\n{BEGIN}\nold scores\n{END}\n{after}", encoding="utf-8")
    for _ in range(2):
        write_scores_into_card(model, evaluation_of(model))
    text, card = path.read_text(encoding="utf-8"), ModelCard.load(path)
    assert "Words of its owner: ümlaut, | a bar." in text and "old scores" not in text and after in text
    assert card.data.license == "mit" and card.data.tags == ["mine"] and card.data.model_name == "somebody's"
    assert sorted(result.dataset_name for result in card.data.eval_results) == [
        "IMDB",
        "STS-B (sts)",
        "a|b.csv (embeddings)",
    ]


@pytest.mark.parametrize("content", [None, "", "No metadata at all.\n"])
def test_a_card_that_is_empty_or_not_there_is_made(model, content):
    path = model / "README.md"
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="utf-8")
    write_scores_into_card(model, evaluation_of(model))
    once = path.read_text(encoding="utf-8")
    assert (content or "") in once and len(ModelCard.load(path).data.eval_results) == 2
    assert write_scores_into_card(model, evaluation_of(model)).read_text(encoding="utf-8") == once


@pytest.mark.parametrize(
    "content,words",
    [
        (f"# A\n{BEGIN}\n", "marks"),
        (f"# A\n{END}\n{BEGIN}\n", "marks"),
        (f"{BEGIN}{END}{BEGIN}{END}", "marks"),
        ("---\na: [1\n---\n# A\n", "metadata"),
        ("---\n- a list\n---\n# A\n", "metadata"),
        ("---\nmodel-index: 3\n---\n# A\n", "metadata"),
    ],
)
def test_a_card_that_is_not_right_stays_as_it_was(model, content, words):
    path = model / "README.md"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        write_scores_into_card(model, evaluation_of(model))
    assert path.read_text(encoding="utf-8") == content


def test_a_full_disk_leaves_the_card_whole(model, monkeypatch):
    before = (model / "README.md").read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError):
        write_scores_into_card(model, evaluation_of(model))
    assert (model / "README.md").read_bytes() == before
    assert sorted(path.name for path in model.iterdir() if path.name.endswith(".partial")) == []


def test_another_model_s_scores_are_refused(model, tmp_path):
    evaluation = copy.deepcopy(evaluation_of(tmp_path / "other"))
    with pytest.raises(UserError, match="no number of the model"):
        write_scores_into_card(model, evaluation)
    # No folder, such as a model of the demo.
    cards = write_cards(evaluation)
    assert cards.written == cards.problems == [] and "is no folder" in cards.left[0]


def test_a_bad_card_costs_no_other_card_its_scores(model, tmp_path):
    evaluation = evaluation_of(model)
    for name, content in (("bad", "---\na: [1\n---\n"), ("none", "# Its own\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(content)
        evaluation["systems"].insert(0, {"name": name, "models": [str(tmp_path / name)]})
    evaluation["numbers"] += [{**evaluation["numbers"][0], "model": str(tmp_path / "bad")}]
    evaluation["numbers"] += [{**evaluation["numbers"][0], "model": str(tmp_path / "none"), "value": None}]
    cards = write_cards(evaluation)
    assert cards.written == [model / "README.md"]
    assert len(cards.problems) == 1 and "bad/README.md: its metadata cannot be read" in cards.problems[0]
    assert cards.left == [f"{tmp_path / 'none'} has no number; its card stays as it is"]
    assert (tmp_path / "none/README.md").read_text() == "# Its own\n"
    checked = check_cards([str(tmp_path / name) for name in ("bad", "none", "model", "nowhere")])
    assert checked == cards.problems


TWO_ENTRIES = """---
# of the owner
license: mit
model-index:
- name: one
  results:
  - task: {type: text-classification}
    dataset: {name: A, type: a}
    metrics: [{type: accuracy, value: 0.9, verified: true, extra: kept}]
- name: two
  results:
  - task: {type: text-classification}
    dataset: {name: B, type: b}
    metrics: [{type: accuracy, value: 0.8}]
tags: [mine, "quoted"]
made: 2024-05-06
---
# T
"""


def test_entries_and_values_of_others_stay(model):
    path = model / "README.md"
    path.write_text(TWO_ENTRIES, encoding="utf-8")
    others = yaml.safe_load(TWO_ENTRIES.split("---")[1])
    for value in (71.25, 1e-05):
        write_scores_into_card(model, evaluation_of(model, value))
        head, text = path.read_text(encoding="utf-8").removeprefix("---\n").split("\n---\n", 1)
        found = yaml.safe_load(head)
        *theirs, ours = found["model-index"]
        assert {**found, "model-index": theirs} == others and list(found) == list(others) and ours["name"] == "model"
        assert ours["results"][0]["metrics"][0]["value"] == value and text.startswith("# T\n")
