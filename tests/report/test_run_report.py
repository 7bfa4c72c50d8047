"""report.html: self-contained, escaped, and written whatever the run folder lacks."""

import json
import re
import sys

import numpy as np
import pytest

from fastadv.pages.style import running_mean
from fastadv.report.content import content_of
from fastadv.report.run_record import read_run, read_series
from fastadv.report.sources import read_sources
from fastadv.report.write import write_report
from tests.report.made import make_run, results_of_a_run
from tests.report.parsed_page import Page


def write_run(folder, with_results=True):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("objective: <b>mine</b>\nencoder: {model: 'a & b'}\n")
    rows = [{"step": s, "loss": 1 / s, "inner_gain": 0.1, "lr": 1e-5, "sentences_per_s": 60.0} for s in range(1, 40)]
    rows.append({"step": 40, "dev/score": 81.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 41, "lo')
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(b"0" * 2_500_000)
    if with_results:
        (folder / "results.json").write_text(json.dumps(results_of_a_run()))
    return folder


def read_page(folder):
    text = write_report(folder).read_text(encoding="utf-8")
    return text, Page(text)


def test_the_page_of_a_whole_run_is_whole_follows_the_theme_and_needs_nothing_from_outside(tmp_path):
    text, page = read_page(write_run(tmp_path / "my <run>"))
    # Two attack curves; loss, gain, rate, speed, dev score; the probe, clean against attacked.
    assert page.tags.count("svg") == 2 + 5 + 1
    shown, settings = " ".join(page.texts), ("<b>mine</b>", "a & b", "retrieval@1", "sentiment probe")
    assert all(expected in shown for expected in ("my <run>", "40 training steps", "2.5 MB", "attack.png", *settings))
    assert (tmp_path / "my <run>" / "attack.png").read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "my <run>").glob("*.partial"))
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"@import|url\((?!#)|<script|<link|<img|<iframe", text)
    # Namespaces are names, not addresses to fetch.
    assert not re.findall(r'https?://(?!www\.w3\.org/)[^"\s]+', text)
    assert "default-src 'none'" in text
    assert len(page.ids) == len(set(page.ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert used and used <= set(page.ids)
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", drawings))
    assert not colours and "var(--series-0)" in drawings and "var(--ink)" in drawings
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_equal_runs_give_equal_pages(tmp_path):
    first, second = write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run")
    assert write_report(first).read_bytes() == write_report(second).read_bytes()
    assert (first / "attack.png").read_bytes() == (second / "attack.png").read_bytes()


def test_a_run_that_was_not_measured(tmp_path):
    text, page = read_page(write_run(tmp_path / "run", with_results=False))
    assert page.tags.count("svg") == 5 and "Before and after" not in text
    assert not (tmp_path / "run" / "attack.png").exists()


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.yaml": "a: [", "metrics.jsonl": "\n\n[1]\n3\nnull\n", "results.json": "{"},
        {"config.yaml": "- a\n- b", "metrics.jsonl": '{"loss": 1}\n{"step": "x", "loss": 1}\n', "results.json": "[]"},
        {"metrics.jsonl": '{"step": 1}\n{"step": 2, "loss": null}\n{"step": 3, "loss": NaN, "lr": true}\n'},
        {"metrics.jsonl": '{"step": 1, "loss": 0.5}'},
    ],
)
def test_whatever_is_missing_or_broken(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    read_page(tmp_path)


def test_series_take_the_last_line_of_a_step_and_open_nested_rows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 2.0},
        {"step": 2, "eval": {"dev": 80.0}},
        {"step": 2, "loss": 1.5},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_series(path) == {"loss": ([1, 2], [3.0, 1.5]), "eval/dev": ([2], [80.0])}


@pytest.mark.parametrize("num", [24, 25, 47, 48, 71, 72, 100, 1013])
def test_running_means_are_those_of_their_windows_whatever_lies_outside(num):
    rng = np.random.default_rng(num)
    values = rng.normal(size=num)
    values[rng.integers(num, size=3)] = 1e15
    half = num // 24
    expected = [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(num)]
    np.testing.assert_allclose(running_mean(values.tolist()), expected, rtol=1e-12)
    assert running_mean([1.0] * 20) is None and running_mean(list(range(48)))[10] == 10


def test_a_running_mean_calls_as_much_for_a_long_run_as_for_a_short_one():
    """Nothing is done a value or a window at a time."""

    def calls(num):
        counted = []
        sys.setprofile(lambda frame, event, argument: counted.append(event))
        smooth = running_mean([1.0] * num)
        sys.setprofile(None)
        assert set(smooth) == {1.0}
        return len(counted)

    calls(100)
    assert calls(400_000) == calls(100)


@pytest.mark.parametrize("has_results", [False, True])
def test_of_several_runs_those_measured_are_named_and_share_what_was_before(tmp_path, has_results):
    folders = [make_run(tmp_path / "first", 20, has_results=has_results), make_run(tmp_path / "second", 20)]
    charts = [c for c in content_of(read_sources(folders)).charts if c.key.startswith("under-attack")]
    after = [("first", 0, False)] if has_results else []
    before = ("before", 6, True) if has_results else ("second, before", 1, True)
    assert len(charts) == 2
    for chart in charts:
        assert [(one.name, one.look, one.is_open) for one in chart.series] == [*after, ("second", 1, False), before]


def test_attacks_on_texts_and_mistyped_words_have_their_curves_and_groups(tmp_path):
    """By names in place of numbers; of the words changed no curve begins where nothing is done."""
    folder = make_run(tmp_path / "run", 20)
    results = json.loads((folder / "results.json").read_text())
    plain = results["rows"][0]
    words = {"deepwordbug@1": 1, "deepwordbug@any": None}
    of_attack = [
        {**plain, "key": key, "label": f"DeepWordBug succeeds, {n}", "max_words": n} for key, n in words.items()
    ]
    typos = {"edit": "typos", "metric": "cosine"}
    of_typos = [
        {**plain, **typos, "key": f"typos@cosine, {n}", "label": f"cosine to the sentence, typos, {n}", "share": share}
        for n, share in {"one word": None, "50 % of words": 0.5}.items()
    ]
    results["rows"] = [{**row, "radius": None} for row in (*of_attack, *of_typos)] + results["rows"]
    results["missing"] = [{"label": "DeepWordBug <b>", "why": "no data"}]
    (folder / "results.json").write_text(json.dumps(results))
    charts = [c for c in content_of(read_sources([folder])).charts if c.key.startswith("under-attack")]
    names = [[point.label for point in chart.series[0].points] for chart in charts]
    assert names[:2] == [["≤ 1", "any"], ["none", "one word", "50 %"]] and len(charts) == 4
    assert [chart.has_named_x for chart in charts] == [True, True, False, False]
    text, page = read_page(folder)
    assert {"DeepWordBug", "mistyped words", "≤ 1", "50 %"} <= set(page.texts)
    assert "DeepWordBug <b>: n/a. no data" in page.texts and "<td>DeepWordBug &lt;b&gt;</td>" in text
    # Another run may mistype other shares.
    other = make_run(tmp_path / "other", 20)
    results["rows"][3].update(share=0.3)
    (other / "results.json").write_text(json.dumps(results))
    (both,) = (c for c in content_of(read_sources([folder, other])).charts if c.key == "under-attack-typos")
    places = {one.name: [(point.x.value, point.label) for point in one.points] for one in both.series}
    assert places["run"] == [(0, "none"), (1, "one word"), (3, "50 %")]
    assert places["other"] == [(0, "none"), (1, "one word"), (2, "30 %")]
    results["rows"][3].update(share="half")
    (other / "results.json").write_text(json.dumps(results))
    assert read_run(other).results is None
    results["rows"][3].update(share=0.5)
    results["missing"] = [{"label": "DeepWordBug"}]
    (folder / "results.json").write_text(json.dumps(results))
    assert read_run(folder).results is None
