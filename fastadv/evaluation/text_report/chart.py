"""Success rates of a text attack at caps and by class, and queries against lost accuracy, as one PNG."""

from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from matplotlib.axes import Axes

from fastadv.evaluation.text_report.page import class_word
from fastadv.pages.drawing import COLOURS, MARKERS
from fastadv.pages.png import png_figure
from fastadv.pages.style import PRINT, frame

MAX_CLASSES_DRAWN = 16
"""those of the most attacked texts; the table has all"""
_MAX_NAME = 24
"""letters of a class's name"""
_SPREAD = 0.62
"""of a line's height, taken by its models"""


def text_attack_png(results: dict, path: Path) -> None:
    """Draws what `text_attack_report.summary` gives. A control has an open marker."""
    models, caps, classes = results["models"], results["caps"], _classes(results)
    num_lines = max(len(caps), len(classes), 3)
    height = 1.9 + num_lines * (0.2 + 0.16 * len(models))
    with png_figure(path, 13.0, min(max(height, 3.6), 24.0)) as figure:
        at_caps, by_class, queries = figure.subplots(1, 3)
        shares = [[model["rates"]["success"][cap["name"]] for cap in caps] for model in models]
        _dots(at_caps, "success, by what may change", [cap["words"] for cap in caps], models, shares)
        of_classes = [[model["per_class"].get(label) for label in classes] for model in models]
        shares = [[rates and rates["success"]["any"] for rates in line] for line in of_classes]
        _dots(by_class, f"success by {class_word(results)}", [_short(name) for name in classes], models, shares)
        _queries(queries, models)
        handles, labels = at_caps.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=min(3, len(labels)), frameon=False)


def _classes(results: dict) -> List[str]:
    """The names of the classes that are drawn, in their order."""
    attacked = {
        label: max(model["per_class"].get(label, {}).get("num_attacked", 0) for model in results["models"])
        for label in results["labels"]
        if results["models"]
    }
    kept = sorted(attacked, key=lambda label: -attacked[label])[:MAX_CLASSES_DRAWN]
    return [label for label in results["labels"] if label in kept]


def _dots(
    axes: Axes, title: str, lines: Sequence[str], models: Sequence[dict], shares: List[List[Optional[dict]]]
) -> None:
    """A line for each name, on it a dot with its interval for each model; the first line on top."""
    frame(axes, title, "texts fooled of those attacked, %", PRINT)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=PRINT.grid, linewidth=0.8)
    for number, (model, of_lines) in enumerate(zip(models, shares, strict=True)):
        offset = 0.0 if len(models) == 1 else _SPREAD * (number / (len(models) - 1) - 0.5)
        drawn = [(line + offset, share) for line, share in enumerate(of_lines) if share and share["value"] is not None]
        values, places = [100 * share["value"] for _, share in drawn], [at for at, _ in drawn]
        down_up = zip(*(_arms(share, 100) for _, share in drawn))
        look = {"linestyle": "none", "elinewidth": 1.4, "label": model["name"], **_look(model, number)}
        axes.errorbar(values, places, xerr=list(down_up) or None, **look)
    for line in range(1, len(lines)):
        axes.axhline(line - 0.5, color=PRINT.grid, linewidth=0.8)
    axes.set_xlim(-2, 102)
    axes.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), lines)
    axes.tick_params(axis="y", length=0)


def _arms(interval: dict, factor: float = 1.0) -> Tuple[float, float]:
    """Down and up; the bounds hold the value but for rounding."""
    value, low, high = (factor * interval[part] for part in ("value", "low", "high"))
    return max(value - low, 0.0), max(high - value, 0.0)


def _queries(axes: Axes, models: Sequence[dict]) -> None:
    """RobustSentEmbed, figure 2: the further to the top left, the dearer and the less harmful the attack."""
    frame(axes, "what an attack costs and takes", "accuracy lost, points", PRINT)
    axes.set_ylabel("queries a text, mean", color=PRINT.muted)
    largest = 0.0
    for number, model in enumerate(models):
        drop, queries = model["rates"]["accuracy_drop"], model["rates"]["queries"]
        if drop is None or queries["value"] is None:
            continue
        arms, look = [[arm] for arm in _arms(queries)], _look(model, number)
        axes.errorbar(100 * drop, queries["value"], yerr=arms, linestyle="none", capsize=3, **look)
        largest = max(largest, queries["high"])
    axes.set_xlim(-2, 102)
    axes.set_ylim(0, 1.08 * largest or 1.0)


def _look(model: dict, number: int) -> dict:
    colour = COLOURS[number % len(COLOURS)]
    is_control = bool(model.get("control"))
    return {
        "color": colour,
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 5.5,
        "markerfacecolor": "white" if is_control else colour,
        "clip_on": False,
    }


def _short(name: str) -> str:
    # A dollar sign would begin a formula.
    name = "".join(letter if letter.isprintable() else "?" for letter in name).replace("$", r"\$")
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
