"""A chart as data: the page's SVG, the PNG and the CSV are made from one object, so that their points cannot differ."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Optional, Sequence, Tuple

from fastadv.files.csv_file import write_csv
from fastadv.pages.table import Estimate

MAX_POINTS_OF_SERIES = 500
MAX_POINTS = 800
"""of a chart, all series together: a page of ten runs must open at once on a phone"""

CSV_COLUMNS = ("series", "label", "x", "x_low", "x_high", "y", "y_low", "y_high", "num_points")


class Point(NamedTuple):
    """Where it lies, and what it is called."""

    x: Estimate
    y: Estimate
    label: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one name, in their order."""

    name: str
    points: Tuple[Point, ...]
    look: int = 0
    """number of the colour, marker and dash, so that a run looks alike in all charts"""
    is_faint: bool = False
    is_open: bool = False
    """markers without filling: a control"""
    num_points: int = 0
    """before the series was thinned; 0: as many as there are"""

    def thinned(self, most: int) -> "Series":
        """At most ``most`` of the points, evenly picked, with the first and the last."""
        num = len(self.points)
        if num <= most:
            return self
        picked = tuple(self.points[round(i * (num - 1) / (most - 1))] for i in range(most))
        return replace(self, points=picked, num_points=num)


@dataclass(frozen=True)
class Chart:
    """Series on two axes."""

    key: str
    """of the files' names"""
    title: str
    x_label: str
    y_label: str
    series: Tuple[Series, ...]
    caption: str = ""
    is_line: bool = True
    """points of a series are joined, their intervals are bands; else they stand alone, with bars"""
    joins_labels: bool = False
    """points of one label are joined over the series"""
    has_root_scale: bool = False
    """x is spread near 0"""
    has_whole_x: bool = False
    """x counts, as steps do: a tick between two of them would say nothing"""
    has_named_x: bool = False
    """x is no number: a tick is called by the label of the points there"""
    y_range: Tuple[Optional[float], Optional[float]] = (None, None)

    def thinned(self) -> "Chart":
        """With no more points than a page bears; the caption says so."""
        most = max(2, min(MAX_POINTS_OF_SERIES, MAX_POINTS // max(1, len(self.series))))
        series = tuple(one.thinned(most) for one in self.series)
        longest = max((one.num_points for one in series), default=0)
        if not longest:
            return self
        note = f"{most} of {longest:,} points a line."
        return replace(self, series=series, caption=f"{self.caption} {note}".strip())

    def write_csv(self, path: Path) -> None:
        """A line a point that is drawn; ``num_points`` is the number before thinning."""
        lines = (
            [one.name, point.label, *point.x, *point.y, one.num_points or len(one.points)]
            for one in self.series
            for point in one.points
        )
        write_csv(path, CSV_COLUMNS, lines)


def line_series(name: str, x: Sequence[float], y: Sequence[float], look: int = 0, is_faint: bool = False) -> Series:
    """A series without intervals."""
    points = tuple(Point(Estimate(float(a)), Estimate(float(b))) for a, b in zip(x, y, strict=True))
    return Series(name, points, look, is_faint)
