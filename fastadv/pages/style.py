"""How all charts look, and the curves of a run's attack.png; the report's own are in `fastadv.pages.drawing`."""

from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
        rows = [row for row in results["rows"] if row["key"].startswith(f"{key}@") and row["radius"] is not None]
        rows = sorted(rows, key=lambda row: row["radius"])
        if rows:
            before = [(row["before"], row["before_low"], row["before_high"]) for row in rows]
            after = [(row["after"], row["after_low"], row["after_high"]) for row in rows]
            unattacked = (1.0, 1.0, 1.0)
            radii = [0.0, *(row["radius"] for row in rows)]
            curves.append(AttackCurve(rows[0]["label"], radii, [unattacked, *before], [unattacked, *after]))
    return curves


def attack_png(curves: Sequence[AttackCurve], path: Path) -> None:
    """All curves side by side on white, 150 dots an inch."""
    with rc_context(STYLE):
        figure = Figure(figsize=(PANEL_SIZE[0] * len(curves), PANEL_SIZE[1]), layout="constrained", facecolor="white")
        for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
            _draw_attack(axes, curve, PRINT)
        FigureCanvasAgg(figure)
        # Date-free, so that equal results give equal bytes.
        figure.savefig(path, dpi=150, format="png", metadata={"Software": None})


def running_mean(values: Sequence[float]) -> Optional[List[float]]:
    """The mean over a centred window of a twelfth of the run; None where that is under three values."""
    half, num = len(values) // 24, len(values)
    if half < 1:
        return None
    # Sums that begin anew every `width` values: a window is the end of one stretch and the beginning of the next, so
    # that nothing outside it, however large, has a say in its last digits.
    width = 2 * half + 1
    padded = np.zeros(-(-(num + 2 * half) // width) * width)
    padded[half : half + num] = values
    stretches = padded.reshape(-1, width)
    with np.errstate(over="ignore"):
        from_begin = np.cumsum(stretches, axis=1).ravel()
        to_end = np.cumsum(stretches[:, ::-1], axis=1)[:, ::-1].ravel()
        first = np.arange(num)
        sums = from_begin[first + width - 1] + np.where(first % width, to_end[first], 0.0)
    counts = np.minimum(first + half, num - 1) - np.maximum(first - half, 0) + 1
    return (sums / counts).tolist()


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
