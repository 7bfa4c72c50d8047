"""Numbers of an evaluation from what attacks leave a row: files of rows, and values a sentence."""

from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence

import numpy as np

from fastadv.evaluation.suite.models import SuiteModel
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.parts import Found
from fastadv.evaluation.suite.schema import CLASSIFICATION, FEATURES, OF_RMS, Quantity
from fastadv.evaluation.text.rows import ERROR, FAILED, SUCCEEDED, TextAttackRow, read_rows
from fastadv.evaluation.text.run import rows_files
from fastadv.evaluation.text_report.rates import rates, share_of
from fastadv.evaluation.text_report.report import REPORT_FILES
from fastadv.files.csv_file import read_csv


def share_measured(quantity: Quantity, model: str, rows: np.ndarray) -> Measured:
    """The share of rows (N,) that are 100 among those of 0 and 100, by Wilson; NaN does not count."""
    is_known = np.isfinite(rows)
    share = share_of(int((rows[is_known] > 0).sum()), int(is_known.sum()))
    if share["value"] is None:
        return Measured(quantity, model, None, why="no text counts")
    value, low, high = (100 * share[name] for name in ("value", "low", "high"))
    return Measured(quantity, model, value, low, high, share["total"], rows=rows, is_binary=True)


def outcomes(rows: Sequence[TextAttackRow], outcome: str) -> np.ndarray:
    """(N,) 100 where an attacked text has this outcome, 0 where it has another, NaN where it was not attacked."""
    return np.array([100.0 * (row.outcome == outcome) if row.is_attacked else np.nan for row in rows])


def of_text_rows(part: str, source: str, model: str, rows: Sequence[TextAttackRow]) -> List[Measured]:
    """Accuracy before and after an attack on texts, success, queries."""
    found, base = rates(rows), Quantity(part, source, "accuracy", None, "%")
    clean = np.array([np.nan if row.outcome == ERROR else 100.0 * row.is_attacked for row in rows])
    after = np.array([np.nan if row.outcome == ERROR else 100.0 * (row.outcome == FAILED) for row in rows])
    success = base.under_attack(metric="attack success", better="lower")
    measured = [
        share_measured(base, model, clean),
        share_measured(base.under_attack(metric="accuracy under attack"), model, after),
        share_measured(success, model, outcomes(rows, SUCCEEDED)),
    ]
    queries = base._replace(metric="queries", unit="", better="higher")
    asked = np.array([float(row.num_queries) if row.is_attacked else np.nan for row in rows])
    if found["queries"]["value"] is None:
        return [*measured, Measured(queries, model, None, why="no text was attacked")]
    value = [found["queries"][name] for name in ("value", "low", "high")]
    return [*measured, Measured(queries, model, *value, num=int(np.isfinite(asked).sum()), rows=asked)]


def found_by_attack(
    run: Any,
    models: Sequence[SuiteModel],
    progress: bool,
    measured: Callable[[SuiteModel, List[TextAttackRow]], Iterable[Measured]],
    protocol: dict,
    whys: Dict[str, str],
) -> Found:
    """What ``measured`` finds in the rows that an attack on texts or pairs leaves, ``run`` being of ``models``."""
    results = run.run(progress)
    paths = rows_files(run.folder, [entry["name"] for entry in results["models"]])
    found = [one for model, path in zip(models, paths) for one in measured(model, read_rows(path))]
    files = [*REPORT_FILES, *(path.name for path in paths)]
    baseline = models[0].name if len(models) > 1 else None
    return Found(found, files, protocol, whys, findings=results["findings"], baseline=baseline)


def fooling_radii(path: Path) -> Dict[str, np.ndarray]:
    """model → (N,) the smallest radius at which each text is fooled: 0 where it is wrong clean, inf where at none."""
    radii: Dict[str, List[float]] = {}
    for row in read_csv(path):
        radii.setdefault(row["model"], []).append(float(row["fooling_epsilon"] or "inf"))
    return {name: np.array(values) for name, values in radii.items()}


def of_measurement(part: str, source: str, model: str, values: Dict[str, np.ndarray]) -> Iterator[Measured]:
    """What `before_after.measure` found; radii are multiples of RMS(X)."""
    labels = {
        "retrieval": ("retrieval@1", "%", 100, True, FEATURES),
        "centred_cosine": ("centred cosine", "", 1, False, FEATURES),
        "probe": ("probe accuracy", "%", 100, True, CLASSIFICATION),
        "probe_misspelt": ("probe accuracy, misspelt", "%", 100, True, CLASSIFICATION),
    }
    for key, of_key in values.items():
        name, _, radius = key.partition("@")
        if name not in labels:
            continue
        metric, unit, factor, is_binary, task = labels[name]
        set_of = "demo sentiment" if name.startswith("probe") else source
        quantity = Quantity(part, set_of, metric, None, unit, task=task)
        if radius and float(radius):
            quantity = quantity.under_attack(epsilon=float(radius), radius_unit=OF_RMS)
        rows = factor * np.asarray(of_key, dtype=np.float64)
        if not np.isfinite(rows).all():
            yield Measured(quantity, model, None, why="vectors under attack are not finite")
            continue
        if is_binary:
            yield share_measured(quantity, model, rows)
        else:
            yield Measured(quantity, model, float(rows.mean()), num=len(rows), rows=rows)


def set_name(source: str) -> str:
    """What labelled texts or sentences are called: a file by its name, a data set by its own."""
    return Path(source).name if Path(source).expanduser().exists() else source
