"""The table before → after as text: aligned for a terminal, or Markdown for a model card."""

from typing import List

from fastadv.evaluation.before_after.misspelling import WORD_SHARE
from fastadv.pages.text_table import aligned

_HEADER = ("", "before", "after", "change", "95 % interval")


def text_table(results: dict) -> str:
    """Aligned lines; ``results`` is what :func:`fastadv.evaluation.before_after.before_after.compare` gives."""
    table = aligned([_HEADER, *_lines(results)])
    warnings = [f"warning: {warning}" for warning in results.get("warnings", [])]
    return "\n".join([caption(results), table, *reasons(results), *warnings])


def markdown_table(results: dict) -> str:
    """The same rows as a Markdown table under its caption."""
    lines = [caption(results), "", "| " + " | ".join(_HEADER) + " |", "|---" + "|---:" * (len(_HEADER) - 1) + "|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in _lines(results)]
    return "\n".join([*lines, *(f"\n{reason}" for reason in reasons(results))])


def reasons(results: dict) -> List[str]:
    """Why rows of the table are n/a, a line each."""
    return [f"{one['label']}: n/a. {one['why']}" for one in results.get("missing", [])]


def _lines(results: dict) -> List[List[str]]:
    missing = [[one["label"], *["n/a"] * (len(_HEADER) - 1)] for one in results.get("missing", [])]
    return [*missing, *(_cells(row) for row in results["rows"])]


def caption(results: dict) -> str:
    """What was measured, in one line."""
    num_texts = results.get("num_attacked_texts")
    probe = f", probe tested on {results['num_probe_sentences']}" if results.get("num_probe_sentences") else ""
    letters = f"DeepWordBug through the probe on {num_texts} texts; " if num_texts else ""
    return (
        f"before → after on {results['num_sentences']} held-out sentences{probe}: {letters}PGD on the embeddings, "
        f"{results['num_steps']} steps, linf radius as a multiple of RMS(X)"
    )


def row_label(row: dict) -> str:
    """The quantity and where it was taken."""
    if row["key"] == "probe@0":
        return f"{row['label']}, clean"
    if row["key"] == "probe_misspelt":
        return f"{row['label']}, {WORD_SHARE:.0%} of the longer words mistyped"
    return row["label"] if row["radius"] is None else f"{row['label']}, radius {row['radius']:g}"


def verdict(row: dict) -> str:
    """ "better", "worse", or "unclear" where the interval of the difference holds 0."""
    if row["low"] <= 0 <= row["high"]:
        return "unclear"
    return "better" if (row["difference"] > 0) == (row["better"] == "higher") else "worse"


def _cells(row: dict) -> List[str]:
    return [
        row_label(row),
        f"{row['before']:.3f}",
        f"{row['after']:.3f}",
        f"{row['difference']:+.3f}",
        f"[{row['low']:+.3f}, {row['high']:+.3f}]",
    ]
