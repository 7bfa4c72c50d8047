"""A part of the page: charts, tables and words in their order."""

from dataclasses import dataclass
from typing import List, Sequence, Union

from fastadv.pages.chart import Chart
from fastadv.pages.table import Table


@dataclass(frozen=True)
class Html:
    """Markup, escaped already."""

    text: str


Part = Union[Chart, Table, Html]


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]

    @property
    def charts(self) -> List[Chart]:
        return [part for part in self.parts if isinstance(part, Chart)]

    @property
    def tables(self) -> List[Table]:
        return [part for part in self.parts if isinstance(part, Table)]
