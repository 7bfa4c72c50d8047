"""The sentence study's ``study.png``: six panels, each drawn from what there is of it."""

from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.studies.sentence.arms import BY_NAME, REFERENCE
from bench.studies.sentence.read import Cell, Records, Table
from bench.studies.sentence.records import AT_TWO_WORDS
from fastadv.pages.drawing import COLOURS, MARKERS
from fastadv.pages.style import PANEL_SIZE, PRINT, STYLE, frame

_ATTACKED = "centred cosine"
_TEXT_RATES = (("any words", "attack success"), ("≤ 2 words", AT_TWO_WORDS))

Points = List[Tuple[str, float, float]]


def plot(records: Records, tables: Dict[str, Table], path: Path) -> None:
    """Draws the tables of `bench.studies.sentence.report.tables_of`."""
    sizes = next(iter(records.values())).facts["sizes"]
    panels: Sequence[Callable[[Axes], bool]] = (
        lambda axes: _clean_and_attacked(axes, tables["steps"], sizes["radii"]),
        lambda axes: _on_the_sphere(axes, tables["steps"]),
        lambda axes: _against_radius(axes, tables["steps"], sizes["radii"]),
        lambda axes: _against_training_radius(axes, tables["explorations"], sizes["radii"]),
        lambda axes: _text_attacks(axes, tables),
        lambda axes: _costs(axes, records),
    )
    draw_panels(panels, 3, path)


def draw_panels(panels: Sequence[Callable[[Axes], bool]], num_columns: int, path: Path) -> None:
    """A PNG on white, 150 dots an inch; a panel that returns False has nothing to draw, and says so."""
    num_rows = -(-len(panels) // num_columns)
    size = (PANEL_SIZE[0] * num_columns, (PANEL_SIZE[1] + 0.9) * num_rows)
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        for axes, draw in zip(figure.subplots(num_rows, num_columns).flat, panels, strict=True):
            if not draw(axes):
                axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=PRINT.muted)
                axes.set(xticks=[], yticks=[], xlabel="")
        FigureCanvasAgg(figure)
        # Date-free, so that equal results give equal bytes.
        figure.savefig(path, dpi=150, format="png", metadata={"Software": None})


def points_of(table: Table, x: Dict[str, Cell], y: Dict[str, Cell]) -> Points:
    """(label, x, y) of the systems that have both."""
    return [(label, x[label].mean, y[label].mean) for label in table.systems if label in x and label in y]


def largest_measured(table: Table, radii: Sequence[float]) -> Optional[float]:
    """The largest radius at which embeddings were attacked."""
    return next((e for e in sorted(radii, reverse=True) if table.find("embeddings", _ATTACKED, e)), None)


