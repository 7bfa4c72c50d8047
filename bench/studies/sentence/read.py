"""What the sentence study's records say: means and spreads over seeds, and paired differences to a baseline.

A difference is of the same rows and the same seeds: a system's seeds are averaged on each row, and the rows resampled,
of both systems alike (`fastadv.evaluation.suite.numbers`). So intervals are over rows; what another seed would have
given, the spread and the sign of each seed's own difference say. Success of an attack is compared on the texts that
every model of the two was right on.
"""

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from bench.studies.sentence.arms import (
    ARMS,
    BASELINE,
    EMBEDDINGS,
    EXPLORATION,
    REFERENCE,
    STEPS,
    TIME,
    UNTRAINED,
    Design,
    Job,
    steps_at_equal_time,
)
from bench.studies.sentence.records import Record
from fastadv.evaluation.suite.numbers import Quantity, System, all_numbers

Records = Mapping[Tuple[str, int], Record]


@dataclass(frozen=True)
class Change:
    """A system less its baseline."""

    value: float
    low: float
    high: float
    num: int
    """rows"""
    by_seed: Tuple[float, ...]
    """of the seeds that both have"""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0 and every seed moved the same way."""
        return (self.low > 0 or self.high < 0) and len(set(np.sign(self.by_seed))) == 1


@dataclass(frozen=True)
class Cell:
    """One quantity of one system."""

    by_seed: Dict[int, float]
    low: Optional[float]
    high: Optional[float]
    """around the mean over the seeds that the baseline has too, by the rows"""
    change: Optional[Change] = None

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_seed.values())))

    @property
    def spread(self) -> Optional[float]:
        """Standard deviation over seeds; None of one seed."""
        return float(np.std(list(self.by_seed.values()), ddof=1)) if len(self.by_seed) > 1 else None

    def as_dict(self) -> dict:
        """For JSON."""
        change = None if self.change is None else {**vars(self.change), "is_clear": self.change.is_clear}
        seeds = {str(seed): value for seed, value in self.by_seed.items()}
        return {"mean": self.mean, "spread": self.spread, "by_seed": seeds, "low": self.low, "high": self.high} | {
            "change": change
        }


@dataclass(frozen=True)
class Table:
    """Systems beside one of them."""

    systems: Dict[str, str]
    """label → the arm that stands for it; the first is the baseline"""
    cells: Dict[Quantity, Dict[str, Cell]]

    @property
    def baseline(self) -> str:
        return next(iter(self.systems))

    def find(self, part: str, metric: str, epsilon: Optional[float] = None, of_set: Optional[str] = None):
        """label → cell of the one quantity that is so; nothing where there is none."""
        for quantity, cells in self.cells.items():
            is_it = (quantity.part, quantity.metric, quantity.epsilon) == (part, metric, epsilon)
            if is_it and of_set in (None, quantity.set):
                return cells
        return {}


def table(records: Records, systems: Mapping[str, str]) -> Table:
    """Every quantity of ``systems`` (label → arm, the baseline first) that any of them has."""
    names = set(systems.values())
    quantities: Dict[Quantity, None] = {}
    for (name, _), record in records.items():
        if name in names:
            quantities.update(dict.fromkeys(record.measured))
    found = {quantity: _cells(records, systems, quantity) for quantity in quantities}
    return Table(dict(systems), {quantity: cells for quantity, cells in found.items() if cells})


def _cells(records: Records, systems: Mapping[str, str], quantity: Quantity) -> Dict[str, Cell]:
    baseline = next(iter(systems))
    of_seeds: Dict[str, Dict[int, Record]] = {
        label: {s: r for (n, s), r in sorted(records.items()) if n == name and _value(r, quantity) is not None}
        for label, name in systems.items()
    }
    # Systems with the same seeds are resampled together.
    groups: Dict[Tuple[int, ...], List[str]] = {}
    for label, seeds in of_seeds.items():
        if seeds:
            groups.setdefault(_common(of_seeds[baseline], seeds, systems[label]), []).append(label)
    cells: Dict[str, Cell] = {}
    for common, labels in groups.items():
        cells.update(_group(of_seeds, systems, quantity, baseline, common, labels))
    return {label: cells[label] for label in systems if label in cells}


def _common(of_baseline: Mapping[int, Record], seeds: Mapping[int, Record], name: str) -> Tuple[int, ...]:
    """Seeds to compare with: of an encoder that no seed changes, all that the baseline has."""
    return tuple(s for s in of_baseline if s in seeds or name == UNTRAINED)


def _group(of_seeds, systems, quantity, baseline, common, labels) -> Dict[str, Cell]:
    def chosen(label: str) -> List[Record]:
        seeds = of_seeds[label]
        return [seeds[s] for s in common if s in seeds] or list(seeds.values())

    compared = [label for label in labels if label != baseline]
    involved = [baseline, *compared] if common else labels
    parts = [label for label in involved if of_seeds[label]]
    given = [System(label, tuple(record.model for record in chosen(label))) for label in parts]
    measured = {}
    for label in parts:
        for record in chosen(label):
            for of_set in [*record.measured[quantity].over, quantity.set]:
                one = record.measured[quantity._replace(set=of_set)]
                measured[record.model, one.quantity] = one
    ordered = sorted(measured.values(), key=lambda one: bool(one.over))
    found = all_numbers(given, ordered)
    means = {r["system"]: r for r in found.numbers if r["model"] is None and _is_of(r, quantity)}
    changes = {r["system"]: r for r in found.differences if _is_of(r, quantity)} if common else {}
    cells = {}
    for label in labels:
        by_seed = {seed: _value(record, quantity) for seed, record in of_seeds[label].items()}
        change = None
        if label in changes:
            row, own = changes[label], list(by_seed.values())
            before = of_seeds[baseline]
            differences = [by_seed.get(s, own[0]) - _value(before[s], quantity) for s in common]
            change = Change(row["value"], row["low"], row["high"], row["num"], tuple(differences))
        cells[label] = Cell(by_seed, means[label]["low"], means[label]["high"], change)
    return cells


def _is_of(row: dict, quantity: Quantity) -> bool:
    return tuple(row[name] for name in ("part", "set", "metric", "epsilon")) == quantity[:4]


def _value(record: Record, quantity: Quantity) -> Optional[float]:
    one = record.measured.get(quantity)
    return None if one is None else one.value


def has(records: Records, name: str) -> bool:
    return any(n == name for n, _ in records)


def systems_at_equal_steps(records: Records, design: Design = EMBEDDINGS) -> Dict[str, str]:
    """label → arm: SimCSE, done or not, and the others that are done."""
    names = [arm.name for arm in design.arms if arm.group == STEPS and has(records, arm.name)]
    return {name: name for name in [BASELINE, *names]}


def systems_at_equal_time(records: Records, design: Design = EMBEDDINGS, reference: str = REFERENCE) -> Dict[str, str]:
    """label → arm: that of the reference's time, or of equal steps where they cost what the reference does; SimCSE
    first."""
    found = {arm.system: arm for arm in design.arms if arm.group == TIME and arm.reference == reference}
    systems = {BASELINE: found[BASELINE].name}
    for arm in [arm for arm in design.arms if arm.group == STEPS and arm.settings is not None]:
        own = found.get(arm.name)
        if own is not None and has(records, own.name):
            systems[arm.name] = own.name
        elif has(records, arm.name):
            is_itself = arm.name == reference if own is None else stands_for_itself(records, Job(own, 0, design))
            if is_itself:
                systems[arm.name] = arm.name
    return systems


def stands_for_itself(records: Records, job: Job) -> bool:
    """Whether an arm at equal time has as many steps as the system's own, up to `arms.NEAR_ENOUGH`."""
    timed = [records.get((system, 0)) for system in (job.arm.reference, job.arm.system)]
    if any(record is None or "cpu_s_a_step" not in record.facts for record in timed):
        return False
    of_system = {record.name: record.facts["cpu_s_a_step"] for record in timed}
    return steps_at_equal_time(job, timed[0].facts["steps"], of_system.__getitem__) is None


def explored(records: Records) -> Dict[str, str]:
    """label → arm, the one they are explorations of first; to be read of `seed_zero` alone."""
    names = [arm.name for arm in ARMS if arm.group == EXPLORATION and has(records, arm.name)]
    return {name: name for name in [REFERENCE, *names]}


def repeated(records: Records) -> Dict[str, str]:
    """label → arm, SimCSE first: the explorations of several seeds, beside what they are explorations of; or none."""
    names = [arm.name for arm in ARMS if arm.group == EXPLORATION and any(n == arm.name and s for n, s in records)]
    return {name: name for name in [BASELINE, REFERENCE, *names]} if names else {}


def seed_zero(records: Records) -> Dict[Tuple[str, int], Record]:
    return {key: record for key, record in records.items() if key[1] == 0}


def missing(records: Records, jobs: Sequence[Job]) -> List[Job]:
    """Of the jobs, those that are neither done nor needless."""
    return [
        job
        for job in jobs
        if (job.arm.name, job.seed) not in records and not (job.arm.group == TIME and stands_for_itself(records, job))
    ]
