"""Clean against robust: what is paired with what, by the names of `fastadv evaluate all`, and which side is better."""

import json

import numpy as np
import pytest

from fastadv.errors import UserError
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.report import write_evaluation
from fastadv.evaluation.suite.rows import of_measurement
from fastadv.evaluation.suite.schema import Quantity, System
from fastadv.report.content import content_of
from fastadv.report.sections.before_after_section import LOOK_BEFORE
from fastadv.report.sections.trade_off_section import shared_radii
from fastadv.report.sources import read_sources
from tests.report.made import evaluation_record, make_embedding_attack, make_evaluation, make_run, make_text_attack

SYSTEMS = (System("simcse", ("a",)), System("uscal", ("b",)))


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    return make_evaluation(tmp_path_factory.mktemp("made") / "evaluation")


def trade_off(*folders):
    """The section's charts by their titles, and its table."""
    content = content_of(read_sources(folders))
    (section,) = (section for section in content.sections if section.title == "Clean against robust")
    return {chart.title: chart for chart in section.charts}, section.tables[0]


def write_measured(folder, measured):
    """evaluation.json of these numbers alone."""
    parts = {one.quantity.part: "done" for one in measured}
    write_evaluation(folder, evaluation_record(SYSTEMS, measured, parts))
    return folder


def of_both(quantity, first, second):
    return [Measured(quantity, model, value, value - 1, value + 1, 9) for model, value in (("a", first), ("b", second))]


def points(chart):
    return {one.name: (one.points[0].x.value, one.points[0].y.value) for one in chart.series}


def test_an_attack_on_texts_is_set_against_accuracy_and_success_is_better_lower(evaluation):
    charts, table = trade_off(evaluation)
    numbers = json.loads((evaluation / "evaluation.json").read_text())["numbers"]
    means = {
        (n["part"], n["metric"], n["epsilon"], n["system"]): n["value"]
        for n in numbers
        if n["model"] is None and n["set"] != "SICK-R"
    }
    part = "text-deepwordbug"
    for metric, side in (("accuracy under attack", "upper right"), ("attack success", "lower right")):
        (chart,) = (chart for title, chart in charts.items() if metric in title)
        assert f"Towards the {side} is better" in chart.caption
        assert chart.x_label == "demo:imdb accuracy (%)"
        expected = {s: (means[part, "accuracy", None, s], means[part, metric, None, s]) for s in ("simcse", "uscal")}
        assert points(chart) == expected
    (chart,) = (chart for title, chart in charts.items() if "retrieval@1" in title)
    assert "ε = 0.2" in chart.title and chart.x_label == "STS-B spearman (x 100)"
    assert points(chart)["uscal"] == (
        means["sts", "spearman", None, "uscal"],
        means["embeddings", "retrieval@1", 0.2, "uscal"],
    )
    # What an attack costs is no quality, and the geometry is not attacked.
    assert not any(word in title for title in charts for word in ("queries", "alignment"))
    betters = {row[3].split(" ")[2]: row[5] for row in table.rows}
    assert {row[5] for row in table.rows if "success" in row[3]} == {"lower"}
    assert {row[5] for row in table.rows if "success" not in row[3]} == {"higher"} and len(betters) == 3


def test_adversarial_sts_is_set_against_its_own_pairs_and_fooled_is_better_lower(tmp_path):
    clean = Quantity("adv-sts", "STS-B pairs", "spearman")
    measured = of_both(clean.under_attack(metric="fooled", unit="%", better="lower"), 40.0, 30.0)
    measured += of_both(clean, 81.0, 82.0)
    measured += of_both(clean.under_attack(metric="spearman under attack"), 50.0, 60.0)
    measured += of_both(Quantity("sts", "STS-B", "spearman"), 77.0, 78.0)
    charts, _ = trade_off(write_measured(tmp_path / "e", measured))
    assert len(charts) == 2
    fooled, under = (
        charts["adv-sts: STS-B pairs fooled, %"],
        charts["adv-sts: STS-B pairs spearman under attack, x 100"],
    )
    assert points(fooled) == {"simcse": (81.0, 40.0), "uscal": (82.0, 30.0)} and "lower right" in fooled.caption
    assert points(under) == {"simcse": (81.0, 50.0), "uscal": (82.0, 60.0)} and "upper right" in under.caption


def test_what_neither_side_is_better_of_says_so(tmp_path):
    measured = of_both(Quantity("sts", "STS-B", "spearman"), 77.0, 78.0)
    measured += of_both(Quantity("embeddings", "s", "mean cosine", None, "", None).under_attack(epsilon=0.5), 0.2, 0.3)
    ((chart,), table) = (lambda found: (list(found[0].values()), found[1]))(
        trade_off(write_measured(tmp_path / "e", measured))
    )
    assert "Towards the right is better" in chart.caption and {row[5] for row in table.rows} == {"neither"}


