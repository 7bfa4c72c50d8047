"""A picture as a PNG file: white, in the style that all charts share, equal bytes for equal content."""

from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fastadv.files.atomic_file import written_aside
from fastadv.pages.style import STYLE


@contextmanager
def png_figure(path: str | Path, width: float, height: float) -> Iterator[Figure]:
    """A figure to draw on, of so many inches; written to ``path`` at 150 dots an inch when the block ends."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        yield figure
        FigureCanvasAgg(figure)
        with written_aside(path) as aside:
            # Without a date, so that equal results give equal bytes.
            figure.savefig(aside, dpi=150, format="png", metadata={"Software": None})
