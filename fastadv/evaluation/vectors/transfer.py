"""Transfer: logistic regression on frozen vectors by SentEval's protocol (Conneau & Kiela 2018; METHODS.md section 5).

Vectors go in raw, as SentEval takes them: neither standardised nor brought to length 1. Accuracy × 100 is

* MR, CR, SUBJ, MPQA: the mean over 10 stratified folds, C chosen inside each training fold by 10 stratified folds
  out of `STRENGTHS`;
* SST-2: on test, C chosen on dev out of `STRENGTHS`, fitted on train;
* MRPC, TREC: on test, C chosen by 10 stratified folds of train out of `CROSS_VALIDATED_STRENGTHS`, fitted on train.

C is scikit-learn's (larger is weaker); a choice goes by the mean accuracy, rounded to 0.01 as SentEval does, and of
equals the smallest C is taken. All folds are shuffled by one seed, rows in the order of their files.
"""

import logging
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import sklearn
from scipy.stats import binomtest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from fastadv.errors import UserError
from fastadv.evaluation.intervals import CONFIDENCE
from fastadv.evaluation.vectors.transfer_sets import (
    TRANSFER_SETS,
    Split,
    TransferSet,
    check_senteval_folder,
    check_set_names,
    read_transfer_set,
)
from fastadv.evaluation.vectors.vector_cache import VectorCache, encode_distinct, writing_to_cache
from fastadv.files.hashes import digest_of
from fastadv.files.json_file import read_json, write_json
from fastadv.files.progress import Bar
from fastadv.pages.text_table import score_lines

logger = logging.getLogger("fastadv")

SEED = 1111
"""of the folds, SentEval's"""
NUM_FOLDS = 10
STRENGTHS = tuple(2.0**power for power in range(-2, 4))
CROSS_VALIDATED_STRENGTHS = tuple(2.0**power for power in range(-1, 6))
TOLERANCE = 1e-5
"""largest entry of the mean loss' gradient at which L-BFGS stops"""
MAX_ITERATIONS = 2000

AVERAGED = ("MR", "CR", "SUBJ", "MPQA", "SST-2", "MRPC")
"""whose mean is the average of RobustSentEmbed's table"""

# Part of every kept result: raise it when equal vectors and labels would give other scores.
_VERSION = 2

_Cut = Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""features and labels to fit on, features and labels held out"""


@dataclass(frozen=True)
class TransferResult:
    """One set's scores, or why there are none."""

    accuracy: float = float("nan")
    """× 100"""
    low: float = float("nan")
    high: float = float("nan")
    """Wilson's 95 % interval for texts drawn anew, the classifier given"""
    f1: Optional[float] = None
    """× 100, of the class ``equivalent``; of MRPC alone"""
    majority: float = float("nan")
    """accuracy × 100 of the answer that is always the commonest class of the tested rows"""
    strengths: List[float] = field(default_factory=list)
    """the C that was chosen, of each fold where there are folds"""
    num_rows: int = 0
    """rows that were tested"""
    outcomes: str = ""
    """a 1 or a 0 a tested row, right or not, in the order of the rows: what two models are compared by"""
    seconds: float = 0.0
    """spent on encoding and fitting when it was computed"""
    warnings: List[str] = field(default_factory=list)
    why: Optional[str] = None
    """what kept the set from being scored; None where it was"""
    is_kept: bool = False
    """read from an earlier run"""


def transfer_results(
    encoder,
    folder: str | Path,
    sets: Optional[Sequence[str]] = None,
    seed: int = SEED,
    batch_size: int = 64,
    cache_dir: Optional[str | Path] = None,
    progress: bool = False,
) -> Dict[str, TransferResult]:
    """Scores each set on its own: where one is missing or cannot be scored, its result says why and the rest is run.

    Args:
        encoder: anything with ``encode_texts(texts, batch_size, progress) -> (num_texts, D)``; a `fastadv.Encoder`
            where there is a ``cache_dir``.
        folder: SentEval's data folder, with ``MR/``, ``CR/``, ``SUBJ/``, ``MPQA/``, ``SST/binary/``, ``MRPC/`` and
            ``TREC/`` in it.
        sets: some of `TRANSFER_SETS`; by default all.
        seed: of all folds.
        cache_dir: where vectors and finished sets are kept for the next run; None: nowhere.

    Raises:
        UserError: an unknown set, no such folder, or a ``cache_dir`` that cannot be written to.
    """
    names, folder = check_set_names(sets), check_senteval_folder(folder)
    cache = None if cache_dir is None else VectorCache(cache_dir, encoder, is_finished=False)
    results = {}
    for name in names:
        try:
            data = read_transfer_set(folder, name)
        except UserError as error:
            results[name] = TransferResult(why=str(error))
            continue
        results[name] = _scored(encoder, data, seed, batch_size, cache, progress)
    return results


