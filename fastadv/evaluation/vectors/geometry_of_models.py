"""Several models' vectors of the same sentences: how they lie on the unit sphere, with intervals, as table and files.

Every quantity is resampled over the same draws for all models, so that the difference to the first model is paired.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np

from fastadv.config.commands import encoding_words
from fastadv.errors import UserError
from fastadv.evaluation.before_after.batches import dropout_distances
from fastadv.evaluation.before_after.held_out import MIN_SENTENCES, draw_distinct
from fastadv.evaluation.intervals import (
    CONFIDENCE,
    NUM_RESAMPLES,
    log_pair_mean_statistic,
    mean_statistic,
    normal_interval,
    percentile_interval,
    resample_counts,
)
from fastadv.evaluation.vectors.geometry import (
    mean_cosine_statistic,
    pair_kernel,
    singular_values,
    spectral_statistic,
    squared_distances,
)
from fastadv.evaluation.vectors.scored_pairs import read_sts_benchmark
from fastadv.evaluation.vectors.vector_cache import encode_distinct, model_fingerprint
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import write_json
from fastadv.files.progress import Bar
from fastadv.pages.text_table import aligned, interval_cell

QUANTITIES = {
    "alignment": percentile_interval,
    "uniformity": percentile_interval,
    "mean_cosine": percentile_interval,
    "effective_rank": normal_interval,
    "top_share": normal_interval,
}
"""name -> what its interval is made of"""

POSITIVE_ABOVE = 4.0
"""a pair of STS-B scored above this is a positive"""
NUM_SPECTRAL_RESAMPLES = 200
"""a resample of the spectrum is an eigenvalue problem, one of a mean a row of a matrix product"""

_STS_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class GeometryData:
    """Sentences, and pairs that mean the same where a person said so."""

    name: str
    sentences: List[str]
    positives: Optional[Tuple[List[str], List[str]]] = None


Draws = Dict[str, Tuple[float, np.ndarray]]
"""quantity -> its value, and its values over resamples"""


def find_geometry_data(
    data: str, field: str = "text", split: Optional[str] = None, quoting: str = "auto"
) -> GeometryData:
    """The sentences of a split of STS-B, where ``data`` is SentEval's folder, with its pairs scored above 4; else all
    sentences that ``data`` names (`fastadv.data.sources.find`), without pairs.

    Args:
        split: of STS-B by default test; of a dataset by default train.
        quoting: of a table, see `fastadv.data.sources.tables.is_quoted`.

    Raises:
        UserError: nothing there, a split that does not exist, a row that is not right, or no pair above 4.
    """
    from fastadv.data.sources.find import iterate_sentences

    folder = Path(data).expanduser()
    if not (folder / "STS").is_dir():
        source = str(folder) if folder.exists() else data
        return GeometryData(data, list(iterate_sentences(source, field, split or "train", quoting=quoting)))
    split = split or "test"
    if split not in _STS_SPLITS:
        raise UserError(f"--split {split!r}: STS-B has {', '.join(_STS_SPLITS)}")
    pairs = read_sts_benchmark(folder, split)
    rows = [row for row, score in enumerate(pairs.scores) if score > POSITIVE_ABOVE]
    if not rows:
        raise UserError(f"STS-B {split} of {folder} has no pair scored above {POSITIVE_ABOVE:g}")
    positives = [pairs.first[row] for row in rows], [pairs.second[row] for row in rows]
    return GeometryData(f"STS-B {split}", [*pairs.first, *pairs.second], positives)


def describe_geometry_data(data: GeometryData, num_sentences: int) -> str:
    """What would be measured on, in words."""
    num_distinct = len(set(data.sentences))
    words = f"{min(num_distinct, num_sentences)} of {num_distinct} sentences of {data.name}"
    if data.positives is None:
        return f"{words}, positives by two dropout masks"
    return f"{words}, {len(data.positives[0])} pairs scored above {POSITIVE_ABOVE:g}"


def measure_geometry(
    models: Dict[str, Callable],
    data: GeometryData,
    num_sentences: int = 3000,
    seed: int = 0,
    batch_size: int = 64,
    progress: bool = False,
    on_draws: Optional[Callable[[str, Draws], None]] = None,
    on_failure: Optional[Callable[[str, UserError], None]] = None,
) -> dict:
    """The record of all models, ready for JSON.

    Args:
        models: name -> () -> `fastadv.Encoder`; one is held at a time.
        num_sentences: so many are drawn at most, distinct for the first model's tokenizer after truncation, the same
            for every model. The pairs are all taken.
        on_draws: is given each model's name and its `Draws`, over the same resamples for all.
        on_failure: is given the name of a model that cannot be measured, and why; the others go on without it. None:
            that ends all.

    Returns:
        what was measured on; ``models``: for each its name, fingerprint, pooling, length, ``spectrum`` (singular values
        of the centred unit vectors over √N, largest first) and ``quantities``, each with ``value``, ``low``, ``high``,
        and after the first model ``difference``, ``difference_low``, ``difference_high`` to it; and ``warnings``.

    Raises:
        UserError: under 16 distinct sentences, or a model's vectors are not finite, of all models with ``on_failure``.
    """
    sentences: List[str] = []
    rows, warnings, first, failure = [], [], None, None
    for name, load in Bar(models.items(), desc="models", disable=not progress or len(models) < 2):
        try:
            encoder = load()
            if not rows:
                sentences = draw_distinct(data.sentences, min(num_sentences, len(data.sentences)), encoder, seed)
                if len(sentences) < MIN_SENTENCES:
                    raise UserError(
                        f"{data.name} has {len(sentences)} sentences that differ after truncation, at least "
                        f"{MIN_SENTENCES} are needed"
                    )
            try:
                vectors = encode_distinct(
                    encoder, sentences, batch_size, progress=progress, name=f"{name} on {data.name}"
                )
                distances = _distances(encoder, data, sentences, batch_size, seed, progress)
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
        except UserError as error:
            if on_failure is None:
                raise
            on_failure(name, error)
            failure = error
            continue
        if data.positives is None and not distances.any():
            warnings.append(
                f"{name}: the model has no dropout, so two masks give one vector and alignment is not known"
            )
        draws = _draw(vectors, distances, seed)
        if on_draws is not None:
            on_draws(name, draws)
        rows.append(
            {
                "model": name,
                "fingerprint": model_fingerprint(encoder),
                **encoder.settings,
                "hidden_size": vectors.shape[1],
                "quantities": {key: _quantity(key, draws, first) for key in QUANTITIES if key in draws},
                "spectrum": (singular_values(vectors) / np.sqrt(len(vectors))).tolist(),
            }
        )
        first = first or draws
    if failure is not None and not rows:
        raise failure
    has_pairs = data.positives is not None
    return {
        "data": data.name,
        "num_sentences": len(sentences),
        "positives": f"pairs scored above {POSITIVE_ABOVE:g}" if has_pairs else "two dropout masks",
        "num_positives": len(data.positives[0]) if has_pairs else len(sentences),
        "seed": seed,
        "confidence": CONFIDENCE,
        "num_resamples": NUM_RESAMPLES,
        "num_spectral_resamples": NUM_SPECTRAL_RESAMPLES,
        "models": rows,
        "warnings": warnings,
    }


def geometry_table(record: dict) -> str:
    """Aligned lines for a terminal: a model a line, and below it its difference to the first model."""
    cells = [["", *(key.replace("_", " ") for key in QUANTITIES)]]
    for row in record["models"]:
        cells.append([row["model"], *(_cell(row["quantities"].get(key)) for key in QUANTITIES)])
        if row is not record["models"][0]:
            cells.append(["  less the first", *(_cell(row["quantities"].get(key), "difference") for key in QUANTITIES)])
    positives = record["positives"]
    if "pairs" in positives:
        positives = f"{record['num_positives']} {positives}"
    title = f"{record['num_sentences']} sentences of {record['data']}; positives: {positives}; 95 % intervals"
    models = [f"{row['model']}: {encoding_words(row)}" for row in record["models"]]
    return "\n".join([title, aligned(cells), *models])


def write_geometry(record: dict, folder: Path) -> None:
    """geometry.json (the record), geometry.csv (a quantity of a model a row) and geometry.png in ``folder``."""
    from fastadv.evaluation.vectors.geometry_chart import geometry_png

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "geometry.json", record)
    names = ["value", "low", "high", "difference", "difference_low", "difference_high"]
    rows = [(row["model"], *item) for row in record["models"] for item in row["quantities"].items()]
    cells = ([model, key, *map(quantity.get, names)] for model, key, quantity in rows)
    write_csv(folder / "geometry.csv", ["model", "quantity", *names], cells)
    geometry_png(record, folder / "geometry.png")


def _distances(encoder, data: GeometryData, sentences: List[str], batch_size: int, seed: int, progress: bool):
    """(N,) squared distances of the positive pairs."""
    if data.positives is None:
        return dropout_distances(encoder, sentences, batch_size, seed)
    texts = list(dict.fromkeys([*data.positives[0], *data.positives[1]]))
    row_of = {text: row for row, text in enumerate(texts)}
    vectors = encode_distinct(encoder, texts, batch_size, progress=progress)
    return squared_distances(*(vectors[[row_of[text] for text in side]] for side in data.positives))


def _draw(vectors: np.ndarray, distances: np.ndarray, seed: int) -> Draws:
    """Every quantity but an alignment that is not known; equal seeds and sizes give equal resamples."""
    counts = resample_counts(len(vectors), seed=seed)
    statistics = {
        "alignment": (mean_statistic(distances), resample_counts(len(distances), seed=seed)),
        "uniformity": (log_pair_mean_statistic(pair_kernel(vectors)), counts),
        "mean_cosine": (mean_cosine_statistic(vectors), counts),
    }
    if not distances.any():
        del statistics["alignment"]
    draws = {
        key: (float(statistic(np.ones((1, rows.shape[1])))[0]), statistic(rows))
        for key, (statistic, rows) in statistics.items()
    }
    spectral = spectral_statistic(vectors)
    value, drawn = spectral(np.ones((1, len(vectors))))[0], spectral(counts[:NUM_SPECTRAL_RESAMPLES])
    for column, key in enumerate(("effective_rank", "top_share")):
        draws[key] = float(value[column]), drawn[:, column]
    return draws


def _quantity(key: str, draws: Draws, first: Optional[Draws]) -> dict:
    interval = QUANTITIES[key](*draws[key])
    quantity = {"value": interval.value, "low": interval.low, "high": interval.high}
    if first is not None and key in first:
        (value, drawn), (first_value, first_drawn) = draws[key], first[key]
        difference = QUANTITIES[key](value - first_value, drawn - first_drawn)
        quantity.update(difference=difference.value, difference_low=difference.low, difference_high=difference.high)
    return quantity


def _cell(quantity: Optional[dict], key: str = "value") -> str:
    if quantity is None or key not in quantity:
        return "n/a"
    sign, digits = "" if key == "value" else "+", 1 if abs(quantity["value"]) >= 10 else 3
    return interval_cell(quantity, f"{sign}.{digits}f", key)
