"""The report's curves: drawn once by matplotlib, as SVG that follows the page's theme or as a PNG on white."""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Series = Tuple[Sequence[float], Sequence[float]]
"""steps, values"""

PANEL_SIZE = (4.6, 3.1)
"""inches; a phone shows one panel across, a desk two"""

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fastadv",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
}


@dataclass(frozen=True)
class Palette:
    """Hex colours of a chart."""

    ink: str
    muted: str
    grid: str
    before: str
    after: str


PRINT = Palette(ink="#1c2430", muted="#5c6675", grid="#e3e7ec", before="#8a6d3b", after="#0b6e8a")

# Colours that no chart uses by accident; each becomes a CSS variable of the page, which knows light from dark.
_THEMED = Palette(ink="#010203", muted="#010204", grid="#010205", before="#010206", after="#010207")


@dataclass(frozen=True)
class AttackCurve:
    """One quantity against the attack's radius, before and after, with interval bands."""

    title: str
    radii: List[float]
    before: List[Tuple[float, float, float]]
    """value, low, high at each radius"""
    after: List[Tuple[float, float, float]]


def attack_curves(results: dict, keys: Sequence[str] = ("retrieval", "centred_cosine")) -> List[AttackCurve]:
    """The curves of ``results["rows"]`` with these keys; at radius 0 nothing is attacked, and every value is 1."""
    curves = []
    for key in keys:
        rows = sorted(
            (row for row in results["rows"] if row["key"].startswith(f"{key}@")), key=lambda row: row["radius"]
        )
        if rows:
            before = [(row["before"], row["before_low"], row["before_high"]) for row in rows]
            after = [(row["after"], row["after_low"], row["after_high"]) for row in rows]
            unattacked = (1.0, 1.0, 1.0)
            radii = [0.0, *(row["radius"] for row in rows)]
            curves.append(AttackCurve(rows[0]["label"], radii, [unattacked, *before], [unattacked, *after]))
    return curves


def attack_svg(curve: AttackCurve, name: str) -> str:
    """One curve as inline SVG; ``name`` keeps its ids apart from other drawings of the page."""
    with rc_context(STYLE):
        figure = Figure(figsize=PANEL_SIZE, layout="constrained")
        _draw_attack(figure.subplots(), curve, _THEMED)
        return _inline_svg(figure, name, curve.title)


def attack_png(curves: Sequence[AttackCurve], path: Path) -> None:
    """All curves side by side on white, 150 dots an inch."""
    with rc_context(STYLE):
        figure = Figure(figsize=(PANEL_SIZE[0] * len(curves), PANEL_SIZE[1]), layout="constrained", facecolor="white")
        for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
            _draw_attack(axes, curve, PRINT)
        FigureCanvasAgg(figure)
        # Date-free, so that equal results give equal bytes.
        figure.savefig(path, dpi=150, format="png", metadata={"Software": None})


def training_svg(series: Series, title: str, name: str, is_smoothed: bool) -> str:
    """A quantity over training steps as inline SVG, thin as logged and thick as a running mean."""
    steps, values = series
    with rc_context(STYLE):
        figure = Figure(figsize=(4.0, 2.4), layout="constrained")
        axes = figure.subplots()
        frame(axes, title, "step", _THEMED)
        smooth = running_mean(values) if is_smoothed else None
        single = {"marker": "o", "markersize": 3} if len(values) < 12 else {}
        axes.plot(
            steps, values, color=_THEMED.after, linewidth=0.8 if smooth else 1.8, alpha=0.45 if smooth else 1, **single
        )
        if smooth:
            axes.plot(steps, smooth, color=_THEMED.after, linewidth=1.8)
        return _inline_svg(figure, name, title)


def running_mean(values: Sequence[float]) -> Optional[List[float]]:
    """The mean over a centred window of a twelfth of the run; None where that is under three values."""
    half = len(values) // 24
    if half < 1:
        return None
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _draw_attack(axes: Axes, curve: AttackCurve, palette: Palette) -> None:
    frame(axes, curve.title, "attack radius, multiples of RMS(X)", palette)
    for name, points, colour, marker in (
        ("before", curve.before, palette.before, "o"),
        ("after", curve.after, palette.after, "s"),
    ):
        values, lows, highs = zip(*points, strict=True)
        axes.fill_between(curve.radii, lows, highs, color=colour, alpha=0.16, linewidth=0)
        # Points at an edge of the frame are drawn whole.
        axes.plot(
            curve.radii, values, color=colour, marker=marker, markersize=4, linewidth=1.8, label=name, clip_on=False
        )
    axes.set_ylim(min(0, *(low for _, low, _ in curve.before + curve.after)), 1.03)
    axes.set_xlim(left=0)
    axes.set_xticks(curve.radii, [f"{radius:g}" for radius in curve.radii])
    # Above the frame: no corner inside it is free for every outcome.
    legend = axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, borderaxespad=0.2, handlelength=1.6
    )
    for text in legend.get_texts():
        text.set_color(palette.ink)


def frame(axes: Axes, title: str, x_label: str, palette: Palette) -> None:
    """Title, axis label and grid, as all charts have them."""
    axes.set_title(title, color=palette.ink, fontweight="bold")
    axes.set_xlabel(x_label, color=palette.muted)
    axes.set_facecolor("none")
    axes.tick_params(colors=palette.muted, which="both")
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_color(palette.muted)
        spine.set_linewidth(0.8)


def _inline_svg(figure: Figure, name: str, title: str) -> str:
    figure.patch.set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids of two drawings on one page would meet.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    for field, colour in vars(_THEMED).items():
        svg = svg.replace(colour, f"var(--{field})")
    # Scaled by the page, not fixed in points.
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
