"""A model is called and drawn as the system or the run that it is of, in every section."""

import json

import pytest

from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text.rows import SUCCEEDED
from fastadv.evaluation.text_report.findings import findings, findings_in, sentence
from fastadv.report.content import content_of
from fastadv.report.named import Looks, found, looks_of, system_names
from fastadv.report.sources import read_sources
from tests.evaluation.attacked_rows import made_row
from tests.report.made import make_embedding_attack, make_evaluation, make_geometry, make_run, make_text_attack


def series_of(content):
    """(key of the chart, name) -> look, of all charts."""
    return {(chart.key, one.name): one.look for chart in content.charts for one in chart.series}


def looks(content, name):
    return {look for (_, one), look in series_of(content).items() if one == name}


def test_models_of_one_seed_have_their_systems_name_and_look_everywhere(tmp_path):
    folder = make_evaluation(tmp_path / "evaluation", num_rows=20, num_seeds=1)
    content = content_of(read_sources([folder]))
    names = {name for _, name in series_of(content)}
    assert names == {"simcse", "uscal"} and looks(content, "simcse") == {0} and looks(content, "uscal") == {1}
    assert {"alignment-uniformity", "queries-accuracy-drop"} <= {key for key, _ in series_of(content)}
    for table in content.tables:
        if table.columns[0].name == "model":
            assert {row[0] for row in table.rows} == {"simcse", "uscal"}
        elif table.key == "text-changes":
            assert {row[1] for row in table.rows} == {"simcse", "uscal"}


def test_seeds_of_a_system_are_told_apart_and_share_its_look(tmp_path):
    folder = make_evaluation(tmp_path / "evaluation", num_rows=20, num_seeds=2)
    content = content_of(read_sources([folder]))
    seeds = {f"{system} ({system}-{i})" for system in ("simcse", "uscal") for i in (0, 1)}
    for key in ("alignment-uniformity", "queries-accuracy-drop"):
        of_chart = {name: look for (one, name), look in series_of(content).items() if one == key}
        assert set(of_chart) == seeds
        assert {name.split()[0]: look for name, look in of_chart.items()} == {"simcse": 0, "uscal": 1}
        assert all(look == {"simcse": 0, "uscal": 1}[name.split()[0]] for name, look in of_chart.items())


@pytest.mark.parametrize("where", ["absolute", "from here", "from elsewhere"])
def test_an_attack_on_a_runs_model_is_called_as_the_run(tmp_path, monkeypatch, where):
    runs = [make_run(tmp_path / "runs" / name, 20, seed) for seed, name in enumerate("ab")]
    if where == "from here":
        monkeypatch.chdir(tmp_path)
        for run in runs:
            (run / "model").mkdir()
    models = [f"{'' if where != 'absolute' else tmp_path}/runs/{name}/model".lstrip("/") for name in "ab"]
    models = [f"/{model}" for model in models] if where == "absolute" else models
    folders = [make_embedding_attack(tmp_path / "attack", models[1:], models=models[1:])]
    folders.append(make_geometry(tmp_path / "geometry", ["demo:minilm", *models]))
    facts = {"a": {"model": models[0]}, "b": {"model": models[1]}}
    facts["a, bias of b"] = {"control": {"baseline": "a", "robust": "b"}}
    folders.append(make_text_attack(tmp_path / "texts", list(facts), num_rows=20, facts=facts))
    content = content_of(read_sources([*reversed(runs), *folders]))
    assert looks(content, "b") == {0} and looks(content, "a") == {1}
    by_chart = {}
    for key, name in series_of(content):
        by_chart.setdefault(key, set()).add(name)
    assert by_chart["accuracy-epsilon"] == {"b"} and by_chart["alignment-uniformity"] == {"demo:minilm", "a", "b"}
    assert by_chart["queries-accuracy-drop"] == {"a", "b", "a, bias of b"}


def test_a_model_called_model_is_no_runs_and_other_folders_keep_their_names(tmp_path):
    run = make_run(tmp_path / "runs" / "a", 20)
    models = ["model", "other/a/model"]
    attack = make_embedding_attack(tmp_path / "attack", models, models=models)
    content = content_of(read_sources([run, attack]))
    names = {name for key, name in series_of(content) if key == "accuracy-epsilon"}
    assert "a" not in names and len(names) == 2


def test_a_system_of_one_model_that_is_a_run_on_the_page_looks_like_it(tmp_path):
    folder = make_evaluation(tmp_path / "evaluation", ("simcse", "robust"), num_rows=20, num_seeds=1)
    written = json.loads((folder / "evaluation.json").read_text())
    for system, model, name in zip(written["systems"], written["models"], ("a", "b")):
        model["model"] = f"runs/{name}/model"
        system["models"] = [model["model"]]
    (folder / "evaluation.json").write_text(json.dumps(written))
    runs = [make_run(tmp_path / "runs" / name, 20, seed) for seed, name in enumerate("ba")]
    attack = make_embedding_attack(tmp_path / "attack", ["x", "y"], models=["runs/a/model", "runs/b/model"])
    content = content_of(read_sources([*runs, folder, attack]))
    assert looks(content, "b") == looks(content, "robust") == {0}
    assert looks(content, "a") == looks(content, "simcse") == {1}
    # What an evaluation has a name for has that name.
    assert {name for key, name in series_of(content) if key == "accuracy-epsilon"} == {"simcse", "robust"}
    warnings = [part.text for section in content.sections for part in section.parts if "masks its" in str(part)]
    assert warnings and "robust: it masks its gradients" in warnings[0]


