"""The look that all pages share."""

from pathlib import Path


def stylesheet() -> str:
    """CSS that follows the reader's theme, a phone's width and print."""
    return Path(__file__).with_name("report.css").read_text(encoding="utf-8")
