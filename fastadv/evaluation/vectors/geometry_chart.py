"""The picture of several models' geometry: alignment against uniformity, and the spectra beside it."""

from pathlib import Path
from typing import List

from matplotlib import colormaps
from matplotlib.axes import Axes

from fastadv.pages.png import png_figure
from fastadv.pages.style import PRINT, frame

_MARKERS = "osD^vP*X"
_NUM_COLOURS = 10
_LEAST_SHOWN = 1e-3
"""of the largest singular value: a direction that LayerNorm takes out is 10⁻⁸, and would flatten all others"""


def geometry_png(record: dict, path: Path) -> None:
    """Two panels; ``record`` is what `measure_geometry` gives."""
    with png_figure(path, 10.5, 4.2) as figure:
        plane, spectrum = figure.subplots(1, 2)
        names = short_names([row["model"] for row in record["models"]])
        _draw_plane(plane, record, names)
        _draw_spectrum(spectrum, record, names)


def short_names(models: List[str]) -> List[str]:
    """As many last parts of each path as tell the models apart; all of it where none do."""
    parts = [model.rstrip("/").split("/") for model in models]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return models


def _draw_plane(axes: Axes, record: dict, names: List[str]) -> None:
    frame(axes, "alignment and uniformity: both lower is better", "uniformity", PRINT)
    axes.set_ylabel(f"alignment ({record['positives']})", color=PRINT.muted)
    for i, row in enumerate(record["models"]):
        # Of a model without dropout there is no alignment by two masks: its uniformity stands at the axis.
        known = row["quantities"].get("alignment", {"value": 0.0, "low": 0.0, "high": 0.0})
        spread = row["quantities"]["uniformity"]
        axes.errorbar(
            spread["value"],
            known["value"],
            xerr=_arms(spread),
            yerr=_arms(known),
            marker=_MARKERS[i % len(_MARKERS)],
            color=_colour(i),
            markersize=7,
            capsize=3,
            linestyle="none",
            label=names[i] if "alignment" in row["quantities"] else f"{names[i]} (alignment not known)",
        )
    axes.margins(0.15)
    axes.legend(frameon=False, fontsize=8, labelcolor=PRINT.ink)


def _draw_spectrum(axes: Axes, record: dict, names: List[str]) -> None:
    frame(axes, "singular values of the centred vectors", "rank", PRINT)
    axes.set_ylabel("singular value / √N", color=PRINT.muted)
    for i, row in enumerate(record["models"]):
        values = [value for value in row["spectrum"] if value > 0]
        rank = row["quantities"]["effective_rank"]["value"]
        label = f"{names[i]}: effective rank {rank:.0f}"
        axes.plot(range(1, len(values) + 1), values, color=_colour(i), linewidth=1.8, label=label)
    axes.set_yscale("log")
    axes.set_xscale("log")
    largest = max(max(row["spectrum"], default=0.0) for row in record["models"])
    axes.set_ylim(bottom=max(axes.get_ylim()[0], _LEAST_SHOWN * largest))
    axes.legend(frameon=False, fontsize=8, labelcolor=PRINT.ink)


def _arms(quantity: dict):
    """Error bars reach down and up by these; a normal interval's rounding must not make one negative."""
    value = quantity["value"]
    return [[max(value - quantity["low"], 0)], [max(quantity["high"] - value, 0)]]


def _colour(i: int):
    return colormaps["tab10"](i % _NUM_COLOURS)
