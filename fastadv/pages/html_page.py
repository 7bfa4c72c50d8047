"""The frame and look that all pages share: one file that opens anywhere, without a network, a server or a script."""

from pathlib import Path
from typing import Sequence


def html_page(title: str, body: str, style: str = "", has_images: bool = False) -> str:
    """A whole page. Its policy lets nothing be loaded, and no script be run.

    Args:
        title: escaped.
        body: HTML.
        style: CSS of this page, after the shared one, which follows the reader's theme, a phone's width and print.
        has_images: let pictures be shown that are part of the page.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'" + "; img-src data:" * has_images
    shared = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{shared}{style}</style>
</head>
<body>
{body}</body>
</html>
"""


def html_table(head: Sequence[str], lines: Sequence[str], css: str = "") -> str:
    """A table that scrolls within itself; cells of ``head`` and the rows ``lines`` are markup, escaped already."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    kind = f' class="{css}"' if css else ""
    body = "\n".join(lines)
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{columns}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n'
    )
