"""Accuracy and distance against the radius of an attack, several models side by side, as one PNG."""

from pathlib import Path
from typing import List, Sequence, Tuple

from matplotlib.axes import Axes

from fastadv.pages.png import png_figure
from fastadv.pages.style import PANEL_SIZE, PRINT, frame

COLOURS = ("#0b6e8a", "#8a6d3b", "#7a4b8c", "#3d7a45", "#b0493a", "#5c6675")
MARKERS = "osD^vP"

_MIN_LABEL_GAP = 0.07
"""of the axis, between two radii that are both written below it"""


def attack_curves_png(results: dict, path: Path) -> None:
    """Draws what `fastadv.evaluation.embeddings.report.report` gives."""
    panels = [("accuracy", "accuracy under attack")]
    if all("distance_cosine" in row for model in results["models"] for row in model["epsilons"]):
        panels.append(("distance_cosine", "distance of the vectors, 1 − cos"))
    with png_figure(path, PANEL_SIZE[0] * len(panels), PANEL_SIZE[1] + 0.3) as figure:
        for axes, (key, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, results, key, title)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False)


def _draw(axes: Axes, results: dict, key: str, title: str) -> None:
    norm, epsilons = results["settings"]["norm"], results["settings"]["epsilons"]
    frame(axes, title, f"epsilon, {norm} norm of the perturbation of a text", PRINT)
    # Radii crowd near 0: the root spreads them.
    axes.set_xscale("function", functions=(lambda x: abs(x) ** 0.5, lambda x: x**2))
    for number, model in enumerate(results["models"]):
        radii, points = _points(model, key)
        values, lows, highs = zip(*points, strict=True)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.fill_between(radii, lows, highs, color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            radii, values, color=colour, marker=marker, markersize=4, linewidth=1.8, label=model["name"], clip_on=False
        )
    axes.set_xlim(left=0, right=max(epsilons) or None)
    axes.set_ylim(bottom=0, top=1.03 if key == "accuracy" else None)
    ticks = [0.0, *(epsilon for epsilon in epsilons if epsilon > 0)]
    axes.set_xticks(ticks, _tick_labels(ticks), minor=False)
    axes.minorticks_off()


def _points(model: dict, key: str) -> Tuple[List[float], List[Tuple[float, float, float]]]:
    """Radii from 0 on, and value, low, high at each; at 0 nothing is attacked."""
    at_zero = model["accuracy"] if key == "accuracy" else {"value": 0.0, "low": 0.0, "high": 0.0}
    rows = [(row["epsilon"], row[key]) for row in model["epsilons"] if row["epsilon"] > 0]
    intervals = [at_zero, *(interval for _, interval in rows)]
    return [0.0, *(epsilon for epsilon, _ in rows)], [(one["value"], one["low"], one["high"]) for one in intervals]


def _tick_labels(ticks: Sequence[float]) -> List[str]:
    labels, last, end = [], -1.0, max(ticks) or 1.0
    for tick in ticks:
        at = (tick / end) ** 0.5
        is_apart = at - last >= _MIN_LABEL_GAP
        labels.append(f"{tick:g}" if is_apart else "")
        last = at if is_apart else last
    return labels
