"""A run with ``evaluation.enabled``: what stands in results.json is the first weights against the exported ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from fastadv.encoder import Encoder
from fastadv.evaluation.before_after import before_after
from fastadv.evaluation.before_after.held_out import load_held_out
from tests.evaluation.packages import require_textattack, shared_attack_data
from tests.quick_trainer import Trainer

SUBJECTS = ("the film", "this movie", "that story", "one actor", "every scene", "the plot")
OPINIONS = ("was good", "was bad", "is very dull", "is wonderful", "was almost sad", "is not sharp")
HELD_OUT = [f"{subject} {opinion}" for subject in SUBJECTS for opinion in OPINIONS]


@pytest.fixture
def make_measured_config(make_config, tmp_path):
    """``make_config`` with evaluation on: 16 of 36 sentences, one radius, two steps of attack, no probe."""
    path = tmp_path / "held_out.txt"
    path.write_text("\n".join(HELD_OUT) + "\n")
    evaluation = {"enabled": True, "num_sentences": 16, "radii": [0.3], "num_steps": 2, "num_probe_sentences": 0}
    settings = {f"evaluation.{key}": value for key, value in {**evaluation, "held_out": str(path)}.items()}
    # Steps large enough that two of them show in every row.
    return lambda name, **changes: make_config(name, **{**settings, "optimizer.lr": 2e-2, **changes})


@pytest.fixture
def labelled(monkeypatch):
    """Labelled sentences of the tiny vocabulary in place of the demo's, 20 of which fit the probe."""
    labels = [int(text.endswith(("good", "wonderful", "sharp"))) for text in HELD_OUT]
    monkeypatch.setattr("fastadv.data.sources.demo.demo_sentiment", lambda: (HELD_OUT, labels))
    monkeypatch.setattr("fastadv.evaluation.before_after.held_out.NUM_PROBE_TRAIN", 20)


@pytest.fixture
def measured(monkeypatch):
    """The encoders that were measured, in order."""
    calls, measure = [], before_after.measure

    def spy(encoder, *arguments, **options):
        calls.append(encoder)
        return measure(encoder, *arguments, **options)

    monkeypatch.setattr(before_after, "measure", spy)
    return calls


def measure_anew(model, config):
    """The measurement of a model folder, by none of the run's own code."""
    options = config.encoder
    encoder = Encoder.from_pretrained(
        str(model), pooling=options.pooling, max_length=options.max_length, dropout=options.dropout
    )
    return before_after.measure(encoder, config.evaluation, load_held_out(config.evaluation, encoder, "text"))


def assert_results_are_those_of_the_weights(folder, config):
    """results.json against both models measured anew, to the last bit: one machine, one thread, one seed."""
    before, after = measure_anew(config.encoder.model, config), measure_anew(folder / "model", config)
    for name in ("vectors", "alignment", "cosine@0.3", "centred_cosine@0.3"):
        assert not np.array_equal(before[name], after[name]), "nothing was trained"
    results = json.loads((folder / "results.json").read_text())
    assert results == json.loads(json.dumps(before_after.compare(before, after, config.evaluation)))
    (kept,) = folder.glob("before-*.npz")
    loaded = before_after.load_measurement(kept)
    assert loaded.keys() == before.keys()
    assert [name for name in before if not np.array_equal(loaded[name], before[name])] == []
    return results


