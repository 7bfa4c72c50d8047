"""Writes the report: the page alone as training ends, with pictures, tables and a summary as the command asks."""

from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from fastadv.atomic_file import naming, written_aside
from fastadv.errors import UserError
from fastadv.evaluation.charts import attack_curves, attack_png
from fastadv.report.content import content_of
from fastadv.report.drawing import chart_png
from fastadv.report.page import page
from fastadv.report.run_record import list_files, read_run
from fastadv.report.sources import Source, find_files, read_sources
from fastadv.report.summary import summary
from fastadv.report.written_files import clear_written, read_list, write_list

PAGE = "report.html"
DEFAULT_OUT = "report"
"""in the current folder, for several folders"""


def write_report(run_folder: str | Path) -> Path:
    """Writes ``report.html`` of a run folder, and ``attack.png`` where results are there; returns the page's path.

    Reads config.yaml, metrics.jsonl and results.json, and what attacks have left in the folder; whatever of them is
    missing is left out of the page. The page replaces the old one at once.
    """
    folder = Path(run_folder)
    run = read_run(folder)
    curves = attack_curves(run.results) if run.results else []
    if curves:
        with written_aside(folder / "attack.png") as aside:
            attack_png(curves, aside)
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


def place_of(folders: Sequence[str | Path], out: Optional[str] = None) -> Tuple[Path, Path]:
    """The page, and the folder of the other files.

    Args:
        out: a folder, or the page itself where it ends in .html; None: the folder of the one run, or ``report``.
    """
    if out is None:
        folder = Path(folders[0]).expanduser() if len(folders) == 1 else Path(DEFAULT_OUT)
        return folder / PAGE, folder
    path = Path(out).expanduser()
    return (path, path.parent) if path.suffix == ".html" else (path / PAGE, path)


def describe_report(folders: Sequence[str | Path], out: Optional[str] = None) -> List[str]:
    """What would be read and written, a line each. UserError where a folder has nothing to read."""
    sources = read_sources(folders)
    lines = [f"would read {file}" for source in sources for file in find_files(source.folder)]
    report, folder = place_of(folders, out)
    content = content_of(sources)
    lines.append(f"would write {report}")
    lines.append(
        f"would write {folder / 'summary.md'}, {len(content.charts)} PNG into {folder / 'figures'}, "
        f"{len(content.charts) + len(content.tables)} CSV into {folder / 'tables'}"
    )
    return lines


def write_whole_report(folders: Sequence[str | Path], out: Optional[str] = None) -> Tuple[Path, List[str]]:
    """Writes the page, ``figures/*.png``, ``tables/*.csv`` and ``summary.md``; returns the page's path and its notes.

    A chart's points stand in ``tables/figure-KEY.csv``. What an earlier report has left there and this one has not
    written is removed (`fastadv.report.written_files`); anything else in these folders is left alone.

    Raises:
        UserError: no folder, one that is given twice, or one with nothing that can be read.
    """
    if not folders:
        raise UserError("no folder is given; expected at least one")
    sources = read_sources(folders)
    report, folder = place_of(folders, out)
    content = content_of(sources)
    is_run_alone = len(sources) == 1 and sources[0].run is not None
    files = ["summary.md", *(f"figures/{chart.key}.png" for chart in content.charts)]
    files += [f"tables/figure-{chart.key}.csv" for chart in content.charts]
    files += [f"tables/{table.key}.csv" for table in content.tables]
    with naming(folder):
        for name in ("figures", "tables"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    # Before the first of them is written: a report that is killed leaves none that is not listed.
    write_list(folder, {*files, *read_list(folder)})
    if is_run_alone and out is None:
        write_report(sources[0].folder)
    else:
        _write(report, page(content, list_files(sources[0].folder) if is_run_alone else None))
    for chart in content.charts:
        with written_aside(folder / "figures" / f"{chart.key}.png") as aside:
            chart_png(chart, aside)
        with written_aside(folder / "tables" / f"figure-{chart.key}.csv") as aside:
            chart.write_csv(aside)
    for table in content.tables:
        with written_aside(folder / "tables" / f"{table.key}.csv") as aside:
            table.write_csv(aside)
    _write(folder / "summary.md", summary(content))
    clear_written(folder, but=files)
    write_list(folder, files)
    return report, content.notes


def _write(path: Path, text: str) -> None:
    with written_aside(path) as aside:
        # A text may hold half a surrogate pair, which no encoding has.
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")
