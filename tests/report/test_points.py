"""Every point that is drawn is the one of the CSV, by its place in the SVG between the ticks."""

import csv
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fastadv.config.embedding_attack import AttackSettings
from fastadv.pages.chart import CSV_COLUMNS, MAX_POINTS, Chart, Point, Series, line_series
from fastadv.pages.drawing import chart_png, chart_svg, drawn_names
from fastadv.pages.table import Estimate
from fastadv.report.content import content_of
from fastadv.report.sources import read_sources
from tests.report.made import make_embedding_attack, make_evaluation, make_geometry, make_run, make_text_attack

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def charts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    folders = [make_run(folder / "runs" / name, 700, seed, name) for seed, name in enumerate(("simcse", "uscal"))]
    folders.append(make_embedding_attack(folder / "attack"))
    for norm in ("l2", "linf"):
        folders.append(make_embedding_attack(folder / norm, epsilons=AttackSettings(norm=norm).epsilons, data=norm))
    folders.append(make_text_attack(folder / "fooler", recipe="textfooler"))
    folders += [make_geometry(folder / "geometry"), make_evaluation(folder / "evaluation")]
    found = content_of(read_sources(folders)).charts
    assert {chart.is_line for chart in found} == {True, False} and any(chart.has_root_scale for chart in found)
    assert any(chart.joins_labels for chart in found)
    return found


