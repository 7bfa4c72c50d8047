"""report.md: the page's tables, for a reader of text."""

from dataclasses import replace
from typing import List
from urllib.parse import quote

from fastadv.pages.shown_text import visible
from fastadv.pages.table import Table, in_markdown
from fastadv.report.content import Content
from fastadv.report.sections.section import Section
from fastadv.report.written_files import Names

MAX_ROWS = 60
"""of a table; the CSV has all"""


def markdown(content: Content, names: Names) -> str:
    """Sections, tables, the charts' pictures, and the notes.

    Args:
        names: of the folders that pictures and tables lie in.
    """
    lines = [f"# {in_markdown(content.title)}", "", in_markdown(content.lead), ""]
    for section in content.sections:
        lines += _section(section, names)
    for title, notes in (("Could not be read", content.notes), ("Looked for and not found", content.missing)):
        if notes:
            lines += [f"## {title}", "", *(f"* {in_markdown(note)}" for note in notes), ""]
    return "\n".join(lines)


def _section(section: Section, names: Names) -> List[str]:
    if not section.charts and not section.tables:
        return []
    lines = [f"## {visible(section.title) or 'Results'}", ""]
    for table in section.tables:
        rest = len(table.rows) - MAX_ROWS
        lines.append(_head(table).markdown())
        if rest > 0:
            lines += [f"{rest:,} more rows are in {in_markdown(names.tables)}/{table.key}.csv.", ""]
    # A folder's name may hold spaces and brackets.
    figures = quote(names.figures)
    lines += [f"![{in_markdown(chart.title)}]({figures}/{chart.key}.png)" for chart in section.charts]
    return [*lines, ""]


def _head(table: Table) -> Table:
    return replace(table, rows=table.rows[:MAX_ROWS])
