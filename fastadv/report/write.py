"""Writes the report: the page alone as training ends, with pictures, tables and Markdown as the command asks."""

from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple

from fastadv.errors import UserError
from fastadv.files.atomic_file import naming, written_aside
from fastadv.pages.drawing import chart_png, charts_png
from fastadv.report.content import Content, content_of
from fastadv.report.markdown import markdown
from fastadv.report.page import is_report, page
from fastadv.report.run_record import ATTACK, PICTURE, list_files, read_run
from fastadv.report.sections.before_after_section import curves_of
from fastadv.report.sources import Source, find_files, read_sources
from fastadv.report.written_files import STEM, Names, clear_written, names_of, read_list, require_free, write_list

PAGE = f"{STEM}.html"
DEFAULT_OUT = "report"
"""in the current folder, for several folders"""


def write_report(run_folder: str | Path) -> Path:
    """Writes ``report.html`` of a run folder, and ``attack.png`` where results are there; returns the page's path.

    Reads config.yaml, metrics.jsonl and results.json, and what attacks have left in the folder; whatever of them is
    missing is left out of the page. The page replaces the old one at once. Beside an attack.json, ``attack.png`` is
    the picture of that attack, and stays.
    """
    folder = Path(run_folder)
    run = read_run(folder)
    curves = curves_of(run)
    if curves and not (folder / ATTACK).exists():
        with written_aside(folder / PICTURE) as aside:
            charts_png(curves, aside, num_columns=2 if len(curves) % 2 == 0 else None)
    name = folder.resolve().name
    try:
        (source,) = read_sources([folder])
    except UserError:
        # A run that has logged nothing yet has a page that says so.
        source = Source(folder, name, run=run)
    if source.run is None:
        source.run = run
    _write(folder / PAGE, page(content_of([source]), list_files(folder)))
    return folder / PAGE


def place_of(folders: Sequence[str | Path], out: Optional[str] = None) -> Path:
    """The page; the other files lie beside it.

    Args:
        out: a folder, or the page itself where it ends in .html; None: the folder of the one run, or ``report``.
    """
    if out is None:
        return (Path(folders[0]).expanduser() if len(folders) == 1 else Path(DEFAULT_OUT)) / PAGE
    path = Path(out).expanduser()
    return path if path.suffix == ".html" else path / PAGE


def describe_report(folders: Sequence[str | Path], out: Optional[str] = None) -> List[str]:
    """What would be read and written, a line each. UserError as `write_whole_report`."""
    plan = _planned(folders, out)
    lines = [f"would read {file}" for source in plan.sources for file in find_files(source.folder)]
    folder, content, names = plan.page.parent, plan.content, plan.names
    lines.append(f"would write {plan.page}")
    lines.append(
        f"would write {folder / names.markdown}, {len(content.charts)} PNG into {folder / names.figures}, "
        f"{len(content.charts) + len(content.tables)} CSV into {folder / names.tables}"
    )
    return lines


def write_whole_report(folders: Sequence[str | Path], out: Optional[str] = None) -> Tuple[Path, List[str]]:
    """Writes the page, its pictures, tables and Markdown (`names_of`); returns the page's path and its notes.

    A chart's points stand in ``figure-KEY.csv`` among the tables. What an earlier report has left there and this one
    has not written is removed (`fastadv.report.written_files`); anything else in these folders is left alone.

    Raises:
        UserError: no folder, one that is given twice, or one with nothing that can be read; a file in the way that no
            report has written, before anything is written.
    """
    plan = _planned(folders, out)
    content, names, folder, stem = plan.content, plan.names, plan.page.parent, plan.page.stem
    is_run_alone = len(plan.sources) == 1 and plan.sources[0].run is not None
    with naming(folder):
        for name in (names.figures, names.tables):
            (folder / name).mkdir(parents=True, exist_ok=True)
    # Before the first of them is written: a report that is killed leaves none that is not listed.
    write_list(folder, {*plan.files, *read_list(folder, stem)}, stem)
    if is_run_alone and out is None:
        write_report(plan.sources[0].folder)
    else:
        _write(plan.page, page(content, list_files(plan.sources[0].folder) if is_run_alone else None))
    for chart in content.charts:
        with written_aside(folder / names.figures / f"{chart.key}.png") as aside:
            chart_png(chart, aside)
        chart.write_csv(folder / names.tables / f"figure-{chart.key}.csv")
    for table in content.tables:
        table.write_csv(folder / names.tables / f"{table.key}.csv")
    _write(folder / names.markdown, markdown(content, names))
    clear_written(folder, plan.files, stem)
    write_list(folder, plan.files, stem)
    return plan.page, content.notes


class _Plan(NamedTuple):
    """What a report reads and writes."""

    sources: List[Source]
    content: Content
    page: Path
    names: Names
    files: List[str]
    """beside the page, relative to its folder"""


def _planned(folders: Sequence[str | Path], out: Optional[str]) -> _Plan:
    """All is read, and nothing that a report has not written is in the way."""
    if not folders:
        raise UserError("no folder is given; expected at least one")
    sources = read_sources(folders)
    path = place_of(folders, out)
    content, names = content_of(sources), names_of(path.stem)
    files = [names.markdown, *(f"{names.figures}/{chart.key}.png" for chart in content.charts)]
    files += [f"{names.tables}/figure-{chart.key}.csv" for chart in content.charts]
    files += [f"{names.tables}/{table.key}.csv" for table in content.tables]
    if path.exists() and not is_report(path):
        raise UserError(f"{str(path)!r} is there and is no report's page; name another one by --out")
    require_free(path.parent, files, path.stem)
    return _Plan(sources, content, path, names, files)


def _write(path: Path, text: str) -> None:
    with written_aside(path) as aside:
        # A text may hold half a surrogate pair, which no encoding has.
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")
