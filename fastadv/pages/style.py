"""How all charts look; `fastadv.pages.drawing` draws those of the report."""

from dataclasses import dataclass
from typing import List, Optional, Sequence

import numpy as np
from matplotlib.axes import Axes

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
