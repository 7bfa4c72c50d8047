"""Runs of one configuration with different seeds: mean and spread of what they end with."""

from statistics import mean, median, stdev
from typing import Dict, FrozenSet, Iterator, List, Tuple

from fastadv.evaluation.before_after.results_table import row_label
from fastadv.pages.table import Column, Table
from fastadv.report.run_record import RunRecord
from fastadv.report.sections.config_section import flattened
from fastadv.report.sections.section import Section

_OF_A_SEED = ("train.seed", "train.output_dir", "evaluation.seed", "data.cache_dir")
"""what may differ between runs that are seeds of each other"""

_CAPTION = (
    "Runs whose configurations differ in nothing but their seeds. The deviation is that of a sample (n − 1); from two "
    "or three seeds it is known to within a factor of two or more."
)
_COLUMNS = [
    Column("configuration", is_text=True),
    Column("quantity", is_text=True),
    Column("seeds", "d"),
    Column("mean", ".4g"),
    Column("standard deviation", ".2g"),
    Column("lowest", ".4g"),
    Column("highest", ".4g"),
]


def seeds_section(runs: Dict[str, RunRecord]) -> List[Section]:
    """A table of every quantity that all runs of a configuration have; nothing where no two runs are of one."""
    groups: Dict[FrozenSet[Tuple[str, str]], Dict[str, RunRecord]] = {}
    for name, run in runs.items():
        if run.config:
            kept = {key: value for key, value in flattened(run.config).items() if key not in _OF_A_SEED}
            groups.setdefault(frozenset(kept.items()), {})[name] = run
    rows = [row for group in groups.values() if _num_seeds(group) > 1 for row in _rows(group)]
    return [Section("Several seeds", [Table("seeds", _CAPTION, _COLUMNS, rows)])] if rows else []


def _num_seeds(group: Dict[str, RunRecord]) -> int:
    return len({flattened(run.config).get("train.seed") for run in group.values()})


def _rows(group: Dict[str, RunRecord]) -> Iterator[list]:
    by_run = [dict(_quantities(run)) for run in group.values()]
    name = ", ".join(group)
    for quantity in by_run[0]:
        values = [found[quantity] for found in by_run if quantity in found]
        if len(values) == len(group):
            yield [name, quantity, len(values), mean(values), stdev(values), min(values), max(values)]


def _quantities(run: RunRecord) -> Iterator[Tuple[str, float]]:
    """What a run ends with: its table's last column, its best dev score, its loss at the end."""
    for row in run.results["rows"] if run.results else ():
        yield f"{row_label(row)}, after", float(row["after"])
        yield f"{row_label(row)}, change", float(row["difference"])
    if "dev/score" in run.series:
        yield "best dev score", max(run.series["dev/score"][1])
    if "loss" in run.series:
        losses = run.series["loss"][1]
        yield "loss, median of the last tenth of the lines", median(losses[-max(1, len(losses) // 10) :])
