"""The page in a real browser: every chart drawn and whole, nothing cut on a phone, nothing asked from outside."""

import json
import os
import re
from html import escape, unescape

import pytest

from bench.pages.browser import NAMES, VARIABLE, find_browser, open_page
from fastadv.report.content import content_of
from fastadv.report.page import page
from fastadv.report.sources import read_sources
from tests.report.made import make_embedding_attack, make_evaluation, make_geometry, make_run, make_text_attack

WIDTHS = (390, 1280)
"""CSS pixels: a phone, a desk"""

# Runs beside the pages, which themselves allow no script: a frame's document can be read from outside it.
PROBE = """
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const of_chart = svg => ({
  box: box(svg),
  marks: [...svg.querySelectorAll('g[id*="-series-"]')].map(
    g => [...g.querySelectorAll("path, use")].filter(e => !e.closest("defs")).length),
  texts: [...svg.querySelectorAll("text")].map(t => [t.textContent.trim(), ...box(t)]),
  ticks: ["xtick", "ytick"].map(
    axis => [...svg.querySelectorAll(`g[id*="${axis}"] text`)].filter(t => t.textContent.trim()).map(box)),
});
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const inside = frame.contentDocument;
    return {
      name: frame.name, width: inside.documentElement.clientWidth, needed: inside.documentElement.scrollWidth,
      asked: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
      charts: Object.fromEntries([...inside.querySelectorAll("figure")].map(
        f => [f.id, of_chart(f.querySelector("svg"))])),
      panels: Object.fromEntries([...inside.querySelectorAll("figure")].map(f => [f.id, box(f)])),
      ink: inside.defaultView.getComputedStyle(inside.querySelector("h1")).color,
      stroke: [...inside.querySelectorAll('g[id*="-series-0"] path')].slice(0, 1).map(
        e => inside.defaultView.getComputedStyle(e).stroke),
    };
  });
  document.body.innerHTML = "";
  document.body.append(Object.assign(document.createElement("pre"), {textContent: JSON.stringify(found)}));
});
"""


@pytest.fixture(scope="module")
def browser():
    found = find_browser()
    if found is None:
        message = f"no browser: none of {', '.join(NAMES)} is on the PATH, and {VARIABLE} names none"
        if os.environ.get("FASTADV_REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """Name -> content, file: one run, and everything side by side under names that are long."""
    folder = tmp_path_factory.mktemp("pages")
    long = "uscal-with-eight-restarts-and-a-name-that-no-legend-holds"
    runs = [make_run(folder / name, 300, seed, name) for seed, name in enumerate(("simcse", long))]
    rest = [make_embedding_attack(folder / "attack"), make_text_attack(folder / "fooler", ("a", long), num_rows=30)]
    rest += [make_geometry(folder / "geometry"), make_evaluation(folder / "evaluation", num_rows=20, num_seeds=1)]
    found = {}
    for name, folders in (("one", runs[:1]), ("many", [*runs, *rest])):
        content = content_of(read_sources(folders))
        file = folder / f"{name}.html"
        file.write_text(page(content), encoding="utf-8")
        found[name] = (content, file)
    return found


def frame(name, width, text):
    style = f"border:0;width:{width}px;height:900px"
    return f'<iframe name="{name}" style="{style}" srcdoc="{escape(text)}"></iframe>'


def look_at(browser, folder, frames):
    """What the probe finds in each frame."""
    file = folder / "probe.html"
    document = f'<!DOCTYPE html><meta charset="utf-8"><body>{"".join(frames)}<script>{PROBE}</script></body>'
    file.write_text(document, encoding="utf-8")
    dom = open_page(browser, file).output
    return json.loads(unescape(re.search(r"<pre>(.*)</pre>", dom, re.DOTALL)[1]))


@pytest.fixture(scope="module")
def seen(browser, pages, tmp_path_factory):
    frames = [frame(n, w, file.read_text(encoding="utf-8")) for n, (_, file) in pages.items() for w in WIDTHS]
    found = look_at(browser, tmp_path_factory.mktemp("probe"), frames)
    assert [(one["name"], one["width"]) for one in found] == [(name, width) for name in pages for width in WIDTHS]
    return found


def test_every_chart_is_drawn_with_all_its_series(pages, seen):
    for one in seen:
        content, _ = pages[one["name"]]
        assert list(one["charts"]) == [f"chart-{chart.key}" for chart in content.charts]
        for chart in content.charts:
            drawn = one["charts"][f"chart-{chart.key}"]
            left, top, right, bottom = drawn["box"]
            assert right - left > 200 and bottom - top > 120, chart.key
            assert len(drawn["marks"]) == len(chart.series) and min(drawn["marks"]) > 0, chart.key
        assert one["stroke"] != ["none"] and one["ink"] != "rgb(0, 0, 0)"


def test_no_page_scrolls_sideways_and_no_chart_leaves_its_panel(seen):
    for one in seen:
        assert one["needed"] <= one["width"], one["name"]
        for key, panel in one["panels"].items():
            box = one["charts"][key]["box"]
            assert 0 <= panel[0] <= box[0] and box[2] <= panel[2] <= one["width"], key


def test_no_text_of_a_chart_is_cut_and_no_ticks_lie_on_each_other(seen):
    num_texts = 0
    for one in seen:
        for key, drawn in one["charts"].items():
            left, top, right, bottom = drawn["box"]
            for text, *box in drawn["texts"]:
                num_texts += 1
                is_inside = left - 1 <= box[0] and box[2] <= right + 1 and top - 1 <= box[1] and box[3] <= bottom + 1
                assert is_inside, (one["name"], one["width"], key, text, box, drawn["box"])
            for boxes, low, high in zip(drawn["ticks"], (0, 1), (2, 3)):
                boxes = sorted(boxes, key=lambda box: box[low])
                assert all(a[high] <= b[low] + 1 for a, b in zip(boxes, boxes[1:])), (key, boxes)
    assert num_texts > 500


def test_nothing_is_asked_from_outside_and_the_console_is_silent(browser, pages, seen):
    assert [one["asked"] for one in seen] == [[]] * len(seen)
    for _, file in pages.values():
        opened = open_page(browser, file)
        assert opened.console == [] and opened.output.count("<svg") > 5


def test_what_is_wrong_is_seen(browser, pages, tmp_path):
    """The checks above fail for a page that asks for a picture, is too wide, and has lost a chart's lines."""
    text = pages["one"][1].read_text(encoding="utf-8")
    text = text.replace("<header>", '<header><img src="https://example.org/x.png"><div style="width:2000px">x</div>', 1)
    text = re.sub(r'(<g id="training-loss-series-0">).*?</g>', r"\1</g>", text, count=1, flags=re.DOTALL)
    file = tmp_path / "broken.html"
    file.write_text(text, encoding="utf-8")
    assert any("example.org" in line for line in open_page(browser, file).console)
    (found,) = look_at(browser, tmp_path, [frame("broken", 390, text)])
    assert found["needed"] >= 2000 and found["charts"]["chart-training-loss"]["marks"][0] == 0


def test_it_prints(browser, pages, tmp_path):
    pdf = tmp_path / "page.pdf"
    open_page(browser, pages["many"][1], ("--no-pdf-header-footer", f"--print-to-pdf={pdf}"))
    assert pdf.read_bytes().startswith(b"%PDF") and pdf.read_bytes().count(b"/Type /Page\n") >= 2