def transfer_scores(results: Dict[str, TransferResult]) -> Dict[str, float]:
    """The accuracies, and beside them, where the sets they need were asked for: ``mean`` of `AVERAGED`,
    ``mean_with_TREC`` of all seven, and ``MRPC_F1``. nan where a set they need has no score."""
    accuracies = {name: results[name].accuracy for name in TRANSFER_SETS if name in results}
    scores = {name: accuracies[name] for name in AVERAGED if name in accuracies}
    if all(name in accuracies for name in AVERAGED):
        scores["mean"] = float(np.mean([accuracies[name] for name in AVERAGED]))
    if "TREC" in accuracies:
        scores["TREC"] = accuracies["TREC"]
    if len(accuracies) == len(TRANSFER_SETS):
        scores["mean_with_TREC"] = float(np.mean(list(accuracies.values())))
    if "MRPC" in results:
        f1 = results["MRPC"].f1
        scores["MRPC_F1"] = float("nan") if f1 is None else f1
    return scores


def transfer_table(results: Dict[str, TransferResult]) -> str:
    """The scores as two aligned lines for a terminal; n/a where there is none."""
    scores = {name.replace("_", " "): score for name, score in transfer_scores(results).items()}
    return score_lines(scores, "n/a")


def transfer_record(results: Dict[str, TransferResult], settings: dict) -> dict:
    """`transfer_scores`, and under ``details`` the settings, the protocol and each set's result whole."""
    protocol = {
        "num_folds": NUM_FOLDS,
        "strengths": STRENGTHS,
        "cross_validated_strengths": CROSS_VALIDATED_STRENGTHS,
        "tolerance": TOLERANCE,
        "scikit_learn": sklearn.__version__,
    }
    sets = {name: asdict(result) for name, result in results.items()}
    for result in sets.values():
        del result["outcomes"]
    return {**transfer_scores(results), "details": {**settings, **protocol, "sets": sets}}


def _scored(
    encoder, data: TransferSet, seed: int, batch_size: int, cache: Optional[VectorCache], progress: bool
) -> TransferResult:
    path = None
    if cache is not None:
        labels = {split: values.tolist() for split, values in data.labels.items()}
        key = [_VERSION, sklearn.__version__, cache.encoder_key, data.name, data.texts, labels, seed]
        path = cache.folder / f"transfer-{digest_of(key)}.json"
        kept = _kept(path)
        if kept is not None:
            return kept
    started = time.perf_counter()
    try:
        _check_classes(data)
        vectors = encode_distinct(encoder, data.distinct_texts, batch_size, cache, progress, data.name, False)
        splits = data.with_vectors(vectors)
        if not np.ptp(splits["train"][0], axis=0).any():
            raise UserError("every training row has the same vector, there is nothing to tell classes apart by")
    except UserError as error:
        return TransferResult(why=f"{data.name}: {error}")
    with Bar(total=_num_fits(data), unit="fit", desc=f"{data.name} fit", disable=not progress) as bar:
        result = _score(data, splits, seed, bar, started)
    if path is not None:
        with writing_to_cache(cache.folder):
            write_json(path, asdict(result), indent=None)
    return result


def _kept(path: Path) -> Optional[TransferResult]:
    if not path.exists():
        return None
    try:
        return TransferResult(**{**read_json(path), "is_kept": True})
    except (OSError, ValueError, TypeError) as error:
        logger.warning("%s is damaged (%s); scoring again", path, str(error).split("\n")[0])
        return None


def _check_classes(data: TransferSet) -> None:
    """UserError where a class has too few rows for the folds, or there is only one."""
    counts = np.bincount(data.labels["train"], minlength=len(data.class_names))
    if (counts > 0).sum() < 2:
        raise UserError(f"all {counts.sum()} rows of train are {data.class_names[counts.argmax()]!r}")
    needed = _rows_a_class(list(data.labels))
    for name, count in zip(data.class_names, counts.tolist()):
        if count < needed:
            raise UserError(
                f"class {name!r} has {count} rows in train, at least {needed} are needed ({NUM_FOLDS} folds)"
            )