def test_two_records_of_one_attack_on_one_system_are_told_apart_in_its_look(tmp_path):
    run = make_run(tmp_path / "runs" / "a", 20)
    folders = [
        make_embedding_attack(tmp_path / name, ["a"], epsilons=radii, models=["runs/a/model"])
        for name, radii in (("first", (0.1, 0.2)), ("second", (0.3, 0.5)))
    ]
    sources = read_sources([run, *folders])
    given = Looks(["other", "a"])
    names = system_names(sources, found(sources, "embedding_attacks"), given)
    assert list(names.values()) == ["first: a", "second: a"]
    assert [given.of(name) for name in names.values()] == [1, 1] and looks_of(sources).of("a") == 0


def test_names_of_two_evaluations_and_of_odd_records_stay_apart(tmp_path):
    folders = [make_evaluation(tmp_path / name, num_rows=20, num_seeds=1) for name in ("first", "second")]
    content = content_of(read_sources(folders))
    assert {name for key, name in series_of(content) if key == "queries-accuracy-drop"} == {
        f"{where}: {system}" for where in ("first", "second") for system in ("simcse", "uscal")
    }
    # Two models that would be the same system's one model.
    attack = make_embedding_attack(tmp_path / "attack", ["x", "y"], models=["runs/simcse-0/model"] * 2)
    content = content_of(read_sources([folders[0], attack]))
    assert {name for key, name in series_of(content) if key == "accuracy-epsilon"} == {"x", "y"}


def test_a_model_is_known_by_its_weights_wherever_it_lies(tmp_path):
    folder = make_evaluation(tmp_path / "evaluation", num_rows=20, num_seeds=1)
    written = json.loads((folder / "evaluation.json").read_text())
    for model, fingerprint in zip(written["models"], ("01ab-23cd", "45ef")):
        model["fingerprint"] = fingerprint
    (folder / "evaluation.json").write_text(json.dumps(written))
    attack = make_embedding_attack(tmp_path / "attack", ["x", "y", "z"], models=["moved/x", "moved/y", "moved/z"])
    found = json.loads((attack / "attack.json").read_text())
    for model, fingerprint in zip(found["models"], ("45ef", "23cd", "67")):
        model["fingerprint"] = fingerprint
    (attack / "attack.json").write_text(json.dumps(found))
    content = content_of(read_sources([folder, attack]))
    assert {name for key, name in series_of(content) if key == "accuracy-epsilon"} == {"uscal", "simcse", "z"}


def in_the_old_form(folder):
    """evaluation.json as format 1 had it, where models and quantities were told by their names."""
    written = json.loads((folder / "evaluation.json").read_text())
    for name in ("models", "quantities"):
        del written[name]
    (folder / "evaluation.json").write_text(json.dumps({**written, "format": 1}))


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_an_evaluation_of_earlier_versions_has_the_same_report(tmp_path, num_seeds):
    folder = make_evaluation(tmp_path / "evaluation", num_rows=20, num_seeds=num_seeds)
    before = content_of(read_sources([folder]))
    in_the_old_form(folder)
    assert content_of(read_sources([folder])) == before and any("trade-off" in chart.key for chart in before.charts)


def test_what_is_significant_is_said_by_the_pages_names():
    """Of every verdict, of names that are words of the sentences and parts of each other."""

    def said(names, wins, at_control):
        rows = [
            [made_row(i, SUCCEEDED if i < num else "failed", num_words_changed=1) for i in range(60)]
            for num in (40, wins, at_control)
        ]
        control = {"control": {"baseline": names[0], "robust": names[1]}}
        runs = [(names[0], rows[0], {}), (names[1], rows[1], {})]
        runs.append((f"{names[0]}, bias of {names[1]}", rows[2], control))
        return findings([AttackedModel(*run) for run in runs])

    own, other = ("a", "a b"), ("simcse (seed 0)", "falls on")
    for wins, at_control in ((40, 40), (10, 40), (10, 10), (55, 40), (10, 0)):
        of_own, of_other = said(own, wins, at_control), said(other, wins, at_control)
        assert [sentence(one, dict(zip(own, other))) for one in of_own] == [sentence(one) for one in of_other]
    skipped, failed = ([made_row(i, outcome) for i in range(3)] for outcome in ("skipped", "failed"))
    first, wanted = (
        findings([AttackedModel(names[0], skipped), AttackedModel(names[1], failed)])[0] for names in (own, other)
    )
    assert sentence(first, dict(zip(own, other))) == sentence(wanted) != sentence(first)


def test_findings_of_earlier_versions_say_the_same(tmp_path):
    """They had sentences in place of data, beside comparisons that have all of it."""
    facts = {"a, bias of b": {"control": {"baseline": "a", "robust": "b"}}}
    folder = make_text_attack(tmp_path / "attack", ["a", "b", "c", "a, bias of b"], num_rows=40, facts=facts)
    written = json.loads((folder / "text-attack.json").read_text())
    old = {**written, "findings": [{**{k: f[k] for k in ("model", "cap", "verdict")}} for f in written["findings"]]}
    assert findings_in(old) == findings_in(written) == written["findings"] and len(written["findings"]) == 6
