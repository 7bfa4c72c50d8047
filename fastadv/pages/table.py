"""A table as data: the page's HTML, the CSV and the Markdown are made from one object, so that they cannot differ."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

from fastadv.files.csv_file import write_csv
from fastadv.pages.shown_text import visible


class Estimate(NamedTuple):
    """A number and the bounds of its 95 % interval, in the number's own unit; None: not known."""

    value: Optional[float]
    low: Optional[float] = None
    high: Optional[float] = None

    def times(self, factor: float) -> "Estimate":
        """In another unit; ``factor`` is positive."""
        return Estimate(*(None if part is None else factor * part for part in self))


Cell = Union[str, int, float, None, Estimate]


class Column(NamedTuple):
    """``form`` is how numbers are written on the page; the CSV has them whole."""

    name: str
    form: str = ".3f"
    is_interval: bool = False
    is_text: bool = False
    """stands to the left"""


@dataclass(frozen=True)
class Table:
    """Rows under columns."""

    key: str
    """of the CSV's name"""
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    html_body: Optional[Sequence[Sequence[str]]] = None
    """cells of the page where text is not enough: markup, escaped already"""
    html_columns: Optional[Sequence[Column]] = None
    """of ``html_body`` where they are others"""
    html_whole: Optional[str] = None
    """what the page shows in place of the rows, escaped already; may be nothing"""
    forms: Optional[Sequence[str]] = None
    """of the numbers of each row, where rows are of different quantities; else the columns' own"""
    said: Sequence[str] = ()
    """columns whose one value the caption says: the CSV alone has them"""

    def __post_init__(self):
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.key}: expected {len(self.columns)} cells a row")

    def html(self) -> str:
        """A table that scrolls within itself where the page is too narrow."""
        if self.html_whole is not None:
            return self.html_whole
        columns = self.html_columns or self._shown_columns
        head = "".join(f'<th scope="col"{_css(column)}>{escape(visible(column.name))}</th>' for column in columns)
        body = []
        for number, row in enumerate(self.rows):
            if self.html_body is not None:
                cells = list(self.html_body[number])
            else:
                cells = [_html_cell(cell, column) for cell, column in self._shown(number, row)]
            first = f'<th scope="row"{_css(columns[0])}>{cells[0]}</th>'
            rest = "".join(f"<td{_css(c)}>{cell}</td>" for cell, c in zip(cells[1:], columns[1:]))
            body.append(f"<tr>{first}{rest}</tr>")
        lines = "\n".join(body)
        kind = "texts" if self.html_body is not None else "data many" if len(columns) > 8 else "data"
        return (
            f'<div class="scroll" tabindex="0"><table class="{kind}">'
            f"<caption>{escape(visible(self.caption))}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table></div>\n"
        )

    def markdown(self) -> str:
        """Under its caption; what Markdown or HTML would read as its own is escaped."""
        lines = ["| " + " | ".join(in_markdown(column.name) for column in self._shown_columns) + " |"]
        lines.append("|" + "|".join("---" if column.is_text else "---:" for column in self._shown_columns) + "|")
        for number, row in enumerate(self.rows):
            cells = (in_markdown(shown_cell(cell, column)) for cell, column in self._shown(number, row))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([in_markdown(self.caption), "", *lines, ""])

    @property
    def _shown_columns(self) -> List[Column]:
        return [column for column in self.columns if column.name not in self.said]

    def _shown(self, number: int, row: Sequence[Cell]) -> List[Tuple[Cell, Column]]:
        """The cells of a row for a reader, with how each is written."""
        form = {} if self.forms is None else {"form": self.forms[number]}
        pairs = zip(row, self.columns)
        return [(cell, column._replace(**form)) for cell, column in pairs if column.name not in self.said]

    def write_csv(self, path: Path) -> None:
        """Numbers as they are; an interval takes three columns; an empty cell is not known."""
        names: List[str] = []
        for column in self.columns:
            names += [column.name, f"{column.name} low", f"{column.name} high"] if column.is_interval else [column.name]
        lines = []
        for row in self.rows:
            line: List[Cell] = []
            for cell, column in zip(row, self.columns):
                line += [cell] if not column.is_interval else cell if isinstance(cell, Estimate) else Estimate(cell)
            lines.append(line)
        write_csv(path, names, lines)


def shown_cell(cell: Cell, column: Column) -> str:
    """As a reader sees it; a minus sign is as wide as a plus."""
    if cell is None or (isinstance(cell, Estimate) and cell.value is None):
        return "n/a"
    if isinstance(cell, Estimate):
        value = _number(cell.value, column.form)
        if cell.low is None or cell.high is None:
            return value
        return f"{value} [{_number(cell.low, column.form)}, {_number(cell.high, column.form)}]"
    return cell if isinstance(cell, str) else _number(cell, column.form)


def _html_cell(cell: Cell, column: Column) -> str:
    """The bounds of an interval stand under its value."""
    value, bracket, bounds = shown_cell(cell, column).partition(" [") if isinstance(cell, Estimate) else ("", "", "")
    if bracket:
        return f'{escape(value)} <span class="bounds">[{escape(bounds)}</span>'
    return escape(visible(shown_cell(cell, column)))


def _number(value: float, form: str) -> str:
    return (f"{value:,}" if isinstance(value, int) else format(value, form)).replace("-", "−")


def _css(column: Column) -> str:
    return ' class="words"' if column.is_text else ""


def in_markdown(text: str) -> str:
    """With what Markdown or HTML would read as its own escaped."""
    text = escape(visible(text), quote=False)
    for letter in "\\`*_[]|":
        text = text.replace(letter, f"\\{letter}")
    return text
