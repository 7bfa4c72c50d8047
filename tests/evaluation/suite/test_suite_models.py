"""``fastadv evaluate all`` where one model is not like the others: they keep theirs, and all is said of the one."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch

from fastadv.config.commands import Encoding
from fastadv.config.embedding_attack import AttackSettings
from fastadv.config.schema import EvaluationConfig
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.before_after import before_after
from fastadv.evaluation.suite.attacks import EmbeddingPart, TextPart
from fastadv.evaluation.suite.models import examine, find_models, systems_of
from fastadv.evaluation.suite.parts import GeometryPart
from fastadv.evaluation.text.attack import TextAttackSettings
from fastadv.evaluation.text.attacked_data import AttackedData
from fastadv.evaluation.text_report.findings import sentence
from tests.evaluation.attacked import TEXTS
from tests.evaluation.evaluated import arguments, evaluation_of, number_of, rows_in, run, write_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert_dir):
    """Beside classifiers: ``other`` of other classes, ``nanhead`` whose logits are NaN, encoders ``mean``, ``cls``,
    ``short`` and ``nanword``, whose vectors are NaN where a text has the word "slow"."""
    folder = write_models(tmp_path_factory.mktemp("suite-models"), tiny_bert_dir)
    encoder = Encoder.from_pretrained(str(tiny_bert_dir))
    head, labels = ClassificationHead(encoder.hidden_size, 2), LabelMap(("yes", "no"))
    Classifier(encoder, head, labels).eval().save_pretrained(folder / "other")
    classifier = Classifier.from_pretrained(str(folder / "b"))
    with torch.no_grad():
        classifier.head.out.weight.fill_(float("nan"))
    classifier.save_pretrained(folder / "nanhead")
    for name in ("mean", "cls"):
        Encoder.from_pretrained(str(tiny_bert_dir), pooling=name).save_pretrained(folder / name)
    Encoder.from_pretrained(str(tiny_bert_dir), pooling="mean", max_length=8).save_pretrained(folder / "short")
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), pooling="mean")
    with torch.no_grad():
        word = encoder.tokenizer.convert_tokens_to_ids("slow")
        encoder.hf.get_input_embeddings().weight[word] = float("nan")
    encoder.save_pretrained(folder / "nanword")
    with (folder / "labelled.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows((f"{text} {word}", word) for text in TEXTS for word in ("good", "bad", "sad"))
    return folder


def model_of(folder, name):
    (model,) = find_models(systems_of([str(folder / name)]), Encoding())
    return examine(model)


def embeddings(folder, **options):
    cfg = EvaluationConfig(
        held_out=str(folder / "held-out.txt"), num_sentences=16, num_probe_sentences=0, num_steps=2, radii=[0.1]
    )
    for name, value in options.items():
        setattr(cfg, name, value)
    return EmbeddingPart(AttackedData(str(folder / "texts.csv")), AttackSettings(epsilons=(0.1,)), cfg)


def texts(folder, max_texts=6, data="labelled.csv"):
    settings = TextAttackSettings("synonym", word_sets=str(folder / "sets.json"))
    labelled = AttackedData(str(folder / data), max_texts=max_texts)
    return TextPart(labelled, settings, "text-synonym", str(folder / "victims"))


def test_classifiers_that_do_not_fit_leave_the_others_theirs(folder, tmp_path, capsys):
    parts = ["--parts", "embeddings", "text"]
    run(arguments(folder, tmp_path / "alone", *parts, models=["a=a"]), capsys)
    given = arguments(folder, tmp_path / "beside", *parts, models=["a=a", "other=other", "nan=nanhead"])
    assert "is no class of the model" in run([*given, "--dry_run"], capsys, status=1).out
    said = run(given, capsys, status=1).err
    assert "nan: the classifier gives logits with NaN or infinity" in said
    evaluation = evaluation_of(tmp_path / "beside")
    good = [row for row in evaluation["numbers"] if row["system"] == "a"]
    assert good == evaluation_of(tmp_path / "alone")["numbers"]
    of_other = [row for row in evaluation["numbers"] if row["system"] == "other"]
    assert len(of_other) == len(good) and all("texts.csv: the label" in row["why"] for row in of_other)
    assert all(row["why"].startswith("other on ") and "its classes are 'yes', 'no'" in row["why"] for row in of_other)
    of_nan = [row for row in evaluation["numbers"] if row["system"] == "nan"]
    assert all(row["value"] is None and "logits with NaN" in row["why"] for row in of_nan)
    assert [model["why"] is None for model in evaluation["models"]] == [True, True, False]


def test_encoders_that_do_not_work_on_the_data_leave_the_others_theirs(folder, tmp_path, capsys):
    parts = ["--parts", "geometry", "adv-sts"]
    run(arguments(folder, tmp_path / "alone", *parts, models=["mean=mean"]), capsys)
    models = ["broken=nanword", "mean=mean", "cls=cls"]
    run(arguments(folder, tmp_path / "beside", *parts, models=models), capsys, status=1)
    evaluation = evaluation_of(tmp_path / "beside")
    assert [r for r in evaluation["numbers"] if r["system"] == "mean"] == evaluation_of(tmp_path / "alone")["numbers"]
    broken = [row for row in evaluation["numbers"] if row["system"] == "broken"]
    assert all(row["value"] is None and "NaN" in row["why"] and "broken" in row["why"] for row in broken)
    pooled = number_of(evaluation, part="adv-sts", metric="fooled", model=str(folder / "cls"))
    assert "cls pools by cls and broken" in pooled["why"] and "by mean" in pooled["why"]
    assert number_of(evaluation, set="STS-B test", metric="uniformity", model=str(folder / "cls"))["value"] is not None


def test_embeddings_of_an_encoder_that_fails_do_not_cost_those_measured(folder, tmp_path, monkeypatch):
    models = [model_of(folder, name) for name in ("nanword", "mean", "short")]
    part, lengths, measure = embeddings(folder), [], before_after.measure

    def noted(encoder, *arguments):
        lengths.append(encoder.max_length)
        return measure(encoder, *arguments)

    monkeypatch.setattr(before_after, "measure", noted)
    found = part.measure(part.read(models), models, tmp_path, progress=False)
    assert list(found.whys) == [models[0].model] and "nanword on " in found.whys[models[0].model]
    assert {one.model for one in found.measured} == {models[1].model, models[2].model}
    # All of them cut texts to the shortest length, where these two are one encoder.
    assert lengths == [8, 8]
    (kept,) = (tmp_path / "parts").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:300])
    again = part.measure(part.read(models), models, tmp_path, progress=False)
    assert [one.value for one in again.measured] == [one.value for one in found.measured]


def test_a_geometry_of_no_model_says_why(folder, tmp_path):
    model, part = model_of(folder, "nanword"), GeometryPart(str(folder / "senteval"))
    with pytest.raises(UserError, match="nanword: the encoder gave vectors with NaN"):
        part.measure(part.read([model]), [model], tmp_path, progress=False)


def test_files_are_those_of_the_evaluation(folder, tmp_path, capsys):
    out, values = tmp_path / "out", {}
    for models, max_pairs in ((["a", "b"], 6), (["a", "c"], 6), (["a", "b"], 8), (["a", "b"], 6)):
        given = arguments(folder, out, "--parts", "adv-sts", "--no_control", "--max_pairs", max_pairs, models=models)
        run(given, capsys)
        evaluation = evaluation_of(out)
        report = json.loads((out / "adv-sts/text-attack.json").read_text(encoding="utf-8"))
        assert [model["name"] for model in report["models"]] == models
        for model in models:
            rows = rows_in(out / f"adv-sts/rows-{model}.csv")
            fooled = number_of(evaluation, metric="fooled", model=str(folder / model))
            share = sum(row["outcome"] == "succeeded" for row in rows) / len(rows)
            assert (len(rows), fooled["value"]) == (fooled["num"], pytest.approx(100 * share))
        values.setdefault((*models, max_pairs), evaluation["numbers"])
        assert values[(*models, max_pairs)] == evaluation["numbers"]


def test_a_probe_is_fitted_anew_where_its_texts_are_others(folder, tmp_path):
    shutil.copy(folder / "labelled.csv", tmp_path / "labelled.csv")
    shutil.copy(folder / "sets.json", tmp_path / "sets.json")
    model, part = model_of(folder, "mean"), texts(tmp_path)
    before = part.read([model])
    attacked = set(before.content.data.first)
    with (tmp_path / "labelled.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    with (tmp_path / "labelled.csv").open("w", encoding="utf-8", newline="") as file:
        moved = {"good": "bad", "bad": "sad", "sad": "good"}
        csv.writer(file).writerows([header, *([t, label if t in attacked else moved[label]] for t, label in rows)])
    after = part.read([model])
    assert before.sha256 == after.sha256 and before.beside != after.beside
    assert part.read([model_of(folder, "a")]).beside == ()


def test_a_first_model_without_a_victim_is_said_to_be_missing(folder, tmp_path, capsys):
    given = arguments(
        folder, tmp_path / "out", "--parts", "text", "--max_texts", 6, models=["first=cls", "x=mean", "y=short"]
    )
    given[given.index("--labelled") + 1] = str(folder / "labelled.csv")
    run(given, capsys, status=1)
    evaluation = evaluation_of(tmp_path / "out")
    (warning,) = evaluation["warnings"]
    assert warning.startswith("text-synonym: first, the first model, has nothing here") and "with x in" in warning
    (control,) = [sentence(f) for f in evaluation["parts"]["text-synonym"]["findings"] if f["cap"] == "any"]
    assert control.startswith("y ") and f"* {control}\n" in (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    assert {path.name[:2] for path in (tmp_path / "out/victims").iterdir()} == {"x-", "y-"}


def test_the_plan_says_what_each_model_lacks(folder, tmp_path, capsys):
    models = ["a=a", "mean=mean", "cls=cls", "other=other"]
    given = arguments(folder, tmp_path / "out", "--dry_run", "--max_texts", 6, models=models)
    given[given.index("--labelled") + 1] = str(folder / "labelled.csv")
    said = run([*given, "--held_out", str(folder / "held-out.txt"), "--num_sentences", "16"], capsys, status=1).out
    assert "adv-sts, mean: n/a: mean pools by mean and a, which it would be compared with, by cls" in said
    assert "text-synonym, cls: n/a: cls pools by cls" in said
    assert "embeddings, other: n/a:" in said and "no class of the model; its classes are 'yes', 'no'" in said
    assert "embeddings, mean: an encoder without a head: attacked by" in said
    mixed = ["--num_sentences", "16", "--num_probe_sentences", "3", "--held_out", str(folder / "held-out.txt")]
    said = run([*given, *mixed], capsys, status=1).out
    assert "embeddings: n/a: " in said and "evaluation.num_probe_sentences must be 0 (no probe) or 16" in said
    said = run([*given, "--num_sentences", "99", *mixed[4:]], capsys, status=1).out
    assert "held-out.txt has 24 sentences that differ, and 99 are asked for" in said


def test_kinds_have_each_their_own_numbers(folder, tmp_path, capsys):
    more = ["--num_sentences", 16, "--num_probe_sentences", 0, "--held_out", folder / "held-out.txt"]
    run(arguments(folder, tmp_path, "--parts", "embeddings", *more, models=["a=a", "mean=mean"]), capsys)
    evaluation = evaluation_of(tmp_path)
    accuracy = number_of(evaluation, metric="accuracy", epsilon=0.1, model=str(folder / "mean"))
    assert accuracy["why"].startswith("an encoder without a head")
    retrieval = number_of(evaluation, metric="retrieval@1", epsilon=0.1, model=str(folder / "a"))
    assert retrieval["why"].startswith("a classifier: attacked by its accuracy")
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "accuracy, ε 0.1 (absolute), %" in summary and "retrieval@1, ε 0.1·RMS(X), %" in summary


def test_an_encoder_without_a_head_is_attacked_through_a_probe(folder, tmp_path, capsys):
    more = ["--held_out", folder / "held-out.txt", "--num_sentences", 16, "--num_probe_sentences", 0, "--max_texts", 6]
    given = arguments(folder, tmp_path, "--parts", "embeddings", "text", *more, models=["mean", "cls"])
    given[given.index("--labelled") + 1] = str(folder / "labelled.csv")
    run(given, capsys, status=1)
    evaluation, mean = evaluation_of(tmp_path), str(folder / "mean")
    retrieval = number_of(evaluation, metric="retrieval@1", epsilon=0.1, model=mean)
    assert retrieval["num"] == 16 and 0 <= retrieval["value"] <= 100
    assert number_of(evaluation, part="text-synonym", metric="accuracy", model=mean)["num"] == 6
    missing = number_of(evaluation, part="text-synonym", metric="accuracy", model=str(folder / "cls"))
    assert missing["value"] is None and "pools by cls" in missing["why"]
    (victim,) = (tmp_path / "victims").iterdir()
    vectors = Classifier.from_pretrained(str(victim)).encoder.encode_texts(TEXTS)
    np.testing.assert_allclose(vectors, Encoder.from_pretrained(mean).encode_texts(TEXTS), atol=1e-5)


def test_models_of_a_system_are_told_apart_by_their_seeds(folder):
    systems = systems_of([f"x={folder / 'a'},{folder / 'b'}", str(folder / "c")])
    assert [model.name for model in find_models(systems, Encoding())] == ["x/a", "x/b", systems[1].name]
    assert find_models(systems, Encoding())[0].labels == ("bad", "fair", "good", "great")


def test_cards_are_looked_at_before_anything_is_measured(folder, tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(folder / name, tmp_path / name)
    given = arguments(folder, tmp_path / "out", "--parts", "sts", "--write_cards", models=[])
    given += ["--model", str(tmp_path / "a"), "--model", str(tmp_path / "b")]
    (tmp_path / "b/README.md").write_text("---\na: [1\n---\n", encoding="utf-8")
    planned = run([*given, "--dry_run"], capsys, status=1).out
    assert f"card: n/a: {tmp_path / 'b/README.md'}: its metadata cannot be read" in planned
    assert "b/README.md" in run(given, capsys, status=2).err and not (tmp_path / "out").exists()
    (tmp_path / "b/README.md").write_text("# Mine\n", encoding="utf-8")
    said = run(given, capsys, status=1)
    for name in ("a", "b"):
        assert str(tmp_path / name / "README.md") in said.out
        card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert "| sts, STS-B: spearman, x 100 |" in card and f"{name}: classifier, cls pooling" in card
