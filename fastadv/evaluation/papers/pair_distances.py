"""How far a classifier keeps a text from what fools another, and from other texts (TaiChi, table 7).

Of N pairs of a text x and what an attack made of it, x', with vectors h before the head and class probabilities p:

    MSE(u, v) = ‖h(u) − h(v)‖² / D,   KL(u, v) = KL(p(u) ‖ p(v)),   positive pairs (x, x'), negative ones (x, x⁻)
    CTR = mean over i of −log( exp(cos(hᵢ, h'ᵢ)/τ) / Σ_{j≠i} exp(cos(hᵢ, h'ⱼ)/τ) ),  τ = 1

x⁻ is one fixed text a class: every text of a class gets the first text of the next class, the last class that of the
first. Of two classes this is the paper's: one negative text for all positive ones, one positive for all negative ones.
Small is good for MSE and KL of positive pairs and for CTR, large for negative pairs.
"""

from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from fastadv.data.labelled.labels import LabelMap
from fastadv.data.labelled.matching import matched
from fastadv.errors import UserError
from fastadv.evaluation.intervals import value_interval
from fastadv.evaluation.text.rows import SUCCEEDED, TextAttackRow, read_rows
from fastadv.evaluation.vectors.classifier_vectors import Classified, classified
from fastadv.evaluation.vectors.geometry import unit_rows
from fastadv.evaluation.versions import versions
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import write_json
from fastadv.pages.text_table import aligned, interval_cell

MAX_PAIRS = 1000
TEMPERATURE = 1.0

QUANTITIES = {
    "mse_positive": ("MSE, positive pairs", "lower"),
    "mse_negative": ("MSE, negative pairs", "higher"),
    "kl_positive": ("KL, positive pairs", "lower"),
    "kl_negative": ("KL, negative pairs", "higher"),
    "ctr": ("CTR", "lower"),
}
"""name → what a table calls it, and which is better"""


class AttackedPairs(NamedTuple):
    """N texts that an attack succeeded on, in the order of its rows."""

    first: List[str]
    second: Optional[List[str]]
    """None: not pairs of texts"""
    first_adversarial: List[str]
    second_adversarial: Optional[List[str]]
    labels: List[str]
    """names of classes"""

    @classmethod
    def of_rows(cls, rows: Sequence[TextAttackRow], max_pairs: int = MAX_PAIRS) -> "AttackedPairs":
        """The first ``max_pairs`` rows that succeeded."""
        kept = [row for row in rows if row.outcome == SUCCEEDED][:max_pairs]
        is_pair = any(row.second is not None for row in kept)
        return cls(
            [row.first for row in kept],
            [row.second or "" for row in kept] if is_pair else None,
            [row.first_adversarial for row in kept],
            [row.second_adversarial or "" for row in kept] if is_pair else None,
            [row.label for row in kept],
        )

    @classmethod
    def read(cls, path: str | Path, max_pairs: int = MAX_PAIRS) -> "AttackedPairs":
        """From the rows of an attack. UserError where no attack succeeded."""
        pairs = cls.of_rows(read_rows(path), max_pairs)
        if not pairs.labels:
            raise UserError(f"{str(path)!r}: no attack succeeded, so there is no pair to measure")
        return pairs


def fixed_negatives(labels: Sequence[str]) -> Optional[np.ndarray]:
    """(N,) the text that each text is a negative pair with; None where all have one class.

    Classes follow each other by code point.
    """
    classes = sorted(set(labels))
    if len(classes) < 2:
        return None
    first_of = {name: labels.index(name) for name in classes}
    other = dict(zip(classes, (*classes[1:], classes[0])))
    return np.array([first_of[other[label]] for label in labels])


def distances(clean: Classified, adversarial: Classified, negatives: Optional[np.ndarray]) -> Dict[str, np.ndarray]:
    """One value a pair, (N,), for each of `QUANTITIES`; of negative pairs only where there are ``negatives`` (N,)."""
    found = {
        "mse_positive": _mse(clean.vectors, adversarial.vectors),
        "kl_positive": _kl(clean.log_probabilities, adversarial.log_probabilities),
        "ctr": contrast(clean.vectors, adversarial.vectors),
    }
    if negatives is not None:
        found["mse_negative"] = _mse(clean.vectors, clean.vectors[negatives])
        found["kl_negative"] = _kl(clean.log_probabilities, clean.log_probabilities[negatives])
    return found