def scatter(axes: Axes, table: Table, x: Dict[str, Cell], y: Dict[str, Cell]) -> bool:
    """A large point a system, its mean, and a small one a seed."""
    for number, (label, of_x, of_y) in enumerate(points_of(table, x, y)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        both = [seed for seed in x[label].by_seed if seed in y[label].by_seed]
        seeds = [(x[label].by_seed[seed], y[label].by_seed[seed]) for seed in both]
        if seeds:
            axes.plot(*zip(*seeds), marker, color=colour, alpha=0.35, markersize=4)
        axes.plot([of_x], [of_y], marker, color=colour, markersize=8, label=label)
    axes.margins(0.18)
    axes.locator_params(axis="x", nbins=5)
    return _legend(axes)


def _clean_and_attacked(axes: Axes, table: Table, radii: Sequence[float]) -> bool:
    radius = largest_measured(table, radii)
    frame(axes, f"{_ATTACKED} under attack (ε {radius or 0:g}) against STS-B", "STS-B test, Spearman × 100", PRINT)
    attacked = table.find("embeddings", _ATTACKED, radius)
    return scatter(axes, table, table.find("sts", "spearman", None, "STS-B"), attacked)


def _on_the_sphere(axes: Axes, table: Table) -> bool:
    frame(axes, "alignment against uniformity, lower is better", "uniformity", PRINT)
    return scatter(axes, table, table.find("geometry", "uniformity"), table.find("geometry", "alignment"))


def _against_radius(axes: Axes, table: Table, radii: Sequence[float]) -> bool:
    """A line a system, its interval as a band."""
    frame(axes, f"{_ATTACKED} under attack", "radius ε of the attack, multiples of RMS(X)", PRINT)
    for number, label in enumerate(table.systems):
        found = [(e, table.find("embeddings", _ATTACKED, e).get(label)) for e in radii]
        known = [(e, cell) for e, cell in found if cell is not None]
        if known:
            x, means = [e for e, _ in known], [cell.mean for _, cell in known]
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            axes.plot(x, means, marker=marker, color=colour, markersize=4, linewidth=1.6, label=label)
            if all(cell.low is not None for _, cell in known):
                axes.fill_between(x, [c.low for _, c in known], [c.high for _, c in known], color=colour, alpha=0.1)
    _ticks_at(axes, radii)
    return _legend(axes)


def _against_training_radius(axes: Axes, table: Table, radii: Sequence[float]) -> bool:
    """What the ε that is trained with does, everything else being the same."""
    frame(axes, f"{REFERENCE} by the ε that it trains with, %", "ε of training, multiples of RMS(X)", PRINT)
    names = [n for n in table.systems if n == REFERENCE or n.startswith("eps-")]
    names.sort(key=lambda name: BY_NAME[name].epsilon)
    radius = largest_measured(table, radii)
    probed = sorted({q.epsilon for q in table.cells if q.metric == "probe accuracy" and q.epsilon is not None})
    chosen = [(f"retrieval@1, ε {radius or 0:g}", table.find("embeddings", "retrieval@1", radius))]
    chosen.append(("probe, clean", table.find("embeddings", "probe accuracy")))
    chosen += [(f"probe, ε {e:g}", table.find("embeddings", "probe accuracy", e)) for e in probed]
    chosen += [(f"DeepWordBug, {words}", table.find("text-deepwordbug", metric)) for words, metric in _TEXT_RATES]
    for number, (label, cells) in enumerate(chosen):
        known = [(BY_NAME[name].epsilon, cells[name].mean) for name in names if name in cells]
        if known:
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*known), marker=marker, color=COLOURS[number % len(COLOURS)], markersize=4, label=label)
    axes.set_ylim(-2, 104)
    _ticks_at(axes, [BY_NAME[name].epsilon for name in names])
    return _legend(axes)


def _text_attacks(axes: Axes, tables: Dict[str, Table]) -> bool:
    """DeepWordBug's success with its intervals: systems at equal steps, then explorations."""
    series: Dict[str, Dict[str, Cell]] = {}
    for words, metric in _TEXT_RATES:
        cells = series.setdefault(words, {})
        for name in ("steps", "explorations"):
            found = tables[name].find("text-deepwordbug", metric)
            cells.update({label: cell for label, cell in found.items() if label not in cells})
    return dots(axes, "DeepWordBug succeeds, %", series)


def dots(axes: Axes, title: str, series: Dict[str, Dict[str, Cell]]) -> bool:
    """A line a system, and on it a point with its interval for each of the series (words → system → cell)."""
    frame(axes, title, "", PRINT)
    labels: List[str] = []
    for (words, cells), colour, marker in zip(series.items(), (PRINT.after, PRINT.before, *COLOURS), MARKERS):
        labels += [label for label in cells if label not in labels]
        places = [labels.index(label) for label in cells]
        axes.plot([cell.mean for cell in cells.values()], places, marker, color=colour, markersize=5, label=words)
        for place, cell in zip(places, cells.values()):
            if cell.low is not None:
                axes.plot([cell.low, cell.high], [place, place], color=colour, linewidth=1.4)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.grid(axis="x", color=PRINT.grid, linewidth=0.8)
    axes.invert_yaxis()
    # Below the frame: every line of it has points.
    return bool(labels) and _legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.08), borderaxespad=0.2)


def _costs(axes: Axes, records: Records) -> bool:
    """A step's processor time, seed 0; arms at equal time are their systems again."""
    frame(axes, "a step, seconds of one thread", "", PRINT)
    timed = {n: r.facts["cpu_s_a_step"] for (n, seed), r in records.items() if seed == 0 and "cpu_s_a_step" in r.facts}
    names = [name for name in BY_NAME if name in timed and not BY_NAME[name].system]
    axes.barh(range(len(names)), [timed[name] for name in names], color=PRINT.after, height=0.6)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.grid(axis="x", color=PRINT.grid, linewidth=0.8)
    axes.invert_yaxis()
    return bool(names)


def _ticks_at(axes: Axes, values: Sequence[float]) -> None:
    """Where something was measured; matplotlib's own crowd around a single value."""
    axes.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])


def _legend(axes: Axes, **place) -> bool:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(frameon=False, fontsize=8, ncols=2, **place)
    return bool(handles)