def test_the_table_compares_the_first_weights_with_the_exported_ones(make_measured_config, monkeypatch, capsys):
    """The exported weights are those of the best dev score, here neither the first nor the last."""
    scores = iter([2.0, 1.0])
    monkeypatch.setattr("fastadv.engine.build.dev_score", lambda data, quoting: lambda encoder: next(scores))
    config = make_measured_config("run", **{"train.eval_every": 2})
    trainer = Trainer(config, writes_report=True)
    folder = trainer.fit()
    assert trainer.position.best_step == 2
    results = assert_results_are_those_of_the_weights(folder, config)
    assert {row["key"] for row in results["rows"]} == {
        *("retrieval@0.3", "centred_cosine@0.3", "cosine@0.3", "alignment", "uniformity")
    }
    assert results["num_probe_sentences"] == 0 and results["num_sentences"] == 16
    row = next(row for row in results["rows"] if row["key"] == "alignment")
    numbers = f"{row['before']:.3f}", f"{row['after']:.3f}"
    assert numbers[0] != numbers[1]
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if line.startswith("alignment"))
    assert tuple(line.removeprefix(row["label"]).split()[:2]) == numbers
    assert f"| {row['label']} | {numbers[0]} | {numbers[1]} |" in (folder / "model" / "README.md").read_text()
    assert (folder / "attack.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    assert ">Before and after training</h2>" in page and "attack.png" in page
    assert f'<td class="before">{numbers[0]}</td><td class="after">{numbers[1]}</td>' in page


def test_a_resumed_run_keeps_the_first_measurement(make_measured_config, labelled, measured, stop_after):
    """Stopped and gone on from, with a probe: before is read back, after is measured once, the table is the same."""
    probe = {"evaluation.num_probe_sentences": 16}
    config = make_measured_config("stopped", **probe)
    folder = Trainer(config, [stop_after(2)]).fit()
    (kept,) = folder.glob("before-*.npz")
    written = kept.stat().st_mtime_ns
    assert len(measured) == 1 and not (folder / "results.json").exists()
    second = Trainer(config)
    second.fit()
    assert measured[1:] == [second.encoder] and kept.stat().st_mtime_ns == written
    results = assert_results_are_those_of_the_weights(folder, config)
    probed = {row["key"]: row for row in results["rows"] if row["key"].startswith("probe")}
    # At 0.25 and 0.5 of the smallest radius.
    assert (
        list(probed) == ["probe@0", "probe_misspelt", "probe@0.075", "probe@0.15"]
        and results["num_probe_sentences"] == 16
    )


def test_measuring_changes_nothing_and_other_settings_measure_anew(make_measured_config, measured):
    """The weights are those of a run without evaluation; a second radius asked for later gets both its numbers."""
    bare = Trainer(make_measured_config("bare", **{"evaluation.enabled": False})).fit()
    assert not measured and not list(bare.glob("before-*")) and not (bare / "results.json").exists()
    folder = Trainer(make_measured_config("run")).fit()
    weights, expected = (load_file(Path(run) / "model" / "model.safetensors") for run in (folder, bare))
    assert [name for name in expected if not weights[name].equal(expected[name])] == []
    (first,) = folder.glob("before-*.npz")
    assert len(measured) == 2
    # The run is finished: nothing is trained, both models are measured.
    Trainer(make_measured_config("run", **{"evaluation.radii": [0.3, 0.6]})).fit()
    assert len(measured) == 4 and len(list(folder.glob("before-*.npz"))) == 2 and first.exists()
    rows = {row["key"]: row for row in json.loads((folder / "results.json").read_text())["rows"]}
    assert rows["cosine@0.6"]["before"] != rows["cosine@0.6"]["after"]


ON_TEXTS = {
    "encoder.pooling": "mean",
    "evaluation.num_probe_sentences": 16,
    "evaluation.num_attacked_texts": 16,
    "evaluation.typo_shares": [0.5],
}


def test_an_attack_on_texts_and_mistyped_words_stand_in_the_table_of_a_resumed_run(
    make_measured_config, labelled, monkeypatch, stop_after
):
    require_textattack()
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(shared_attack_data()))
    config = make_measured_config("texts", **ON_TEXTS)
    folder = Trainer(config, [stop_after(2)]).fit()
    written = {path: path.stat().st_mtime_ns for path in folder.glob("before-*.npz")}
    Trainer(config).fit()
    assert {path: path.stat().st_mtime_ns for path in folder.glob("before-*.npz")} == written and len(written) == 1
    results = json.loads((folder / "results.json").read_text())
    rows = {row["key"]: row for row in results["rows"]}
    bare = Trainer(make_measured_config("bare", **{"encoder.pooling": "mean", "evaluation.enabled": False})).fit()
    weights, expected = (load_file(run / "model" / "model.safetensors") for run in (folder, bare))
    assert [name for name in expected if not weights[name].equal(expected[name])] == []
    # Those that a newcomer came for stand first.
    assert list(rows)[:5] == [f"deepwordbug@{words}" for words in (1, 2, 3, "any", 0)]
    assert rows["typos@cosine, 50 % of words"]["before"] < 1 and results["missing"] == []
    assert results["num_attacked_texts"] == 16 and (folder / "deepwordbug.log").exists()
    # The probe's sentences are the attacked ones.
    assert all(rows["deepwordbug@0"][side] == rows["probe@0"][side] for side in ("before", "after"))


def test_an_attack_that_cannot_be_run_is_n_a_with_the_reason_until_it_can(
    make_measured_config, labelled, monkeypatch, stop_after, tmp_path, capsys, caplog
):
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(tmp_path / "nowhere"))
    config = make_measured_config("without", **ON_TEXTS)
    folder = Trainer(config, [stop_after(2)]).fit()
    said = next(record.message for record in caplog.records if record.message.startswith("DeepWordBug"))
    assert said.startswith("DeepWordBug succeeds: n/a. ")
    Trainer(config, writes_report=True).fit()
    results = json.loads((folder / "results.json").read_text())
    assert [f"{one['label']}: n/a. {one['why']}" for one in results["missing"]] == [said]
    assert not any(row["key"].startswith("deepwordbug") for row in results["rows"])
    printed, card = capsys.readouterr().out, (folder / "model" / "README.md").read_text()
    assert said in printed.splitlines() and said in card.splitlines()
    assert "| DeepWordBug succeeds | n/a | n/a | n/a | n/a |" in card.splitlines()
    assert "DeepWordBug succeeds: n/a." in (folder / "report.html").read_text()
    require_textattack()
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(shared_attack_data()))
    # Nothing is trained any more; both models are measured with the attack.
    Trainer(config).fit()
    results = json.loads((folder / "results.json").read_text())
    assert results["missing"] == [] and results["rows"][0]["key"] == "deepwordbug@1"