def contrast(query: np.ndarray, key: np.ndarray, temperature: float = TEMPERATURE) -> np.ndarray:
    """(N,) TaiChi's CTR of rows (N, D) with keys (N, D), the positive left out of the denominator; 0 of one row."""
    if len(query) < 2:
        return np.zeros(len(query))
    logits = unit_rows(query) @ unit_rows(key).T / temperature
    positive = np.diagonal(logits).copy()
    np.fill_diagonal(logits, -np.inf)
    highest = logits.max(axis=1)
    return highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1)) - positive


def _mse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.square(a - b).mean(axis=1)


def _kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """(N,) of log probabilities (N, C)."""
    return (np.exp(p) * (p - q)).sum(axis=1)


def measure_pairs(
    models: Dict[str, Callable], pairs: AttackedPairs, batch_size: int = 64, progress: bool = False
) -> dict:
    """The record of all models, ready for JSON: for each ``accuracy``, ``accuracy_adversarial`` (of these texts) and
    the mean of each quantity with its interval by the bootstrap over pairs; None without a value.

    Args:
        models: name → () → `fastadv.encoder.classifier.text_classifier.Classifier`; one is held at a time.

    Raises:
        UserError: a model that does not know the classes, or gives vectors that are not finite.
    """
    negatives = fixed_negatives(pairs.labels)
    entries = []
    for name, load in models.items():
        classifier = load()
        try:
            present = LabelMap.in_order(pairs.labels)
            ids = matched(classifier.label_map, present, present.names, is_ordered=False)[0].label2id
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        texts = [(pairs.first, pairs.second), (pairs.first_adversarial, pairs.second_adversarial)]
        clean, adversarial = (classified(classifier, *both, batch_size, progress, name) for both in texts)
        values, labels = distances(clean, adversarial, negatives), np.array([ids[label] for label in pairs.labels])
        entry = {
            "name": name,
            "device": str(classifier.encoder.device),
            "accuracy": float((clean.logits.argmax(axis=1) == labels).mean()),
            "accuracy_adversarial": float((adversarial.logits.argmax(axis=1) == labels).mean()),
        }
        for quantity in QUANTITIES:
            entry[quantity] = vars(value_interval(values[quantity])) if quantity in values else None
        entries.append(entry)
    return {
        "kind": "pair distances",
        "versions": versions(),
        "num_pairs": len(pairs.labels),
        "temperature": TEMPERATURE,
        "models": entries,
    }


def pair_table(record: dict) -> str:
    """Aligned lines, a quantity a line and a model a column."""
    models = record["models"]
    lines = [[f"{record['num_pairs']:,} pairs", *(model["name"] for model in models)]]
    for quantity, (words, better) in QUANTITIES.items():
        arrow = "↓" if better == "lower" else "↑"
        intervals = (model[quantity] for model in models)
        cells = ("n/a" if interval is None else interval_cell(interval, ".4f") for interval in intervals)
        lines.append([f"{words} {arrow}", *cells])
    for key, words in (("accuracy", "right on the text ↑"), ("accuracy_adversarial", "right on the attacked text ↑")):
        lines.append([words, *(f"{model[key]:.1%}" for model in models)])
    return aligned(lines)


def write_pairs_record(record: dict, out: Path) -> None:
    """``pair-distances.json`` and ``.csv`` in the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for model in record["models"]:
        for quantity in QUANTITIES:
            interval = model[quantity] or {"value": None, "low": None, "high": None}
            ends = (interval[end] for end in ("value", "low", "high"))
            rows.append([model["name"], quantity, *(None if end is None else f"{end:.6g}" for end in ends)])
    write_csv(out / "pair-distances.csv", ["model", "quantity", "value", "low", "high"], rows)
    write_json(out / "pair-distances.json", record)
