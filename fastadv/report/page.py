"""report.html: one page that opens anywhere, without a network, a server or a script."""

from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from fastadv.pages.chart import Chart
from fastadv.pages.drawing import chart_svg
from fastadv.pages.html_page import html_page
from fastadv.pages.shown_text import shown
from fastadv.pages.table import Table
from fastadv.pages.words import bullets
from fastadv.report.content import Content
from fastadv.report.sections.before_after_section import definitions
from fastadv.report.sections.section import Section

_END_OF_TITLE = ": report"
_LONGEST_HEAD = 8192
"""letters; a title is at most a folder's name"""


def page(content: Content, files: Optional[Sequence[Tuple[str, str, int]]] = None) -> str:
    """The whole page.

    Args:
        files: name, what it is, and bytes of what lies in the folder of the one run that the page is of.
    """
    head = f'<h1>{shown(content.title)}</h1><p class="lead">{shown(content.lead)}</p>{_contents(content)}'
    sections = [f"<header>{head}</header>\n"]
    sections += [_section(section, number) for number, section in enumerate(content.sections)]
    if files is not None:
        sections.append(_files(files))
    sections.append(_notes(content))
    return html_page(f"{shown(content.title)}{_END_OF_TITLE}", "".join(sections))


def is_report(path: Path) -> bool:
    """Whether what lies at ``path`` is a page that `page` has made."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_LONGEST_HEAD)
    except OSError:
        return False
    return f"{_END_OF_TITLE}</title>" in head and "Content-Security-Policy" in head


def _contents(content: Content) -> str:
    """Links to the sections, where they are more than a look finds."""
    titles = [(number, section.title) for number, section in enumerate(content.sections) if section.title]
    if len(titles) < 4:
        return ""
    links = "".join(f'<a href="#section-{number}">{shown(title)}</a>' for number, title in titles)
    return f'<nav aria-label="sections">{links}</nav>'


def _section(section: Section, number: int) -> str:
    """Charts that follow each other stand side by side where there is room."""
    parts = [f'<h2 id="section-{number}">{shown(section.title)}</h2>\n'] if section.title else []
    charts: List[str] = []
    for part in [*section.parts, None]:
        if isinstance(part, Chart):
            charts.append(_figure(part))
            continue
        if charts:
            parts.append(f'<div class="charts">{"".join(charts)}</div>\n')
            charts = []
        if part is not None:
            parts.append(part.html() if isinstance(part, Table) else part.text)
    return "".join(parts)


def _figure(chart: Chart) -> str:
    caption = f"<figcaption>{shown(chart.caption)}</figcaption>"
    return f'<figure id="chart-{chart.key}">{chart_svg(chart, chart.key)}{caption}</figure>'


def _files(files: Sequence[Tuple[str, str, int]]) -> str:
    rows = [(name, f"{what} ({_bytes(size)})") for name, what, size in files]
    return f"<h2>In this folder</h2>\n{definitions([*rows, ('report.html', 'this page')])}"


def _notes(content: Content) -> str:
    parts = []
    if content.notes:
        parts.append(f'<h2>Could not be read</h2>\n<div class="warning">{bullets(content.notes)}</div>\n')
    if content.missing:
        missing = bullets(content.missing)
        parts.append(
            f'<h2>Not here</h2>\n<p class="note">Looked for and not found:</p>\n<div class="note">{missing}</div>\n'
        )
    return "".join(parts)


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