def read_csv(chart, folder):
    """Name of a series -> its points (N, 2), as the file has them."""
    chart.write_csv(folder / "points.csv")
    with (folder / "points.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_COLUMNS
    found = {}
    for row in rows:
        found.setdefault(row["series"], []).append((float(row["x"]), float(row["y"])))
    return {name: np.array(points) for name, points in found.items()}


def drawn_points(svg, number, is_line):
    """(N, 2), in the SVG's own units: of a line its corners, else its markers."""
    group = re.search(rf'<g id="[^"]*series-{number}">(.*?)</g>\s*(?=<g id="|</g>)', svg, re.DOTALL)[1]
    if is_line:
        path = re.search(r'<path d="([^"]*)" clip-path|<path d="([^"]*)" style="fill: none', group)
        return np.array(re.findall(r"[ML] ?([-\d.]+) ([-\d.]+)", path[1] or path[2]), dtype=float)
    return np.array(re.findall(r'<use [^>]*x="([-\d.]+)" y="([-\d.]+)"', group), dtype=float)


def ticks(svg, axis):
    """[(value, place)] of the labelled ticks of an axis: each is a group, and one without a label has no text."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if not re.search(rf"(^|-){axis}tick_\d+$", group.get("id", "")):
            continue
        label = "".join(text for one in group.iter(f"{SVG}text") for text in one.itertext()).strip().replace("−", "-")
        if re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", label):
            found.append((float(label), float(next(group.iter(f"{SVG}use")).get(axis))))
    return found


def places(svg, axis, values, is_root):
    """Where the ticks say that values lie."""
    known = np.array(ticks(svg, axis))
    if len(known) == 1:
        # Of one step there is one tick.
        assert set(values) == {known[0, 0]}
        return np.full(len(values), known[0, 1])
    scale = np.sqrt if is_root else np.asarray
    slope, shift = np.polyfit(scale(known[:, 0]), known[:, 1], 1)
    return slope * scale(values) + shift


def test_every_point_lies_where_the_csv_says(charts, tmp_path):
    num_points = 0
    for chart in charts:
        svg = chart_svg(chart, chart.key)
        in_file = read_csv(chart, tmp_path)
        for number, one in enumerate(chart.series):
            drawn = drawn_points(svg, number, chart.is_line)
            expected = in_file[one.name]
            assert len(drawn) == len(expected) == len(one.points), (chart.key, one.name)
            # Points of the SVG are rounded to a hundredth, and so are the ticks.
            for column, axis in enumerate("xy"):
                is_root = axis == "x" and chart.has_root_scale
                np.testing.assert_allclose(
                    drawn[:, column], places(svg, axis, expected[:, column], is_root), atol=0.6, err_msg=chart.key
                )
            num_points += len(drawn)
    assert num_points > 3000


def test_a_moved_point_is_seen(charts, tmp_path):
    """The check above fails for a CSV of other points."""
    chart = next(chart for chart in charts if chart.key == "accuracy-epsilon-1")
    svg = chart_svg(chart, chart.key)
    expected = read_csv(chart, tmp_path)[chart.series[0].name]
    drawn = drawn_points(svg, 0, True)
    moved = places(svg, "y", expected[:, 1] + [0, 0, 1, 0, 0], False)
    assert np.abs(drawn[:, 1] - moved).max() > 1.0


def test_the_csv_keeps_numbers_to_the_last_digit_and_intervals(charts, tmp_path):
    for chart in charts:
        chart.write_csv(tmp_path / "points.csv")
        with (tmp_path / "points.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        points = [(one.name, point) for one in chart.series for point in one.points]
        assert len(rows) == len(points)
        for row, (name, point) in zip(rows, points):
            assert (row["series"], row["label"]) == (name, point.label)
            for axis, estimate in (("x", point.x), ("y", point.y)):
                written = [row[axis], row[f"{axis}_low"], row[f"{axis}_high"]]
                assert [float(text) if text else None for text in written] == list(estimate)


def test_a_chart_is_small_and_long_series_are_thinned_with_a_note(charts):
    for chart in charts:
        assert len(chart_svg(chart, chart.key)) <= 40_000, chart.key
    loss = next(chart for chart in charts if chart.key == "training-loss")
    assert f"{MAX_POINTS // len(loss.series)} of 700 points a line." in loss.caption
    assert {one.num_points for one in loss.series} == {700}


@pytest.mark.parametrize("num_series", [1, 2, 10])
def test_thinning_keeps_the_ends_and_only_real_points(num_series):
    values = np.arange(20_000.0)
    series = tuple(line_series(f"s{i}", values, -values, i) for i in range(num_series))
    thin = Chart("k", "t", "x", "y", series).thinned()
    assert sum(len(one.points) for one in thin.series) <= MAX_POINTS
    for one in thin.series:
        x = [point.x.value for point in one.points]
        assert x[0] == 0 and x[-1] == 19_999 and x == sorted(set(x))
        assert all(point.y.value == -point.x.value for point in one.points)
        assert max(np.diff(x)) - min(np.diff(x)) <= 1
    assert thin.thinned().series == thin.series
    assert len(chart_svg(thin, "k")) <= 40_000


def test_names_of_a_legend_stay_apart():
    long = "runs/" + "a" * 60
    names = drawn_names([long + "x", long + "y", "short", "short"])
    assert len(set(names)) == 4 and all(len(name) <= 36 for name in names)


def test_equal_charts_give_equal_bytes(charts, tmp_path):
    for number in (1, 2):
        chart_png(charts[0], tmp_path / f"{number}.png")
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")
    assert chart_svg(charts[0], "a") == chart_svg(charts[0], "a")


def x_ticks(x, **how):
    """Labels and places, as shares of the axis, of a line through points at ``x``; and where the points are."""
    points = tuple(Point(Estimate(float(at)), Estimate(1.0 + i)) for i, at in enumerate(x))
    svg = chart_svg(Chart("k", "t", "x", "y", (Series("a", points),), **how), "k")
    # The axis itself: its patch is the first path of the axes.
    left, right = map(float, re.search(r'patch_1"><path d="M ([\d.]+) [\d.]+L([\d.]+) ', svg).groups())
    drawn = (drawn_points(svg, 0, True)[:, 0] - left) / (right - left)
    found = ticks(svg, "x")
    return [value for value, _ in found], [(at - left) / (right - left) for _, at in found], drawn


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_radii_of_an_attack_are_told_by_their_labels(norm):
    radii = (0.0, *AttackSettings(norm=norm).epsilons)
    labels, at, drawn = x_ticks(radii, has_root_scale=True)
    # 0.075 lies too near to 0.1, which is shorter.
    assert labels == [radius for radius in radii if radius not in (0.075, 0.00075)]
    assert at[0] == pytest.approx(0, abs=0.01) and min(np.diff(at)) > 0.1 and at[-1] > 0.9
    assert at == pytest.approx([drawn[radii.index(label)] for label in labels], abs=0.01)


def test_a_root_scale_begins_at_a_point_at_0_however_many_there_are():
    for num in (2, 13, 21, 40):
        labels, at, drawn = x_ticks(np.arange(num) / 20, has_root_scale=True)
        assert labels[0] == 0 and labels[-1] == pytest.approx((num - 1) / 20) and min(np.diff(at)) > 0.094
        assert drawn[0] == pytest.approx(0, abs=0.01) and min(drawn) > -0.01
    labels, _, drawn = x_ticks([0.0], has_root_scale=True)
    assert labels == [0] and drawn[0] == pytest.approx(0, abs=0.01)


def test_steps_have_whole_ticks_over_the_whole_panel():
    assert x_ticks([20], has_whole_x=True)[0] == [20]
    labels, _, drawn = x_ticks([900, 950, 1000], has_whole_x=True)
    assert {900, 1000} <= set(labels) and drawn[0] < 0.1 and drawn[-1] > 0.9
    for steps in (range(1, 11), range(1_234_567, 1_234_640, 3), range(100_000, 4_000_000, 100_000), (1, 2)):
        labels, at, _ = x_ticks(steps, has_whole_x=True)
        assert len(labels) >= 2 and all(label == round(label) for label in labels) and len(set(labels)) == len(labels)
        assert len(set(np.diff(labels))) == 1 and min(np.diff(at)) > 0.05 * len(str(int(max(labels)))) ** 0.5


def test_ticks_that_are_a_tenth_apart_keep_their_labels():
    for scale in (1, 0.1):
        assert x_ticks(scale * np.arange(11))[0] == pytest.approx(scale * np.arange(11))
    # Two values are never one label.
    labels = x_ticks([0, 1234580.25, 2469160.5])[0]
    assert labels == [0, 1234580.25, 2469160.5] or len(set(labels)) == 3
    y = tuple(Point(Estimate(float(i)), Estimate(1234580 + i / 100)) for i in range(3))
    known = ticks(chart_svg(Chart("k", "t", "x", "y", (Series("a", y),)), "k"), "y")
    assert len({label for label, _ in known}) == len(known) >= 3


def test_one_point_and_equal_points_are_drawn():
    same = tuple(Point(Estimate(1.0), Estimate(2.0, 2.0, 2.0)) for _ in range(3))
    for is_line in (True, False):
        svg = chart_svg(Chart("k", "t", "x", "y", (Series("a", same), Series("b", same[:1], 1)), is_line=is_line), "k")
        assert len(drawn_points(svg, 0, is_line)) == 3
