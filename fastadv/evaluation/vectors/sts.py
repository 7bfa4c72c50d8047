"""Semantic textual similarity: Spearman correlation of cosine and human score (METHODS.md section 5).

STS12-16, STS-B and SICK-R, test splits, "all" setting (the pairs of a year in one list), times 100, and their mean:
the protocol of SentEval as SimCSE and RobustSentEmbed report it. Weights are chosen on STS-B dev only.
"""

from pathlib import Path
from typing import Dict, Optional, Sequence

import numpy as np
from scipy.stats import spearmanr

from fastadv.errors import UserError
from fastadv.evaluation.vectors.geometry import unit_rows
from fastadv.evaluation.vectors.scored_pairs import (
    STS_YEARS,
    NotThere,
    ScoredPairs,
    read_sick,
    read_sts_benchmark,
    read_sts_year,
)
from fastadv.evaluation.vectors.vector_cache import VectorCache, encode_distinct
from fastadv.pages.text_table import score_lines

STS_SETS = (*STS_YEARS, "STS-B", "SICK-R")


def evaluate_sts(
    encoder,
    folder: str | Path,
    sets: Optional[Sequence[str]] = None,
    batch_size: int = 64,
    progress: bool = False,
    cache_dir: Optional[str | Path] = None,
) -> Dict[str, float]:
    """Spearman × 100 on the test split of each set, and ``"mean"`` of them.

    Args:
        encoder: anything with ``encode_texts(texts, batch_size, progress) -> (num_texts, D)``; a `fastadv.Encoder`
            where there is a ``cache_dir``.
        folder: SentEval's data folder, with ``STS/`` and ``SICK/`` in it.
        sets: some of STS12, ..., STS16, STS-B, SICK-R; by default all seven.
        cache_dir: where vectors are kept for the next run; None: nowhere.

    Returns:
        ``{"STS12": ..., ..., "mean": ...}``; a correlation is nan where every pair has the same cosine.

    Raises:
        UserError: a set that is unknown or missing, a ragged row, a score that is no number (named by file and row);
            or vectors that are not finite.
    """
    pairs = read_sts_sets(folder, sets)
    cache = None if cache_dir is None else VectorCache(cache_dir, encoder)
    cosines = sts_cosines(encoder, pairs, batch_size, cache, progress, "STS")
    scores = {name: spearman_of(cosine, pairs[name].scores) for name, cosine in cosines.items()}
    return {**scores, "mean": float(np.mean(list(scores.values())))}


def pairs_spearman(encoder, pairs: ScoredPairs, batch_size: int = 64, name: Optional[str] = None) -> float:
    """Spearman × 100 on scored pairs; STS-B dev is what chooses weights.

    Args:
        name: as `encode_distinct` has it.
    """
    cosines = sts_cosines(encoder, {"pairs": pairs}, batch_size, name=name)
    return spearman_of(cosines["pairs"], pairs.scores)


def sts_cosines(
    encoder,
    sets: Dict[str, ScoredPairs],
    batch_size: int = 64,
    cache: Optional[VectorCache] = None,
    progress: bool = False,
    name: Optional[str] = None,
) -> Dict[str, np.ndarray]:
    """name → the cosines (N,) of its pairs in float64. UserError where vectors are not finite.

    Each distinct sentence is encoded once: a third of the seven sets' sentences are repeats.

    Args:
        name: as `encode_distinct` has it.
    """
    texts = list(dict.fromkeys(text for pairs in sets.values() for text in (*pairs.first, *pairs.second)))
    unit = unit_rows(encode_distinct(encoder, texts, batch_size, cache, progress, name).astype(np.float64))
    row_of = {text: row for row, text in enumerate(texts)}
    found = {}
    for of_set, pairs in sets.items():
        first, second = (unit[[row_of[text] for text in side]] for side in (pairs.first, pairs.second))
        found[of_set] = np.einsum("nd,nd->n", first, second)
    return found


def read_sts_sets(folder: str | Path, sets: Optional[Sequence[str]] = None) -> Dict[str, ScoredPairs]:
    """The test split of each named set, read and checked; what ``--dry_run`` looks at."""
    folder = _existing(folder)
    names = STS_SETS if sets is None else tuple(sets)
    unknown = [name for name in names if name not in STS_SETS]
    if unknown or not names:
        raise UserError(f"unknown STS set {unknown[0] if unknown else ''!r}; the sets are {', '.join(STS_SETS)}")
    found: Dict[str, ScoredPairs] = {}
    faults: Dict[str, UserError] = {}
    for name in names:
        try:
            found[name] = _read_set(folder, name)
        except NotThere as error:
            faults[name] = error
    if faults:
        first, *others = faults.values()
        also = f" (nor {'are' if len(others) > 1 else 'is'} {', '.join(list(faults)[1:])})" if others else ""
        allowed = f"; --sets {' '.join(found)} measures those that are" if found else ""
        raise UserError(f"{first}{also}{allowed}")
    return found


def _read_set(folder: Path, name: str) -> ScoredPairs:
    readers = {"STS-B": read_sts_benchmark, "SICK-R": read_sick}
    return readers[name](folder, "test") if name in readers else read_sts_year(folder, name)


def sts_table(scores: Dict[str, float]) -> str:
    """The scores as two aligned lines for a terminal."""
    return score_lines(scores, "nan")


def _existing(folder: str | Path) -> Path:
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; a folder in SentEval layout (STS/ and SICK/ in it) is needed")
    return folder


def spearman_of(cosines: Sequence[float], scores: Sequence[float]) -> float:
    """Rank correlation × 100; undefined (nan) where one side is constant or there is a single pair."""
    if len(scores) < 2 or np.ptp(cosines) == 0 or np.ptp(scores) == 0:
        return float("nan")
    return 100 * float(spearmanr(cosines, scores).statistic)