def test_encoders_are_set_against_their_own_probe_without_attack(tmp_path):
    rng, measured = np.random.default_rng(0), []
    for model in ("a", "b"):
        names = ("retrieval@0.1", "centred_cosine@0.1", "probe@0", "probe@0.025", "probe@0.05", "probe_misspelt")
        values = {name: (rng.random(40) < 0.7).astype(float) for name in names}
        measured += list(of_measurement("embeddings", "demo:held-out", model, values))
    charts, _ = trade_off(write_measured(tmp_path / "e", measured))
    # Nothing clean is there for retrieval: no STS-B was measured.
    ((title, chart),) = charts.items()
    assert title == "embeddings: demo sentiment probe accuracy, ε = 0.05, %"
    assert chart.x_label == "demo sentiment probe accuracy (%)"


def test_parts_of_an_evaluation_are_not_drawn_twice(tmp_path, evaluation):
    """Their files lie beside evaluation.json, a model each; the page has the systems' means."""
    charts, table = trade_off(evaluation)
    assert not any("after" in title for title in charts) and {row[0] for row in table.rows} == {"simcse", "uscal"}
    alone, _ = trade_off(make_text_attack(tmp_path / "attack"), evaluation)
    (title,) = set(alone) - set(charts)
    assert title == "accuracy after deepwordbug (attack), %"


def test_a_classifier_is_drawn_at_the_radius_that_tells_models_apart(tmp_path):
    charts, table = trade_off(make_embedding_attack(tmp_path / "attack"))
    attack = json.loads((tmp_path / "attack" / "attack.json").read_text())
    ((title, chart),) = charts.items()
    assert title == "accuracy, %, pgd l2, ε = 0.25" and "upper right" in chart.caption
    for model in attack["models"]:
        (row,) = (row for row in model["epsilons"] if row["epsilon"] == 0.25)
        expected = (100 * model["accuracy"]["value"], 100 * row["accuracy"]["value"])
        assert points(chart)[model["name"]] == pytest.approx(expected)


def test_runs_are_set_against_what_they_began_from_and_those_of_other_radii_have_their_place(tmp_path):
    """Where none is shared each is drawn at its own, and said to be missing at the other's."""
    folders = [make_run(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two", "three"))]
    ((title, chart),) = trade_off(*folders[:2])[0].items()
    assert "sentiment probe" in title
    assert {one.name for one in chart.series} == {"one", "one, before", "two", "two, before"}
    found = json.loads((folders[1] / "results.json").read_text())
    for row in found["rows"]:
        if row["key"] in ("probe@0.025", "probe@0.05"):
            row["radius"] = {0.025: 0.1, 0.05: 0.2}[row["radius"]]
            row["key"] = f"probe@{row['radius']:g}"
    (folders[1] / "results.json").write_text(json.dumps(found))
    charts, table = trade_off(*folders)
    first, second = charts.values()
    assert {one.name for one in first.series} == {"one", "one, before", "three", "three, before"}
    assert {one.name for one in second.series} == {"two", "two, before"}
    assert "Not measured here, or not without the attack: two." in first.caption
    assert "Not measured here, or not without the attack: one, three." in second.caption
    assert {row[0] for row in table.rows} == {f"{n}{b}" for n in ("one", "two", "three") for b in ("", ", before")}


def test_the_radius_is_one_that_most_systems_share():
    radii = {"a": [0.1, 0.2, 0.4], "b": [0.2, 0.4, 0.8], "c": [0.2, 1.0], "d": [], "e": [3.0]}
    assert list(shared_radii(radii, lambda at: max(at))) == [(0.2, ["a", "b", "c"]), (3.0, ["e"])]


def test_attacks_of_other_radii_and_systems_without_a_clean_number_are_not_left_out_silently(tmp_path):
    folders = [
        make_embedding_attack(tmp_path / name, (name,), epsilons=radii)
        for name, radii in (("first", (0.1, 0.2)), ("second", (0.3, 0.5)))
    ]
    charts, table = trade_off(*folders)
    assert [[one.name for one in chart.series] for chart in charts.values()] == [["first"], ["second"]]
    assert [row[0] for row in table.rows] == ["first", "second"]
    quantity = Quantity("embeddings", "held-out", "retrieval@1", None, "%").under_attack(epsilon=0.1)
    clean = Quantity("sts", "STS-B", "spearman")
    measured = [*of_both(quantity, 80.0, 70.0), Measured(clean, "a", 75.0, 74.0, 76.0, 9)]
    measured.append(Measured(clean, "b", None, why="no such file"))
    charts, _ = trade_off(write_measured(tmp_path / "e", measured))
    (chart,) = charts.values()
    assert [one.name for one in chart.series] == ["simcse"] and "without the attack: uscal." in chart.caption


def test_a_run_alone_beside_an_attack_has_its_two_colours(tmp_path):
    run, attack = make_run(tmp_path / "run"), make_embedding_attack(tmp_path / "attack")
    content = content_of(read_sources([run, attack]))
    befores = {one.look for chart in content.charts for one in chart.series if "before" in one.name}
    assert befores == {LOOK_BEFORE}


def test_an_unknown_side_is_no_number_of_this_version(tmp_path):
    folder = write_measured(tmp_path / "e", of_both(Quantity("sts", "STS-B", "spearman"), 77.0, 78.0))
    path = folder / "evaluation.json"
    path.write_text(path.read_text().replace('"higher"', '"upwards"'))
    with pytest.raises(UserError, match="better 'upwards', expected 'higher', 'lower' or null"):
        read_sources([folder])