def _rows_a_class(splits: List[str]) -> int:
    if "dev" in splits:
        return 1
    # A training fold has to be cut into folds once more; it has lost at most every tenth row, rounded up.
    return NUM_FOLDS if "test" in splits else next(n for n in range(100) if n - -(-n // NUM_FOLDS) >= NUM_FOLDS)


def _num_fits(data: TransferSet) -> int:
    if "dev" in data.labels:
        return len(STRENGTHS) + 1
    if "test" in data.labels:
        return NUM_FOLDS * len(CROSS_VALIDATED_STRENGTHS) + 1
    return NUM_FOLDS * (NUM_FOLDS * len(STRENGTHS) + 1)


def is_equivalent(data: TransferSet) -> np.ndarray:
    """(N,) bool, the tested rows of MRPC that are of the class that F1 is of."""
    return data.labels["test"] == data.class_names.index("equivalent")


def _score(data: TransferSet, splits: Dict[str, Split], seed: int, bar: Bar, started: float) -> TransferResult:
    fitter = _Fitter(bar.update)
    folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=seed)
    x, y = splits["train"]
    f1 = None
    if "test" not in splits:
        tested = y
        strengths, right = _cross_validate(x, y, folds, fitter)
        # SentEval's mean over folds, whose sizes differ by a row or two.
        accuracy = float(np.mean([fold.mean() for fold in right]))
        is_right = np.empty(len(y), dtype=bool)
        for (_, held_out), fold in zip(folds.split(x, y), right):
            is_right[held_out] = fold
    else:
        test_x, tested = splits["test"]
        if "dev" in splits:
            strength = choose_strength([(x, y, *splits["dev"])], STRENGTHS, fitter)
        else:
            strength = choose_strength(_cuts(x, y, folds), CROSS_VALIDATED_STRENGTHS, fitter)
        guessed = fitter.fit(x, y, strength).predict(test_x)
        strengths, is_right = [strength], guessed == tested
        accuracy = float(is_right.mean())
        if data.name == "MRPC":
            f1 = 100 * float(f1_score(is_equivalent(data), guessed == data.class_names.index("equivalent")))
    num_right = int(is_right.sum())
    interval = binomtest(num_right, len(tested)).proportion_ci(CONFIDENCE, method="wilson")
    majority = float(np.bincount(tested).max() / len(tested))
    return TransferResult(
        accuracy=100 * accuracy,
        low=100 * float(interval.low),
        high=100 * float(interval.high),
        f1=f1,
        majority=100 * majority,
        strengths=strengths,
        num_rows=len(tested),
        outcomes="".join("01"[right] for right in is_right.tolist()),
        seconds=time.perf_counter() - started,
        warnings=list(_warnings(data.name, fitter, num_right / len(tested), majority)),
    )


def _warnings(name: str, fitter: "_Fitter", accuracy: float, majority: float) -> Iterator[str]:
    if fitter.num_unconverged:
        yield (
            f"{name}: {fitter.num_unconverged} of {fitter.num_fits} fits did not converge within {MAX_ITERATIONS} "
            "iterations; vectors of a very uneven scale do that"
        )
    if accuracy <= majority:
        yield (
            f"{name}: {100 * accuracy:.2f} is no better than always naming the commonest class ({100 * majority:.2f})"
        )


class _Fitter:
    """Fits logistic regressions, and counts them and those that did not converge."""

    def __init__(self, on_fit: Callable[[int], object]):
        self.on_fit, self.num_fits, self.num_unconverged = on_fit, 0, 0

    def fit(self, x: np.ndarray, y: np.ndarray, strength: float) -> LogisticRegression:
        return next(self.path(x, y, (strength,)))

    def path(self, x: np.ndarray, y: np.ndarray, strengths: Sequence[float]) -> Iterator[LogisticRegression]:
        """One model, fitted at each C in turn: an optimum is near the one before, which is where the next begins."""
        model = LogisticRegression(tol=TOLERANCE, max_iter=MAX_ITERATIONS, warm_start=True)
        for strength in strengths:
            model.C = strength
            with warnings.catch_warnings(record=True) as raised:
                warnings.simplefilter("always", ConvergenceWarning)
                model.fit(x, y)
            self.num_fits += 1
            self.num_unconverged += any(issubclass(warning.category, ConvergenceWarning) for warning in raised)
            self.on_fit(1)
            yield model


def choose_strength(cuts: Iterable[_Cut], strengths: Sequence[float], fitter: _Fitter) -> float:
    """The C with the best mean accuracy on the held-out parts; of equals the smallest."""
    accuracies = [[model.score(x, y) for model in fitter.path(*fitted, strengths)] for *fitted, x, y in cuts]
    means = np.round(100 * np.mean(accuracies, axis=0), 2)
    return float(strengths[int(means.argmax())])


def _cuts(x: np.ndarray, y: np.ndarray, folds: StratifiedKFold) -> Iterator[_Cut]:
    for train, held_out in folds.split(x, y):
        yield x[train], y[train], x[held_out], y[held_out]


def _cross_validate(
    x: np.ndarray, y: np.ndarray, folds: StratifiedKFold, fitter: _Fitter
) -> Tuple[List[float], List[np.ndarray]]:
    """The C of each fold, chosen within its training part, and which of its held-out rows were right."""
    strengths, right = [], []
    for train_x, train_y, test_x, test_y in _cuts(x, y, folds):
        strength = choose_strength(_cuts(train_x, train_y, folds), STRENGTHS, fitter)
        strengths.append(strength)
        right.append(fitter.fit(train_x, train_y, strength).predict(test_x) == test_y)
    return strengths, right
