"""How training went and what it cost: curves, and a table of what was measured."""

from statistics import median
from typing import Dict, List, Sequence, Tuple

from fastadv.pages.chart import Chart, line_series
from fastadv.pages.style import running_mean
from fastadv.pages.table import Cell, Column, Table
from fastadv.report.run_record import RunRecord
from fastadv.report.sections.section import Section

_PANELS = (
    ("loss", "loss", True, "The objective that training lowers, on the sentences of the step."),
    ("loss_contrastive", "contrastive loss", True, "The contrastive term, unweighted."),
    ("loss_clean", "clean loss", True, "Cross-entropy of the clean pass."),
    ("loss_adversarial", "adversarial loss", True, "The term of the attacked sentences, unweighted."),
    ("inner_gain", "inner gain", True, "How much the search raised the inner loss, its last step left out."),
    ("lr", "learning rate", False, "The rate of the optimizer at the step."),
    ("grad_norm", "gradient norm", True, "Of all weights, before clipping."),
    ("uniformity", "uniformity", True, "How far the vectors of a step spread: 0 if all coincide, lower is more."),
    ("vector_rank", "rank of the vectors", True, "Over how many directions the vectors of a step spread evenly."),
    ("sentences_per_s", "sentences a second", False, "Training speed since the start of the process."),
    ("dev/score", "dev score", False, "The score on the dev data, by which weights are kept."),
)
"""metric, title, smoothed, what it is"""

_PHASES = (("data", "data"), ("forward", "forward"), ("search", "search"), ("adversarial", "adversarial pass"))
_PHASES += (("backward", "backward"), ("optimizer", "optimizer"))
_APART = ("time/eval", "time/save")
"""phases that are no part of a step"""


def training_section(runs: Dict[str, RunRecord]) -> List[Section]:
    """Curves over steps; several runs in one chart, as running means where they are noisy."""
    charts = []
    for metric, title, is_smoothed, text in _PANELS:
        series, has_mean = [], False
        for look, (name, run) in enumerate(runs.items()):
            if metric not in run.series:
                continue
            steps, values = run.series[metric]
            smooth = running_mean(values) if is_smoothed else None
            has_mean |= smooth is not None
            if smooth and len(runs) == 1:
                series.append(line_series("as logged", steps, values, look, is_faint=True))
            label = "running mean" if smooth and len(runs) == 1 else name
            series.append(line_series(label, steps, smooth or values, look))
        if series:
            note = " Running means over a twelfth of the run." if has_mean and len(runs) > 1 else ""
            key = f"training-{metric.replace('/', '-').replace('_', '-')}"
            chart = Chart(key, title, "step", title, tuple(series), f"{text}{note}", has_whole_x=True)
            charts.append(chart.thinned())
    return [Section("Training", charts)] if charts else []


def cost_section(runs: Dict[str, RunRecord]) -> List[Section]:
    """What steps took, by the clock of the run."""
    lines = [(name, _costs(run)) for name, run in runs.items()]
    columns = [column for column in _COLUMNS if any(column.name in found for _, found in lines)]
    if not columns:
        return []
    rows = [[name, *(found.get(column.name) for column in columns)] for name, found in lines]
    caption = (
        "Medians over the lines of metrics.jsonl; shares are of a step without evaluating and saving, on the machine "
        "of the run. Search and adversarial pass together are what robustness costs."
    )
    return [Section("What it cost", [Table("cost", caption, [Column("run", is_text=True), *columns], rows)])]


_COLUMNS = (
    Column("steps", "g"),
    Column("s a step", ".3f"),
    Column("sentences/s", ".1f"),
    Column("tokens/s", ".0f"),
    *(Column(f"{words}, %", ".1f") for _, words in _PHASES),
    Column("adversarial part, %", ".1f"),
    Column("gradients skipped", ".2f"),
    Column("memory, GiB", ".2f"),
    Column("MFU, %", ".1f"),
    Column("training, h", ".3f"),
    Column("evaluating and saving, h", ".3f"),
)


def _costs(run: RunRecord) -> Dict[str, Cell]:
    """By the name of the column; what was not logged is not there."""
    series = run.series
    found: Dict[str, Cell] = {}
    if series:
        found["steps"] = int(max(steps[-1] for steps, _ in series.values()))
    times = {name: series[name] for name in series if name.startswith("time/")}
    totals = _totals({name: one for name, one in times.items() if name not in _APART})
    if totals:
        found["s a step"] = median([total for _, total in totals])
        columns = {f"{words}, %": [f"time/{phase}"] for phase, words in _PHASES}
        for column, phases in {**columns, "adversarial part, %": ["time/search", "time/adversarial"]}.items():
            shares = _shares(phases, times, dict(totals))
            if shares:
                found[column] = median(shares)
        found["training, h"] = _hours(totals, totals)
        apart = _totals({name: times[name] for name in _APART if name in times})
        if apart:
            found["evaluating and saving, h"] = _hours(apart, totals)
    for metric, column, factor in (
        ("sentences_per_s", "sentences/s", 1.0),
        ("tokens_per_s", "tokens/s", 1.0),
        ("gradients_skipped", "gradients skipped", 1.0),
        ("mfu", "MFU, %", 100.0),
    ):
        if metric in series:
            found[column] = factor * median(series[metric][1])
    if "memory_gib" in series:
        found["memory, GiB"] = max(series["memory_gib"][1])
    return found


def _totals(times: Dict[str, Tuple[Sequence[float], Sequence[float]]]) -> List[Tuple[float, float]]:
    """(step, seconds a step) summed over phases."""
    sums: Dict[float, float] = {}
    for steps, values in times.values():
        for step, value in zip(steps, values):
            sums[step] = sums.get(step, 0.0) + value
    return sorted(sums.items())


def _shares(phases: List[str], times: dict, totals: Dict[float, float]) -> List[float]:
    """Of each line in which a phase stands, the % of the step that the phases take."""
    parts = _totals({phase: times[phase] for phase in phases if phase in times})
    return [100.0 * value / totals[step] for step, value in parts if totals.get(step)]


def _hours(times: List[Tuple[float, float]], totals: List[Tuple[float, float]]) -> float:
    """A line's times are means over the steps since the line before it in which a step's phases stand."""
    before = dict(zip((step for step, _ in totals), (0.0, *(step for step, _ in totals))))
    return sum((step - before.get(step, step)) * value for step, value in times) / 3600
