"""Mistyped sentences in the table before → after: how far their vectors move, and whether a typing error is nearer than
a negation. What is measured is `fastadv.evaluation.robustness`'s, of the edits ``typos`` alone.

Shapes: ``N`` sentences.
"""

from dataclasses import replace
from typing import Dict, List

import numpy as np

from fastadv.config.robustness import RobustnessSettings
from fastadv.config.schema import EvaluationConfig
from fastadv.evaluation.robustness.edited import UNCHANGED, RobustnessData, Variant
from fastadv.evaluation.robustness.measure import Choice, Measured, Movement, measure
from fastadv.evaluation.robustness.result import robustness_rows

METRICS = ("cosine", "retrieval")
_MOVED, _NEARER = "mistyped", "nearer"
"""how the names of kept values begin"""


def measure_mistyped(
    encoder, cfg: EvaluationConfig, sentences: List[str], batch_size: int = 64
) -> Dict[str, np.ndarray]:
    """Values (N,) by name; NaN where an edit has no place in the sentence. Nothing where ``cfg.typo_shares`` is empty.

    Raises:
        UserError: the word sets cannot be read, or vectors are not finite.
    """
    if not cfg.typo_shares:
        return {}
    settings = RobustnessSettings(
        edits=("typos",),
        flips=("negation",) if cfg.word_sets is None else ("negation", "antonym"),
        shares=tuple(cfg.typo_shares),
        word_sets=cfg.word_sets,
        num_sentences=len(sentences),
    )
    data = RobustnessData.of(settings, cfg.held_out, sentences)
    # The edits of the group one by one are no rows of the table.
    data = replace(data, variants=tuple(variant for variant in data.variants if variant.is_named))
    return _kept(measure(encoder, data, data.draw(cfg.seed), batch_size))


def mistyped_rows(before: Dict[str, np.ndarray], after: Dict[str, np.ndarray], seed: int) -> List[dict]:
    """Rows of the table, of what `measure_mistyped` gave, among other values."""
    return robustness_rows(_restored(before), _restored(after), METRICS, seed)


def _kept(measured: Measured) -> Dict[str, np.ndarray]:
    moved = {
        f"{_MOVED}/{variant.edit}/{'' if variant.share is None else variant.share}/{metric}": of_variant[metric]
        for variant, of_variant in measured.movement.items()
        if variant.is_kept and variant != UNCHANGED
        for metric in METRICS
    }
    nearer = {f"{_NEARER}/{edit.edit}/{flip.edit}": values for (edit, flip), values in measured.choice.items()}
    return {**moved, **nearer}


def _restored(values: Dict[str, np.ndarray]) -> Measured:
    movement: Movement = {}
    choice: Choice = {}
    for name, of_name in values.items():
        kind, *parts = name.split("/")
        if kind == _MOVED:
            edit, share, metric = parts
            movement.setdefault(Variant(edit, float(share) if share else None), {})[metric] = of_name
        elif kind == _NEARER:
            edit, flip = parts
            choice[Variant(edit), Variant(flip, is_kept=False)] = of_name
    return Measured(movement, choice, {})
