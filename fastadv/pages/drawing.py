"""Draws a chart by matplotlib: as SVG that follows the page's theme, or as PNG on white."""

import io
import re
import textwrap
import warnings
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.image import imread, imsave
from matplotlib.ticker import Formatter, MaxNLocator

from fastadv.pages.chart import Chart, Series
from fastadv.pages.shown_text import visible
from fastadv.pages.style import PANEL_SIZE, PRINT, STYLE, Palette, frame

# Okabe and Ito's, told apart under every common colour blindness, less the yellow that paper swallows.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a6598a", "#b07800", "#3a9bd1", "#444b57", "#7a4f1d")
# One fewer than colours, so that look 8 is not look 0.
MARKERS = "osD^vPX"
DASHES = ("solid", (0, (5, 2)), (0, (1.2, 1.6)), (0, (7, 2, 1.5, 2)), (0, (3, 1.5)))

_MAX_NAME = 30
"""letters of a series' name in a legend"""
_MOST_TICKS = 12
"""of an axis that has one at each radius"""
_LETTERS_OF_AXIS = 42
"""of tick labels that fit side by side"""
_NUM_MARKERS = 8
"""along a long line"""

# Colours that no chart uses by accident; each becomes a CSS variable of the page, which knows light from dark.
_THEMED = Palette(ink="#010203", muted="#010204", grid="#010205", before="#010206", after="#010207")
_THEMED_SERIES = tuple(f"#01030{i}" for i in range(len(COLOURS)))
_VARIABLES = {colour: field for field, colour in vars(_THEMED).items()}
_VARIABLES |= {colour: f"series-{i}" for i, colour in enumerate(_THEMED_SERIES)}

_WIDE_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR")
_WIDE_FONTS += ("Source Han Sans", "WenQuanYi Zen Hei", "Droid Sans Fallback", "IPAexGothic", "Hiragino Sans")
_WIDE_FONTS += ("Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Arial Unicode MS")

_SETTINGS = {**STYLE, "path.simplify": False, "text.parse_math": False}


