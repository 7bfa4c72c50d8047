"""Tables for a terminal."""

import math
from typing import Mapping, Sequence


def interval_cell(interval: Mapping[str, float], form: str = ".3f", key: str = "value") -> str:
    """``value [low, high]``; of another ``key`` its own value and bounds, such as ``difference_low``."""
    names = ("value", "low", "high") if key == "value" else (key, f"{key}_low", f"{key}_high")
    value, low, high = (f"{interval[name]:{form}}" for name in names)
    return f"{value} [{low}, {high}]"


def score_lines(scores: Mapping[str, float], missing: str) -> str:
    """Names over scores, to the right; ``missing`` for one that is not a number."""
    cells = [missing if math.isnan(score) else f"{score:.2f}" for score in scores.values()]
    widths = [max(len(name), len(cell)) for name, cell in zip(scores, cells)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in (scores, cells))


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:]))]).rstrip()
        for name, *cells in lines
    )
