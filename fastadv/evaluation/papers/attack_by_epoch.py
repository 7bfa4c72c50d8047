"""Success rates of attacks over a training's epochs, as BAT's figures 3 and 4 have them: CSV and PNG.

Every point is the report of one attack (``text-attack.json``) on the model of one epoch; points of one series make a
line, reports of models trained without the defence make dashed ones.
"""

import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from fastadv.config.text_attack import CAPS
from fastadv.errors import UserError
from fastadv.evaluation.model_names import is_folder
from fastadv.evaluation.text_report.page import recipe_name
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import read_json
from fastadv.pages.drawing import COLOURS, MARKERS
from fastadv.pages.png import png_figure
from fastadv.pages.style import PRINT, frame

REPORT = "text-attack.json"

# A series is looked for only where there is none before the epoch: the folder may hold both signs.
_RUN = re.compile(r"(?:(?P<series>.*):)??(?P<epoch>[\d.]+(?:[eE][+-]?\d+)?)=(?P<folder>.+)", re.DOTALL)


class EpochPoint(NamedTuple):
    """One report."""

    series: str
    epoch: Optional[float]
    """None: of a baseline, which no epoch changes"""
    folder: str
    success: dict
    """``value``, ``low``, ``high``, ``count``, ``total``; None where nothing was attacked"""
    accuracy: Optional[float]


def parse_run(text: str) -> tuple[Optional[str], float, str]:
    """``[SERIES:]EPOCH=FOLDER`` as (series, epoch, folder).

    Raises:
        UserError: anything else.
    """
    found = _RUN.fullmatch(text)
    try:
        number = float(found["epoch"]) if found else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UserError(
            f"--run {text!r}: expected [SERIES:]EPOCH=FOLDER, such as 3=runs/attack-3 or 'batch 8:3=attack'"
        )
    return found["series"] or None, number, found["folder"]


def read_point(folder: str, series: Optional[str], epoch: Optional[float], cap: str = CAPS[0].name) -> EpochPoint:
    """The first model's rate in the report of an attack.

    Args:
        series: None: the recipe of the attack.
        cap: the name of one of `text_attack_rates.CAPS`.

    Raises:
        UserError: no report there.
    """
    path = Path(folder).expanduser() / REPORT
    try:
        report = read_json(path)
        rates = report["models"][0]["rates"]
        success, accuracy = rates["success"][cap], rates["accuracy"]["value"]
        recipe = recipe_name(report["protocol"])
    except OSError as error:
        raise UserError(f"{folder!r}: {error.strerror or error}; expected the folder of a text attack") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{str(path)!r} is no report of a text attack") from error
    return EpochPoint(series or recipe or "attack", epoch, folder, success, accuracy)


def points_of(runs: Sequence[str], baselines: Sequence[str] = (), cap: str = CAPS[0].name) -> List[EpochPoint]:
    """The points of ``[SERIES:]EPOCH=FOLDER``, in order of series and epoch, then those of ``[SERIES=]FOLDER``.

    Raises:
        UserError: no run, a report that is not there, or two of one series and epoch.
    """
    if not runs:
        raise UserError("attack-by-epoch needs at least one --run EPOCH=FOLDER")
    found: Dict[tuple, EpochPoint] = {}
    for run in runs:
        series, epoch, folder = parse_run(run)
        point = read_point(folder, series, epoch, cap)
        if (point.series, epoch) in found:
            raise UserError(f"--run {run!r}: epoch {epoch:g} of {point.series!r} is given twice")
        found[point.series, epoch] = point
    order = {series: number for number, series in enumerate(dict.fromkeys(series for series, _ in found))}
    points = sorted(found.values(), key=lambda point: (order[point.series], point.epoch))
    for baseline in baselines:
        # A folder that exists may have the sign in its name.
        series, _, folder = ("", "", baseline) if is_folder(baseline) else baseline.partition("=")
        series, folder = (series, folder) if folder else ("", series)
        points.append(read_point(folder, series or None, None, cap))
    return points


def epoch_table(points: Sequence[EpochPoint]) -> str:
    """A point a line."""
    lines = []
    for point in points:
        epoch = "baseline" if point.epoch is None else f"epoch {point.epoch:g}"
        lines.append(f"{point.series}, {epoch}: {_words(point.success)}")
    return "\n".join(lines)


def _words(success: dict) -> str:
    if success["value"] is None:
        return "n/a, nothing was attacked"
    low, high = 100 * success["low"], 100 * success["high"]
    return f"{success['value']:.1%} [{low:.1f}, {high:.1f}] of {success['total']:,}"


def write_epochs(out: Path, points: Sequence[EpochPoint], cap: str = CAPS[0].name) -> None:
    """``attack-by-epoch.csv`` and ``.png`` in the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    columns = ["series", "epoch", "cap", "success", "low", "high", "succeeded", "attacked", "accuracy", "run"]
    rows = []
    for point in points:
        bounds = [point.success[end] for end in ("value", "low", "high")] + [point.accuracy]
        value, low, high, accuracy = (None if bound is None else f"{bound:.6g}" for bound in bounds)
        place = [point.series, None if point.epoch is None else f"{point.epoch:g}", cap, value, low, high]
        rows.append([*place, point.success["count"], point.success["total"], accuracy, point.folder])
    write_csv(out / "attack-by-epoch.csv", columns, rows)
    epochs_png(out / "attack-by-epoch.png", points, cap)


def epochs_png(path: Path, points: Sequence[EpochPoint], cap: str = CAPS[0].name) -> None:
    """A line with its band a series; baselines dashed, in their series' colour."""
    words = next(one.words for one in CAPS if one.name == cap)
    names = list(dict.fromkeys(point.series for point in points))
    with png_figure(path, 6.4, 4.0) as figure:
        axes = figure.subplots()
        frame(axes, f"success of attacks by epoch, {words}", "epoch", PRINT)
        axes.set_ylabel("texts fooled of those attacked, %", color=PRINT.muted)
        for number, name in enumerate(names):
            colour = COLOURS[number % len(COLOURS)]
            of_series = [point for point in points if point.series == name and point.success["value"] is not None]
            drawn = [point for point in of_series if point.epoch is not None]
            epochs = [point.epoch for point in drawn]
            values, lows, highs = ([100 * point.success[end] for point in drawn] for end in ("value", "low", "high"))
            axes.fill_between(epochs, lows, highs, color=colour, alpha=0.16, linewidth=0)
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(epochs, values, color=colour, marker=marker, markersize=4.5, linewidth=1.8, label=name)
            for point in of_series:
                if point.epoch is None:
                    axes.axhline(100 * point.success["value"], color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_ylim(0, 101)
        ticks = sorted({point.epoch for point in points if point.epoch is not None})
        if len(ticks) <= 20:
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        if names:
            figure.legend(loc="outside upper center", ncols=min(3, len(names)), frameon=False)