def chart_svg(chart: Chart, name: str) -> str:
    """Inline SVG; ``name`` keeps its ids apart from other drawings of the page."""
    with rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure = _figure(chart, _THEMED, _THEMED_SERIES)
        figure.patch.set_visible(False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids of two drawings on one page would meet.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*([MLCQz])\b ?", r"\1", svg))
    # A hundredth of a point is finer than any screen.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag[0]), svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    # Scaled by the page, not fixed in points.
    for side in ("width", "height"):
        svg = re.sub(rf'<svg ([^>]*?){side}="[^"]*"', r"<svg \1", svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(described(chart))}" ', 1)


def chart_png(chart: Chart, path: Path | io.BytesIO) -> None:
    """On white, 150 dots an inch."""
    with rc_context({**_SETTINGS, "font.family": _families()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure = _figure(chart, PRINT, COLOURS)
        figure.set_facecolor("white")
        FigureCanvasAgg(figure)
        # Date-free, so that equal results give equal bytes.
        figure.savefig(path, dpi=150, format="png", metadata={"Software": None})


def charts_png(charts: Sequence[Chart], path: Path, num_columns: int | None = None) -> None:
    """Charts side by side as one picture, each as `chart_png` draws it; their legends have equally many lines.

    Args:
        num_columns: charts in a row, of which their number is a multiple; None: all.
    """
    pictures = []
    for chart in charts:
        buffer = io.BytesIO()
        chart_png(chart, buffer)
        buffer.seek(0)
        pictures.append(imread(buffer, format="png"))
    width = num_columns or len(pictures)
    rows = [np.hstack(pictures[begin : begin + width]) for begin in range(0, len(pictures), width)]
    imsave(path, np.vstack(rows), format="png", dpi=150, metadata={"Software": None})


@lru_cache(maxsize=1)
def _families() -> List[str]:
    """matplotlib's own font has no East Asian letters: after it come those installed ones that have."""
    installed = {font.name for font in fontManager.ttflist}
    return ["sans-serif", *(name for name in _WIDE_FONTS if name in installed)]


def described(chart: Chart) -> str:
    """The chart in words, for those who do not see it."""
    parts = [f"{chart.title}. {chart.y_label} against {chart.x_label}."]
    for one in chart.series:
        if one.points and not one.is_faint:
            ends = [f"{point.y.value:.4g}" for point in (one.points[0], one.points[-1])]
            parts.append(f"{one.name}: from {' to '.join(ends)}." if len(one.points) > 1 else f"{one.name}: {ends[0]}.")
    return visible(" ".join(parts))


def drawn_names(names: Sequence[str]) -> List[str]:
    """Short enough for a legend, and still told apart."""
    shown = [visible(name) for name in names]
    half = _MAX_NAME // 2 - 1
    short = [name if len(name) <= _MAX_NAME else f"{name[:half]}…{name[-half:]}" for name in shown]
    return [f"{name} ({i + 1})" if short.count(name) > 1 else name for i, name in enumerate(short)]


def _figure(chart: Chart, palette: Palette, colours: Sequence[str]) -> Figure:
    named = [one for one in chart.series if not one.is_faint]
    names = drawn_names([one.name for one in named])
    num_columns = 1 if max(map(len, names), default=0) > 22 else 2
    num_lines = -(-len(names) // num_columns) if len(names) > 1 else 0
    figure = Figure(figsize=(PANEL_SIZE[0], PANEL_SIZE[1] + 0.19 * num_lines), layout="constrained")
    axes = figure.subplots()
    frame(axes, _wrapped(chart.title, 38), _wrapped(chart.x_label, 52), palette)
    axes.set_ylabel(_wrapped(chart.y_label, 34), color=palette.muted)
    if chart.has_root_scale:
        # Radii crowd near 0: the root spreads them.
        axes.set_xscale("function", functions=(lambda x: abs(x) ** 0.5, lambda x: x**2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_Plain())
    by_series = dict(zip(map(id, named), names))
    for number, one in enumerate(chart.series):
        label = by_series.get(id(one), "_faint")
        (_draw_line if chart.is_line else _draw_points)(axes, one, number, label, colours)
    if chart.joins_labels:
        _join(axes, chart, palette)
    _set_ranges(axes, chart)
    if num_lines:
        handles, labels = axes.get_legend_handles_labels()
        how = {"frameon": False, "fontsize": 9, "handlelength": 2.6, "labelcolor": palette.ink}
        figure.legend(handles, labels, loc="outside lower left", ncols=num_columns, **how)
    return figure


def _wrapped(text: str, most: int) -> str:
    """On as many lines as fit a panel; a word that is longer than a line is cut in the middle, as names are."""
    text = visible(text).replace(" = ", "\u00a0=\u00a0")
    text = " ".join(drawn_names([word])[0] if len(word) > most else word for word in text.split(" "))
    return "\n".join(textwrap.wrap(text, most, max_lines=3, placeholder=" …", break_on_hyphens=False)) or text


def _draw_line(axes: Axes, one: Series, number: int, label: str, colours: Sequence[str]) -> None:
    x, y = _values(one)
    look = _look(one, colours)
    banded = [point for point in one.points if point.y.low is not None and point.y.high is not None]
    if banded:
        at, lows, highs = zip(*((point.x.value, point.y.low, point.y.high) for point in banded))
        axes.fill_between(at, lows, highs, color=look["color"], alpha=0.13, linewidth=0)
    if one.is_faint:
        axes.plot(x, y, color=look["color"], linewidth=0.8, alpha=0.4, label=label, gid=f"series-{number}")
        return
    every = max(1, len(x) // _NUM_MARKERS)
    dash = (0, (1, 1.2)) if one.is_open else DASHES[one.look % len(DASHES)]
    axes.plot(
        x, y, linewidth=1.7, linestyle=dash, label=label, gid=f"series-{number}",
        markevery=(min(one.look, every - 1) if every > 1 else 0, every), markersize=4, clip_on=False, **look,
    )  # fmt: skip


def _draw_points(axes: Axes, one: Series, number: int, label: str, colours: Sequence[str]) -> None:
    x, y = _values(one)
    look = _look(one, colours)
    for axis in ("x", "y"):
        arms = [_arms(getattr(point, axis)) for point in one.points]
        if any(map(any, arms)):
            bars = {f"{axis}err": list(zip(*arms)), "elinewidth": 1.1, "capsize": 2.5}
            axes.errorbar(x, y, linestyle="none", color=look["color"], **bars)
    axes.plot(x, y, linestyle="none", label=label, gid=f"series-{number}", markersize=6.5, clip_on=False, **look)


def _join(axes: Axes, chart: Chart, palette: Palette) -> None:
    """A thin line through the points of each label, and the label at the last of them."""
    found = {}
    for one in chart.series:
        for point in one.points:
            found.setdefault(point.label, []).append((point.x.value, point.y.value))
    for number, (label, points) in enumerate(found.items()):
        points.sort()
        axes.plot(*zip(*points), color=palette.muted, linewidth=0.8, alpha=0.7, zorder=1)
        place = {"xytext": (6, (5, -12)[number % 2]), "textcoords": "offset points"}
        axes.annotate(drawn_names([label])[0], points[0], **place, fontsize=8, color=palette.muted)


def _set_ranges(axes: Axes, chart: Chart) -> None:
    low, high = chart.y_range
    # Never narrower than what is drawn.
    found_low, found_high = axes.get_ylim()
    values = [part for one in chart.series for p in one.points for part in p.y if part is not None]
    if values:
        low = found_low if low is None else min(low, *values)
        high = found_high if high is None else max(high, *values)
        axes.set_ylim(low, high)
    ticks = sorted({point.x.value for one in chart.series for point in one.points})
    if chart.has_named_x:
        names = {point.x.value: point.label for one in chart.series for point in one.points}
        axes.set_xticks(ticks, drawn_names([names[tick] for tick in ticks]))
    elif chart.has_whole_x:
        _set_whole_ticks(axes, ticks)
    elif chart.is_line and ticks and ticks[0] >= 0 and (chart.has_root_scale or 1 < len(ticks) <= _MOST_TICKS):
        _set_radii(axes, ticks, chart.has_root_scale)


def _set_whole_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """Ticks at whole numbers, no more than their digits leave room for."""
    if len(ticks) == 1:
        axes.set_xticks(ticks)
    elif ticks:
        most = max(2, min(8, _LETTERS_OF_AXIS // (len(_apart(ticks[-1:])[0]) + 2)))
        axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, steps=(1, 2, 5, 10), min_n_ticks=1))


def _set_radii(axes: Axes, ticks: List[float], has_root_scale: bool) -> None:
    """An axis that begins at 0 and has a tick at each radius, or, where they are many, at those with a label."""
    # Without a point at 0, a root's scale would leave half the panel empty.
    left = 0.0 if ticks[0] == 0 or not has_root_scale else 0.8 * ticks[0]
    right = ticks[-1] if len(ticks) > 1 else 2 * ticks[0] or 1.0
    power = 0.5 if has_root_scale else 1.0
    # A twentieth more, as other axes have it.
    axes.set_xlim(left, (right**power + 0.05 * (right**power - left**power)) ** (1 / power))
    labels = _tick_labels(ticks, power, left)
    marked = [(tick, label) for tick, label in zip(ticks, labels) if label or len(ticks) <= _MOST_TICKS]
    axes.set_xticks(*zip(*marked))
    axes.minorticks_off()


def _tick_labels(ticks: Sequence[float], power: float, left: float = 0.0) -> List[str]:
    """The first, the last, and of the others those that lie on none before them, the short ones before the long."""
    texts, begin, end = _apart(ticks), left**power, max(ticks[-1], left) ** power
    places = [(tick**power - begin) / ((end - begin) or 1.0) for tick in ticks]
    last = len(ticks) - 1
    taken: List[int] = []
    for i in sorted(range(len(ticks)), key=lambda i: (i not in (0, last), i != last, len(texts[i]), i)):
        if all(_room(texts[i], texts[j]) <= abs(places[i] - places[j]) + 1e-9 for j in taken):
            taken.append(i)
    return [text if i in taken else "" for i, text in enumerate(texts)]


def _room(first: str, second: str) -> float:
    """Between the middles of two labels, as a share of the axis."""
    return max(0.1, ((len(first) + len(second)) / 2 + 0.5) / _LETTERS_OF_AXIS)


def _apart(values: Sequence[float]) -> List[str]:
    """Each with six digits, or as many more as tell all of them apart; whole ones are written whole."""
    for digits in range(6, 18):
        texts = [f"{v:.0f}" if v == round(v) and abs(v) < 1e9 else f"{v:.{digits}g}" for v in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


class _Plain(Formatter):
    """Neither an offset nor a power of ten beside the axis: what a tick says is its value."""

    def __call__(self, x: float, pos: Optional[int] = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> List[str]:
        return [text.replace("-", "−") for text in _apart([float(value) for value in values])]


def _values(one: Series) -> Tuple[List[float], List[float]]:
    return [point.x.value for point in one.points], [point.y.value for point in one.points]


def _look(one: Series, colours: Sequence[str]) -> dict:
    colour = colours[one.look % len(colours)]
    look = {"color": colour, "marker": MARKERS[one.look % len(MARKERS)]}
    return {**look, "markerfacecolor": "none"} if one.is_open else look


def _arms(estimate) -> Tuple[float, float]:
    """Down and up; rounding must not make one negative."""
    if estimate.low is None or estimate.high is None:
        return 0.0, 0.0
    return max(estimate.value - estimate.low, 0.0), max(estimate.high - estimate.value, 0.0)


def _rounded(number: "re.Match") -> str:
    return f"{float(number[0]):.2f}"
